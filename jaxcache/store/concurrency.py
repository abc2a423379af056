"""Do one thing to many names or files at once, in threads or processes; results stay in order."""

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, islice
from typing import TYPE_CHECKING, TypeVar

from jaxcache.store.base import Store

if TYPE_CHECKING:
    from concurrent.futures import Future

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")
#: Requests that are under way at once. Object stores answer one in tens of milliseconds and serve
#: thousands per second; more than this gains little and invites throttling.
REQUESTS_AT_ONCE = 32


def map_ordered(
    work: Callable[[_Item], _Result],
    items: Iterable[_Item],
    *,
    workers: int = REQUESTS_AT_ONCE,
    cost: Callable[[_Item], int] | None = None,
    budget: int = 0,
    wait: bool = False,
) -> Generator[_Result, None, None]:
    """Yield ``work(item)`` for each item, in order, at most ``workers`` of them ahead.

    An exception of the work is raised in its place, and what has not begun is not begun.

    Args:
        cost: the share of ``budget`` that an item takes until its result is yielded. One that
            costs more than the budget is worked on alone.
        wait: leave no work running in the background at any end of this, also by an exception, and
            do none in the calling thread, which an interrupt could stop half way.
    """
    source = iter(items)
    first = list(islice(source, 2))
    if len(first) < 2 and not wait:  # not worth a thread
        yield from map(work, first)
        return
    from concurrent.futures import ThreadPoolExecutor  # which takes logging along

    stopped = threading.Event()
    remember = partial(setattr, _OF_THREAD, "stopped")
    pool = ThreadPoolExecutor(workers, "jaxcache-store", remember, (stopped,))
    running: deque[tuple[int, Future[_Result]]] = deque()
    under_way = 0
    try:
        for item in chain(first, source):
            share = cost(item) if cost else 0
            results: list[_Result] = []
            while running and (len(running) >= workers or under_way + share > budget):
                freed, future = running.popleft()
                results.append(future.result())
                under_way -= freed
            running.append((share, pool.submit(work, item)))
            under_way += share
            yield from results
        while running:
            yield running.popleft()[1].result()
    finally:
        stopped.set()
        pool.shutdown(wait=wait, cancel_futures=True)


class StoppedError(Exception):
    """Nobody waits for the result any more."""


def pause(seconds: float) -> None:
    """Sleep inside the work of :func:`map_ordered`, no longer than its result is wanted.

    Raises:
        StoppedError
    """
    stopped: threading.Event | None = getattr(_OF_THREAD, "stopped", None)
    if stopped is None:
        time.sleep(seconds)
    elif stopped.wait(seconds):
        raise StoppedError


_OF_THREAD = threading.local()


#: Items per task: enough that sending them costs little compared with reading as many small files.
_CHUNK = 1_000


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
    if workers > 1 and len(items) >= above and store.path is not None:
        import multiprocessing
        from concurrent.futures import BrokenExecutor, ProcessPoolExecutor

        size = chunk or _CHUNK
        chunks = [items[i : i + size] for i in range(0, len(items), size)]
        with (
            contextlib.suppress(OSError, ImportError, BrokenExecutor),  # no semaphores, no memory
            ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool,
        ):
            elsewhere = partial(_read_elsewhere, read, store.path)
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
