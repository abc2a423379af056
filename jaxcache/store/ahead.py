"""Do one thing to many names at once, and give the results in order."""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from concurrent.futures import Future

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")
#: Requests that are under way at once. Object stores answer one in tens of milliseconds and serve
#: thousands per second; more than this gains little and invites throttling.
REQUESTS_AT_ONCE = 32


def in_order(
    work: Callable[[_Item], _Result], items: Iterable[_Item], *, workers: int = REQUESTS_AT_ONCE
) -> Iterator[_Result]:
    """Yield ``work(item)`` for each item, in order, at most ``workers`` of them ahead.

    An exception of the work is raised in its place, and what has not begun is not begun.
    """
    source = iter(items)
    first = list(islice(source, 2))
    if len(first) < 2:  # not worth a thread
        yield from map(work, first)
        return
    from concurrent.futures import ThreadPoolExecutor  # which takes logging along

    stopped = threading.Event()
    pool = ThreadPoolExecutor(workers, "jaxcache-store", _remember, (stopped,))
    waiting = chain(first, source)
    running: deque[Future[_Result]] = deque()
    try:
        running.extend(pool.submit(work, item) for item in islice(waiting, workers))
        while running:
            result = running.popleft().result()
            running.extend(pool.submit(work, item) for item in islice(waiting, 1))
            yield result
    finally:
        stopped.set()
        pool.shutdown(wait=False, cancel_futures=True)


class StoppedError(Exception):
    """Nobody waits for the result any more."""


def pause(seconds: float) -> None:
    """Sleep inside the work of :func:`in_order`, no longer than its result is wanted.

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
