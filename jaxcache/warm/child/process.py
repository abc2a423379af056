"""Helpers for starting and ending child processes."""

import signal
import socket

#: What to do where a Python has no jax.
NO_JAX_HINT = (
    "activate the environment that has jax, name its Python with --python, or: "
    "pip install 'jaxcache[jax]'"
)

#: With these settings all is cached that can be.
LIFTED = {
    "JAX_ENABLE_COMPILATION_CACHE": "true",
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
}


def free_port() -> int:
    """Return a free port of the loopback interface."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def describe_end(status: int, deed: str) -> str:
    """Say how the process that did ``deed`` ("loaded it") ended, by the status of its ``Popen``."""
    if status >= 0:
        return f"the process that {deed} exited with status {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    return f"the process that {deed} died of {name}"
