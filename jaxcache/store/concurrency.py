"""Do one thing to many names at once, and give the results in order."""

import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable
from itertools import chain, islice
from typing import TYPE_CHECKING, TypeVar

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
        wait: let no work go on in the background when this ends, whatever ends it, and do none in
            the thread that calls, which an interrupt could stop half way.
    """
    source = iter(items)
    first = list(islice(source, 2))
    if len(first) < 2 and not wait:  # not worth a thread
        yield from map(work, first)
        return
    from concurrent.futures import ThreadPoolExecutor  # which takes logging along

    stopped = threading.Event()
    pool = ThreadPoolExecutor(workers, "jaxcache-store", _remember, (stopped,))
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


def _remember(stopped: threading.Event) -> None:
    _OF_THREAD.stopped = stopped
