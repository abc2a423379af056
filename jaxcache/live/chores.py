"""One background thread for what nobody waits for: sweeps, ledger segments, uploads' resumption."""

import threading
import time
from collections.abc import Callable
from typing import Any


class Chores:
    """Runs each submitted call once, in order; a call that already waits is not added again."""

    def __init__(self, report: "Callable[[BaseException], None]") -> None:
        self._report = report
        self.forget()

    def forget(self) -> None:
        """Begin anew: in a forked child there is no thread."""
        self._lock = threading.Lock()
        self._queue: Any = None
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
            if self._queue is None:
                from queue import SimpleQueue

                self._queue = SimpleQueue()
            self._queue.put(call)
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="jaxcache-live", daemon=True)
                try:
                    thread.start()
                except RuntimeError:  # the interpreter is ending
                    return
                self._thread = thread

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
                with self._lock:
                    self._left -= 1

    def finish(self, seconds: float) -> None:
        """Wait until everything submitted is done, for so long at most."""
        deadline = time.monotonic() + seconds
        while self._thread is not None and self._left and time.monotonic() < deadline:
            time.sleep(0.005)
