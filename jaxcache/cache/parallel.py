"""Work over many files in several processes or threads, within a bound on memory."""

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TypeVar

from jaxcache.store.base import Store

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")
#: Items per task: enough that sending them costs little beside reading as many small files.
_CHUNK = 1_000


def can_spread(store: Store) -> bool:
    """Whether other processes could open the same files."""
    return getattr(store, "path", None) is not None


def spread(
    read: Callable[[Store, Sequence[_Item]], Iterable[_Result]],
    store: Store,
    items: Sequence[_Item],
    *,
    workers: int,
    above: int,
    chunk: int | None = None,
) -> Iterator[_Result]:
    """Yield what ``read`` makes of each item, in order; in other processes where that is faster.

    Where no process can be had, or one dies, the rest is read here.

    Args:
        read: a function of a module; one result per item.
        workers: processes; more than one needs a main module that can be imported (``if __name__
            == "__main__"``), as spawning does.
        above: how many items are read before other processes have started.
        chunk: how many items a process takes at once.
    """
    done = 0
    if workers > 1 and len(items) >= above and can_spread(store):
        import multiprocessing
        from concurrent.futures import BrokenExecutor, ProcessPoolExecutor

        size = chunk or _CHUNK
        chunks = [items[i : i + size] for i in range(0, len(items), size)]
        with (
            contextlib.suppress(OSError, ImportError, BrokenExecutor),  # no semaphores, no memory
            ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool,
        ):
            elsewhere = partial(_read_elsewhere, read, str(getattr(store, "path", None)))
            for results in pool.map(elsewhere, chunks):
                for result in results:
                    yield result
                    done += 1
    yield from read(store, items[done:])


def _read_elsewhere(
    read: Callable[[Store, Sequence[_Item]], Iterable[_Result]], path: str, items: Sequence[_Item]
) -> list[_Result]:
    """Read in another process, to which a store travels as its path."""
    from jaxcache.store.local import LocalStore

    return list(read(LocalStore(path), items))


class ByteBudget:
    """Lets workers take bytes until none are left; one that wants more than there is goes alone.

    Args:
        total_bytes: what all of them together may hold.
    """

    def __init__(self, total_bytes: int) -> None:
        self._total = self._left = total_bytes
        self._freed = threading.Condition()

    @contextlib.contextmanager
    def take(self, wanted_bytes: int) -> Iterator[None]:
        """Hold bytes for a while, waiting until they are there."""
        wanted = min(wanted_bytes, self._total)
        with self._freed:
            self._freed.wait_for(lambda: self._left >= wanted)
            self._left -= wanted
        try:
            yield
        finally:
            with self._freed:
                self._left += wanted
                self._freed.notify_all()
