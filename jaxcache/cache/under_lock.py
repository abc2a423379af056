"""Change files beside running JAX processes: under JAX's lock, for moments only."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from jaxcache.cache.scan import Progress
from jaxcache.store.base import Store

LOCK_TIMEOUT_SECONDS = 10.0
#: After this long the lock is let go, at the next file. Half of what the lock rules allow,
#: because unlinking one large file can take milliseconds.
HOLD_SECONDS = 0.025
#: How long others get. filelock polls every 50 ms, so this lets one process in ten in at once.
PAUSE_SECONDS = 0.003


def run_under_lock(
    store: Store, steps: Sequence[Callable[[], None]], *, progress: Progress | None = None
) -> None:
    """Run short steps in order, letting the lock go in between as the lock rules demand.

    Raises:
        LockedError: the lock was not obtained; the steps until then are done.
    """
    done = 0
    while done < len(steps):
        if done:
            time.sleep(PAUSE_SECONDS)
        with store.lock(timeout_seconds=LOCK_TIMEOUT_SECONDS):
            started = time.perf_counter()
            while done < len(steps) and time.perf_counter() - started < HOLD_SECONDS:
                steps[done]()
                done += 1
        if progress:
            progress(done, len(steps))


class SharedLock:
    """JAX's lock for several threads of ours, of which one holds it at a time."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._threads = threading.Lock()

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Hold it for one swap.

        Raises:
            LockedError: another process held it all the time.
        """
        with self._threads, self._store.lock(timeout_seconds=LOCK_TIMEOUT_SECONDS):
            yield
