"""The parent's end of the listener's sockets: one queue for the events of every process."""

import contextlib
import errno
import os
import queue
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jaxcache.core.compile_event import RunEvent

_MAX_TEMP_PATH_BYTES = 70


def socket_directory() -> "tempfile.TemporaryDirectory[str]":
    """Make a private directory whose path leaves room for a socket's name (107 bytes on Linux).

    A socket needs no space for contents, so a full disk does not keep the program from starting.

    Raises:
        OSError: it cannot be made in any directory for temporary files.
    """
    tops = ["/tmp", "/dev/shm"]  # noqa: S108
    with contextlib.suppress(OSError):  # where it cannot write a file
        tops.insert(0, tempfile.gettempdir())
    for top in tops:
        if len(os.fsencode(top)) <= _MAX_TEMP_PATH_BYTES:
            with contextlib.suppress(OSError):
                return tempfile.TemporaryDirectory(prefix="jaxcache-", dir=top)
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), tops[0])


class EventServer:
    """A listening socket, and one queue for what every connection sends."""

    def __init__(self, directory: str) -> None:
        self.address = os.path.join(directory, "events")
        self._server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._server.bind(self.address)
        self._server.listen(64)
        self._events: queue.SimpleQueue[RunEvent | None] = queue.SimpleQueue()
        self._open = 0
        self._lock = threading.Lock()

    def __enter__(self) -> "EventServer":
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)  # closing alone leaves the thread in accept()
        self._server.close()

    def wake(self) -> None:
        """Make :meth:`next` return."""
        self._events.put(None)

    def next(self, timeout_seconds: float | None) -> "RunEvent | None":
        """The next event; None after a wake or when the time is up."""
        try:
            return self._events.get(timeout=timeout_seconds)
        except queue.Empty:
            return None

    def drain(self, linger_seconds: float) -> "Iterator[RunEvent]":
        """Yield what is still to come, at the latest until the time is up."""
        from jaxcache.warm.report.events import Message

        marked = False
        # Connections are accepted in order: those after ours were made later.
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as last:
            try:
                last.connect(self.address)
                last.sendall(b'{"event": "marker"}\n')
            except OSError:
                marked = True  # the program has removed the socket
        deadline = time.monotonic() + linger_seconds
        while not marked or self._open or not self._events.empty():
            left_seconds = deadline - time.monotonic()
            event = self.next(max(left_seconds, 0.001))
            if event is None and left_seconds <= 0:
                return
            if isinstance(event, Message) and event.event == "marker":
                marked = True
            elif event is not None:
                yield event

    def _accept(self) -> None:
        number = 0
        while True:
            try:
                connection, _ = self._server.accept()
            except OSError:
                return
            number += 1
            with self._lock:
                self._open += 1
            threading.Thread(target=self._read, args=(connection, number), daemon=True).start()

    def _read(self, connection: socket.socket, number: int) -> None:
        # In this thread: the program that sends the first line has started long before.
        from jaxcache.warm.report.events import MAX_LINE_BYTES, parse_event

        try:
            with connection, connection.makefile("rb") as lines:
                while line := lines.readline(MAX_LINE_BYTES):
                    if event := parse_event(line, number):
                        self._events.put(event)
        except OSError:  # its writer was cut off
            pass
        finally:
            with self._lock:
                self._open -= 1
            self.wake()
