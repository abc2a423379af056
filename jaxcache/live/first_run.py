"""Notice when a loaded executable was executed for the first time.

Nothing waits for it: the calling thread goes on, and a thread of its own looks whether the results
are there, holding none of them.
"""

import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

_LOOK_SECONDS = 0.02


class FirstRuns:
    """Executables that have not been executed yet, and what to call after that."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Begin anew: in a forked child there is no thread."""
        self._lock = threading.Lock()
        self._waiting: dict[int, Callable[[], None]] = {}
        self._running: list[tuple[list[weakref.ref[Any]], Callable[[], None]]] = []
        self._is_looking = False

    def watch(self, executable: Any, over: "Callable[[], None]") -> None:
        """Call ``over`` when an executable was executed once; never where it is not."""
        self._waiting[id(executable)] = over

    def execute(self, original: Any, call: Any, *args: Any, **kwargs: Any) -> Any:
        """Execute as JAX does (``ExecuteReplicated.__call__``)."""
        over = None
        if self._waiting:
            over = self._waiting.pop(id(getattr(call, "xla_executable", None)), None)
        if over is None:
            return original(call, *args, **kwargs)
        results: Any = ()
        try:
            results = original(call, *args, **kwargs)
            return results
        finally:
            self._await(results, over)

    def _await(self, results: Any, over: "Callable[[], None]") -> None:
        arrays = [weakref.ref(one) for one in results if hasattr(one, "is_ready")]
        with self._lock:
            self._running.append((arrays, over))
            if self._is_looking:
                return
            self._is_looking = True
        thread = threading.Thread(target=self._look, name="jaxcache-first-run", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the interpreter is ending, and all notes of this process with it
            self._is_looking = False

    def _look(self) -> None:
        while True:
            with self._lock:
                running = self._running
                self._running = []
                if not running:
                    self._is_looking = False
                    return
            unfinished = []
            for arrays, over in running:
                if all(map(_is_ready, arrays)):
                    over()
                else:
                    unfinished.append((arrays, over))
            with self._lock:
                self._running += unfinished
            time.sleep(_LOOK_SECONDS)


def _is_ready(reference: "weakref.ref[Any]") -> bool:
    """Whether a result is there, or is gone."""
    array = reference()
    try:
        return array is None or array.is_deleted() or array.is_ready()
    except Exception:  # the execution failed, or the array went meanwhile
        return True
