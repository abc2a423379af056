"""Change files beside running JAX processes: under JAX's lock, for moments only."""

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, TypeVar

from jaxcache.cache.scan import Progress
from jaxcache.store.base import Store

if TYPE_CHECKING:
    from jaxcache.layouts.base import Guard

_Item = TypeVar("_Item")

LOCK_TIMEOUT_SECONDS = 10.0
#: After this long the lock is let go, at the next file. Half of what the lock rules allow,
#: because unlinking one large file can take milliseconds.
HOLD_SECONDS = 0.025
#: How long others get. filelock polls every 50 ms, so this lets one process in ten in at once.
PAUSE_SECONDS = 0.003


def run_under_lock(
    store: Store,
    work: Callable[[_Item], None],
    items: Sequence[_Item],
    *,
    lock_timeout_seconds: float = LOCK_TIMEOUT_SECONDS,
    progress: Progress | None = None,
    clock: Callable[[], float] = time.perf_counter,
    pause: Callable[[float], None] = time.sleep,
) -> float:
    """Do short work on each item in order, releasing the lock in between.

    Returns:
        The longest that the lock was held at a stretch, in seconds.

    Raises:
        LockedError: the lock was not obtained; the items until then are done.
    """
    done, longest = 0, 0.0
    while done < len(items):
        if done:
            pause(PAUSE_SECONDS)
        with store.lock(timeout_seconds=lock_timeout_seconds):
            started = clock()
            while done < len(items) and clock() - started < HOLD_SECONDS:
                work(items[done])
                done += 1
            longest = max(longest, clock() - started)
        if progress:
            progress(done, len(items))
    return longest


def run_guarded(
    store: Store,
    work: Callable[[_Item], None],
    items: Sequence[_Item],
    *,
    guard: "Guard | None",
    progress: Progress | None,
    **lock: Any,
) -> float:
    """Do short work on each item in order, beside the compiler that uses the cache.

    Args:
        guard: the locks of single files, which ``work`` takes; None where one lock is for all.
        lock: see :func:`run_under_lock`.

    Returns:
        The longest that a lock for all was held at a stretch, in seconds.

    Raises:
        LockedError
    """
    if guard is None:
        return run_under_lock(store, work, items, progress=progress, **lock)
    for done, item in enumerate(items, 1):
        work(item)
        if progress:
            progress(done, len(items))
    return 0.0


def guarded(store: Store, name: str, guard: "Guard | None") -> AbstractContextManager[bool]:
    """Hold the lock of one file, where there is one; False where somebody else has it."""
    return guard(store, name) if guard else nullcontext(True)
