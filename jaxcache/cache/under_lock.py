"""Change files beside running JAX processes: under JAX's lock, for moments only."""

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, TypeVar

from jaxcache.cache.scan import Progress
from jaxcache.store.base import Store

if TYPE_CHECKING:
    from jaxcache.layouts.base import FileLock

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
    file_lock: "FileLock | None" = None,
    progress: Progress | None = None,
) -> float:
    """Do short work on each item in order, beside the compiler that uses the cache.

    Args:
        file_lock: the locks of single files, which ``work`` takes; None where JAX's lock is for
            all: then it is held, and released every :data:`HOLD_SECONDS`.

    Returns:
        The longest that JAX's lock was held at a stretch, in seconds.

    Raises:
        LockedError: the lock was not obtained; the items until then are done.
    """
    done = 0
    longest = 0.0
    while done < len(items):
        if file_lock is not None:
            work(items[done])
            done += 1
        else:
            if done:
                time.sleep(PAUSE_SECONDS)
            with store.lock(timeout_seconds=LOCK_TIMEOUT_SECONDS):
                started = time.perf_counter()
                while done < len(items) and time.perf_counter() - started < HOLD_SECONDS:
                    work(items[done])
                    done += 1
                longest = max(longest, time.perf_counter() - started)
        if progress:
            progress(done, len(items))
    return longest


def hold_file_lock(
    store: Store, name: str, file_lock: "FileLock | None"
) -> AbstractContextManager[bool]:
    """Hold the lock of one file, where there is one; False where somebody else has it."""
    return file_lock(store, name) if file_lock else nullcontext(True)
