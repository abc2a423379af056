"""How much memory workers may take, and when the next module has to wait for it."""

import contextlib
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

_SHARE = 0.8
#: What a compile is taken to need beyond what its worker holds already.
_RESERVE_BYTES = 256 << 20
_LOOK_SECONDS = 0.5


def available_bytes() -> int | None:
    """Memory that this host, or our control group, can still give; None if untold."""
    found = []
    with contextlib.suppress(OSError, ValueError, IndexError):
        lines = Path("/proc/meminfo").read_text().splitlines()
        found.append(next(int(x.split()[1]) << 10 for x in lines if x.startswith("MemAvailable")))
    with contextlib.suppress(OSError, ValueError):
        group = Path("/sys/fs/cgroup")
        most = int((group / "memory.max").read_text())
        found.append(most - int((group / "memory.current").read_text()))
    return min(found, default=None)


def resident_bytes(pids: Iterable[int]) -> int:
    """Resident memory of processes; those that cannot be looked at count nothing."""
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError, ValueError, IndexError):
            pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
            total += pages * os.sysconf("SC_PAGE_SIZE")
    return total


class MemoryGate:
    """Lets a module begin only where the workers' memory allows it; one may always run.

    Args:
        limit_bytes: of all workers together; None for four fifths of what is available now.
        pids: the workers that live.
    """

    def __init__(self, limit_bytes: int | None, pids: Callable[[], Iterable[int]]) -> None:
        free = available_bytes()
        self._limit = limit_bytes or (None if free is None else int(free * _SHARE))
        self._pids = pids
        self._changed = threading.Condition()
        self._running = 0

    @contextlib.contextmanager
    def admitted(self, give_back: Callable[[], None]) -> Iterator[None]:
        """Wait for memory, and hold a place while a module compiles.

        Args:
            give_back: called before waiting; lets go of what the caller itself holds.
        """
        with self._changed:
            waited = False
            while self._running and not self._fits():
                if not waited:
                    give_back()
                waited = True
                self._changed.wait(_LOOK_SECONDS)
            self._running += 1
        try:
            yield
        finally:
            with self._changed:
                self._running -= 1
                self._changed.notify_all()

    def _fits(self) -> bool:
        if self._limit is None:
            return True
        return resident_bytes(self._pids()) + _RESERVE_BYTES <= self._limit
