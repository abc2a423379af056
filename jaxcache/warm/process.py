"""Helpers for starting and ending child processes."""

import os
import shutil
import signal
import socket
import sys

from jaxcache.errors import NoJaxError

#: What to do where a Python has no jax.
NO_JAX_HINT = "name a Python that has jax with --python, or: pip install 'jaxcache[jax]'"

#: With these settings all is cached that can be.
LIFTED = {
    "JAX_ENABLE_COMPILATION_CACHE": "true",
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
}


def find_python(python: str | None) -> str:
    """The interpreter to run, from whatever directory: the one named, else our own.

    Raises:
        NoJaxError: ``no-python`` where the named one is not to be found.
    """
    if python is None:
        return sys.executable
    found = shutil.which(python)
    if not found:
        raise NoJaxError(
            f"there is no Python {python}", code="no-python", hint="name an interpreter's path"
        )
    return os.path.abspath(found)


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
