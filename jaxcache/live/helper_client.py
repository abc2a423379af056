"""A directory tier in a separate process (:mod:`.helper`), with a time limit per request."""

import os
import socket
import subprocess
import sys
import threading
import time
from typing import Any

from .files import MAX_ENTRY_BYTES
from .helper import receive, send
from .stores import AbsentError, DeniedError

#: For a Python to start and fork.
_START_SECONDS = 10.0


class DirectoryClient:
    """The same as a :class:`~.stores.DirectoryStore`, of which no call can hang.

    Raises:
        DeniedError: no Python can be started beside this program.
        OSError: the process cannot be started.
    """

    def __init__(self, path: str) -> None:
        self._lock = threading.RLock()
        self._idle: list[socket.socket] = []
        self._path = os.path.abspath(path)
        self._control = self._start()

    def __del__(self) -> None:
        if hasattr(self, "_control"):
            self.close()

    def within(self, seconds: float) -> "DirectoryRequests":
        """Return the store with a limit for the next request."""
        return DirectoryRequests(self, seconds)

    def ask(
        self, head: "dict[str, Any]", data: bytes, limit: int, seconds: float
    ) -> "tuple[dict[str, Any], bytes]":
        """Send a request and wait for its answer.

        Raises:
            TimeoutError: none came in time; its connection is abandoned.
            OSError: the request failed, or the process is gone.
        """
        deadline = time.monotonic() + seconds
        connection = self._connect(seconds)
        try:
            connection.settimeout(seconds)
            send(connection, head, data)
            answer = receive(connection, limit, deadline)
        except TimeoutError:
            connection.close()
            raise TimeoutError(f"no answer in {seconds:g} s") from None
        except BaseException:
            connection.close()
            raise
        with self._lock:
            self._idle.append(connection)
        return answer

    def close(self) -> None:
        """End the connections of this process; the other one ends with the last of them."""
        for connection in (*self._idle, self._control):
            connection.close()
        self._idle = []

    def _connect(self, seconds: float) -> socket.socket:
        with self._lock:
            if self._idle:
                return self._idle.pop()
            ours, theirs = socket.socketpair()
            with theirs:
                try:
                    self._control.settimeout(seconds)
                    socket.send_fds(self._control, [b"+"], [theirs.fileno()])
                except (BrokenPipeError, ConnectionError):  # the helper was ended
                    self._control.close()
                    self._control = self._start()
                    socket.send_fds(self._control, [b"+"], [theirs.fileno()])
            return ours

    def _start(self) -> socket.socket:
        python = sys.executable or ""
        is_python = os.path.basename(python).startswith(("python", "pypy"))
        if not is_python or getattr(sys, "frozen", False):
            raise DeniedError("a directory tier needs a Python that can be started")
        ours, theirs = socket.socketpair()
        program = os.path.join(os.path.dirname(os.path.abspath(__file__)), "helper.py")
        with theirs:
            process = subprocess.Popen(
                [python, "-I", "-S", program, str(theirs.fileno()), self._path],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                pass_fds=(theirs.fileno(),),
                start_new_session=True,  # it finishes uploads after an interrupt
            )
            try:
                process.wait(_START_SECONDS)  # for it to fork
            except subprocess.TimeoutExpired:
                process.kill()
                raise
        return ours


class DirectoryRequests:
    """The operations of a directory tier, each within the same limit."""

    def __init__(self, directory: DirectoryClient, seconds: float) -> None:
        self._directory = directory
        self._seconds = seconds

    def read(self, name: str, limit: int) -> bytes:
        """Return an object's bytes, at most ``limit``."""
        return self._ask("read", name, max_bytes=limit, limit=limit)[1]

    def write(self, name: str, data: bytes, *, replace: bool) -> None:
        """Write an object whole."""
        self._ask("write", name, data, replace=replace)

    def create(self, name: str, data: bytes) -> bool:
        """Write an object if it does not exist; return whether it was written."""
        return bool(self._ask("create", name, data)[0]["value"])

    def delete(self, name: str) -> None:
        """Delete an object, if it exists."""
        self._ask("delete", name)

    def names(self, directory: str = "") -> "set[str]":
        """The names directly below a directory."""
        return set(self._ask("names", directory)[0]["value"])

    def _ask(
        self,
        verb: str,
        name: str,
        data: bytes = b"",
        max_bytes: int = MAX_ENTRY_BYTES,
        **arguments: Any,
    ) -> "tuple[dict[str, Any], bytes]":
        head = {"verb": verb, "name": name, **arguments}
        answer, result = self._directory.ask(head, data, max_bytes, self._seconds)
        if "absent" in answer:
            raise AbsentError
        if "error" in answer:
            if answer["errno"] is None:
                raise OSError(answer["error"])
            raise OSError(answer["errno"], answer["error"], name)
        return answer, result
