"""Start the user's command with the listener in it, and gather what the listener tells.

The command runs as it would without us: same standard streams, arguments, working directory and
exit code. What is added is environment: ``jaxside/startup`` on ``PYTHONPATH``, whose
``sitecustomize`` waits for jax and then reports over a Unix socket.
"""

import contextlib
import json
import os
import queue
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxcache.errors import UsageError

#: An event as the listener sends it, with ``process``, a number per connection.
Event = dict[str, Any]

STARTUP = Path(__file__).parents[1] / "jaxside" / "startup"
#: Longer lines are dropped: nothing that the listener sends comes near.
_MAX_LINE_BYTES = 4 << 20
#: How long processes that outlive the command may go on reporting.
_LINGER_SECONDS = 1.0
_KILL_AFTER_SECONDS = 10.0
_MAX_TEMP_PATH_BYTES = 70


@dataclass(frozen=True, slots=True)
class Ended:
    """How the command ended."""

    exit_code: int
    """As the system has it: negative for a signal."""
    timed_out: bool
    interrupted: bool
    wall_seconds: float


def listening_environment(
    base: Mapping[str, str], extra: Mapping[str, str], *, events: str, needs_jax: bool
) -> dict[str, str]:
    """The command's environment: the caller's, ``extra`` over it, and the listener's."""
    env = {**base, **extra, "JAXCACHE_EVENTS": events}
    path = [str(STARTUP), *filter(None, [base.get("PYTHONPATH")])]
    env["PYTHONPATH"] = os.pathsep.join(path)
    if needs_jax:
        env["JAXCACHE_NEEDS_JAX"] = str(os.getpid())
    return env


def run_listening(
    command: Sequence[str],
    *,
    extra_env: Mapping[str, str],
    on_event: Callable[[Event], None],
    needs_jax: bool = False,
    stdout_to_stderr: bool = False,
    timeout_seconds: float | None = None,
) -> Ended:
    """Run a command to its end, calling ``on_event`` in this thread for what it reports.

    An interrupt reaches the command too; we wait for it to end, so that the report says what is
    known. A second one kills it.

    Args:
        needs_jax: the command itself is a Python that must have jax; where it has none, it stops
            with exit code 13 after a ``no-jax`` event.
        stdout_to_stderr: keep our standard output free for a document.

    Raises:
        UsageError: ``cannot-run`` where the command cannot be started.
    """
    with _socket_folder() as folder, _Inbox(folder) as inbox:
        env = listening_environment(
            os.environ, extra_env, events=inbox.address, needs_jax=needs_jax
        )
        started = time.monotonic()
        try:
            child = subprocess.Popen(command, env=env, stdout=2 if stdout_to_stderr else None)
        except OSError as error:
            raise UsageError(
                f"cannot run {command[0]}: {os.strerror(error.errno or 0).lower()}",
                code="cannot-run",
            ) from error
        with _passing_signals(child) as interrupted:
            timed_out = _wait(child, inbox, on_event, timeout_seconds)
        wall_seconds = time.monotonic() - started
        for event in inbox.drain(_LINGER_SECONDS):
            on_event(event)
    return Ended(child.returncode, timed_out, bool(interrupted), wall_seconds)


def _socket_folder() -> "tempfile.TemporaryDirectory[str]":
    """A private folder whose path leaves room for a socket's name (107 bytes on Linux)."""
    long = len(os.fsencode(tempfile.gettempdir())) > _MAX_TEMP_PATH_BYTES
    return tempfile.TemporaryDirectory(prefix="jaxcache-", dir="/tmp" if long else None)  # noqa: S108


def _wait(
    child: "subprocess.Popen[bytes]",
    inbox: "_Inbox",
    on_event: Callable[[Event], None],
    timeout_seconds: float | None,
) -> bool:
    """Hand on events until the child has ended; whether it had to be stopped for the time."""

    def wait() -> None:
        child.wait()
        inbox.wake()

    threading.Thread(target=wait, daemon=True).start()
    deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
    timed_out = False
    while child.returncode is None:
        left = None if deadline is None else deadline - time.monotonic()
        if left is not None and left <= 0:
            child.send_signal(signal.SIGKILL if timed_out else signal.SIGTERM)
            timed_out, deadline = True, time.monotonic() + _KILL_AFTER_SECONDS
            continue
        event = inbox.next(left)
        if event is not None:
            on_event(event)
    return timed_out


@contextlib.contextmanager
def _passing_signals(child: "subprocess.Popen[bytes]") -> Iterator[list[int]]:
    """Outlive the signals that end the child, and pass on those that only we have got."""
    seen: list[int] = []

    def on_interrupt(number: int, _: object) -> None:
        # The terminal has sent it to the child as well; a second one means: now.
        seen.append(number)
        if len(seen) > 1:
            child.kill()

    def on_terminate(number: int, _: object) -> None:
        seen.append(number)
        child.send_signal(number)

    handlers = {
        signal.SIGINT: on_interrupt,
        signal.SIGTERM: on_terminate,
        signal.SIGHUP: on_terminate,
    }
    if threading.current_thread() is not threading.main_thread():
        yield seen
        return
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield seen
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _Inbox:
    """A listening socket, and one queue for what every connection sends."""

    def __init__(self, folder: str) -> None:
        self.address = os.path.join(folder, "events")
        self._server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._server.bind(self.address)
        self._server.listen(64)
        self._events: queue.SimpleQueue[Event | None] = queue.SimpleQueue()
        self._open = 0
        self._lock = threading.Lock()

    def __enter__(self) -> "_Inbox":
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.close()

    def wake(self) -> None:
        """Make :meth:`next` return."""
        self._events.put(None)

    def next(self, timeout_seconds: float | None) -> Event | None:
        """The next event; None after a wake or when the time is up."""
        try:
            return self._events.get(timeout=timeout_seconds)
        except queue.Empty:
            return None

    def drain(self, linger_seconds: float) -> Iterator[Event]:
        """Yield what is still to come, at the latest until the time is up."""
        # Connections are accepted in order: behind ours there are only those made later.
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as last:
            last.connect(self.address)
            last.sendall(b'{"event": "marker"}\n')
        deadline = time.monotonic() + linger_seconds
        marked = False
        while not marked or self._open or not self._events.empty():
            left = deadline - time.monotonic()
            event = self.next(max(left, 0.001))
            if event is None and left <= 0:
                return
            if event is not None and event["event"] == "marker":
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
        with connection, connection.makefile("rb") as lines:
            while line := lines.readline(_MAX_LINE_BYTES):
                with contextlib.suppress(ValueError):
                    event = json.loads(line)
                    if isinstance(event, dict) and isinstance(event.get("event"), str):
                        self._events.put({**event, "process": number})
        with self._lock:
            self._open -= 1
        self.wake()
