"""What starting and ending child processes takes, whatever they are for."""

import signal
import socket


def free_port() -> int:
    """A port of the loopback that nobody listens on at the moment."""
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
