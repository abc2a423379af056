"""The way back to the parent: JSON lines over a socket of our own.

Not an inherited pipe: a pipe is closed in a grandchild (``subprocess`` closes descriptors) and
mixes the lines of several writers. Each process has its own connection, made for its first event.
So the parent can distinguish processes, and one that dies leaves whole lines.
"""

import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from ..core.call_site import name_program
from ..core.configuration import working_directory
from ..core.remote import hide_secrets

_EVENTS = "JAXCACHE_EVENTS"
_SEND_TIMEOUT_SECONDS = 30.0


class Channel:
    """A connection that opens itself, survives a fork, and never fails its caller."""

    def __init__(self, address: str | None) -> None:
        self._address = address
        self._reset()
        os.register_at_fork(after_in_child=self._reset)

    def _reset(self) -> None:
        """Forget the connection: the one that a fork copied belongs to the parent process."""
        # Reentrant: a signal handler may compile while the interrupted thread is sending.
        self._lock = threading.RLock()
        self._socket: socket.socket | None = None
        self._inode = 0
        self._broken = self._address is None

    def send(self, event: dict[str, Any]) -> None:
        """Send one event, stamped with the time; a parent that has ended is not an error."""
        line = self._line(event)
        with self._lock:
            if self._broken:
                return
            if self._is_closed():
                self._socket = None
            try:
                if self._socket is None:
                    self._socket = self._connect()
                    self._inode = os.fstat(self._socket.fileno()).st_ino
                    self._socket.sendall(self._line(introduction()))
                self._socket.sendall(line)
            except OSError:
                self._broken = True

    def _is_closed(self) -> bool:
        """Whether the program has closed our descriptor, and perhaps opened its own in its place.

        Daemons close all that they have not opened.
        """
        if self._socket is None:
            return False
        try:
            if os.fstat(self._socket.fileno()).st_ino == self._inode:
                return False
        except OSError:
            pass
        self._socket.detach()
        return True

    def _connect(self) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        # A parent that has stopped reading must not stop the script for ever.
        connection.settimeout(_SEND_TIMEOUT_SECONDS)
        connection.connect(self._address or "")
        return connection

    @staticmethod
    def _line(event: dict[str, Any]) -> bytes:
        return json.dumps({"at": time.time(), **event}, default=str).encode() + b"\n"


def introduction() -> dict[str, Any]:
    """Return the event that names this process and its program."""
    directory = working_directory()
    argv = [str(a) for a in getattr(sys, "argv", [])]
    return {
        "event": "start",
        "pid": os.getpid(),
        "executable": sys.executable,
        "cwd": directory,
        "argv": hide_secrets(argv[:64]),
        "program": name_program(argv, directory),
    }


def safely(send: Callable[[dict[str, Any]], Any], action: Callable[[], Any]) -> None:
    """Do something for the report; a failure is reported as trouble and never reaches the user."""
    try:
        action()
    except Exception as error:
        send({"event": "trouble", "detail": f"{type(error).__name__}: {error}"})


CHANNEL = Channel(os.environ.get(_EVENTS))
