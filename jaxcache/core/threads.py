"""Threads in the background of the user's program, and what a signal handler may take again."""

import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any


class ReentrantEvent(threading.Event):
    """An event whose lock a signal handler may take again in the thread that holds it."""

    def __init__(self) -> None:
        super().__init__()
        self._cond = threading.Condition()  # reentrant; that of the base class is not
        self.owner = threading.get_ident()


def start_thread(name: str, call: "Callable[[], None]") -> "threading.Thread | None":
    """Start a thread in the background; None where the interpreter is ending."""
    thread = threading.Thread(target=call, name=f"jaxcache-{name}", daemon=True)
    try:
        thread.start()
    except RuntimeError:
        return None
    return thread


class Background:
    """One thread for work without a waiting caller, begun with the first of it.

    A call that is already queued is not added again.
    """

    def __init__(self, name: str, report: "Callable[[BaseException], None]") -> None:
        self._name = name
        self._report = report
        self.reset()

    def reset(self) -> None:
        """Reset: a forked child has no thread."""
        self._lock = threading.RLock()
        self._queue: SimpleQueue[Callable[[], Any]] = SimpleQueue()
        self._waiting: set[Any] = set()
        self._left = 0
        self._thread: threading.Thread | None = None

    def submit(self, call: "Callable[[], Any]") -> None:
        """Run a call in the background."""
        with self._lock:
            if call in self._waiting:
                return
            self._waiting.add(call)
            self._left += 1
            self._queue.put(call)
            if self._thread is None:
                self._thread = start_thread(self._name, self._run)

    def _run(self) -> None:
        while True:
            call = self._queue.get()
            with self._lock:
                self._waiting.discard(call)
            try:
                call()
            except Exception as error:
                self._report(error)
            finally:
                del call  # it would hold the program's objects until the next one comes
                with self._lock:
                    self._left -= 1

    def finish(self, seconds: float) -> None:
        """Wait until all submitted work is done, at most this many seconds."""
        deadline = time.monotonic() + seconds
        while self._thread is not None and self._left and time.monotonic() < deadline:
            time.sleep(0.005)
