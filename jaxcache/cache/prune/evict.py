"""Carry out removals beside running JAX processes.

JAX with a size cap takes ``.lockfile`` for every read and write and waits 10 s for it at the most
(``jax/_src/lru_cache.py``). So the lock is held for a few files at a time and let go in between,
long enough for a process that polls it to get it.
"""

import time
from collections.abc import Callable, Sequence

from jaxcache.cache.leftovers import delete_leftover, is_temporary
from jaxcache.cache.pair import atime_name, delete_pair, find
from jaxcache.cache.prune.removal import Execution, Removal, Spared
from jaxcache.cache.scan import Progress
from jaxcache.cache.under_lock import LOCK_TIMEOUT_SECONDS, run_under_lock
from jaxcache.model import FileInfo
from jaxcache.store.ahead import in_order
from jaxcache.store.base import Store, StoreError, same_file

_USED = "used since the plan was made"


def remove(
    store: Store,
    removals: Sequence[Removal],
    *,
    lock_timeout_seconds: float = LOCK_TIMEOUT_SECONDS,
    progress: Progress | None = None,
    clock: Callable[[], float] = time.perf_counter,
    pause: Callable[[float], None] = time.sleep,
) -> Execution:
    """Remove files under JAX's lock, at most 50 ms at a stretch, each looked at again before.

    An entry that changed or was used since the plan was made stays. What another process removed
    first is no error.

    Raises:
        LockedError: the lock was not obtained; what was removed until then stays removed.
    """
    if store.remote:
        return _remove_remote(store, removals, progress)
    removed: list[Removal] = []
    spared: list[Spared] = []

    def remove_one(removal: Removal) -> None:
        if reprieve := _remove_one(store, removal):
            spared.append(reprieve)
        else:
            removed.append(removal)

    longest = run_under_lock(
        store,
        remove_one,
        removals,
        lock_timeout_seconds=lock_timeout_seconds,
        progress=progress,
        clock=clock,
        pause=pause,
    )
    return Execution(tuple(removed), tuple(spared), longest)


def _remove_remote(
    store: Store, removals: Sequence[Removal], progress: Progress | None
) -> Execution:
    """Remove many objects with few requests; there is no lock, and no order among them.

    Entries go before their ``-atime``. They are sorted by name, so that those that are looked at
    together lie together.
    """
    ordered = sorted(removals, key=lambda r: r.file.name)
    dated = [r for r in ordered if r.atime is not None]
    used = {
        r.file.name
        for r, now in zip(dated, in_order(lambda r: _look_at_atime(store, r), dated), strict=True)
        if not _same(now, r.atime)
    }
    spared = [Spared(r, "used", _USED) for r in ordered if r.file.name in used]
    going = [r for r in ordered if r.file.name not in used]
    removed: list[Removal] = []
    outcomes = store.delete_many([r.file for r in going])
    for done, (removal, outcome) in enumerate(zip(going, outcomes, strict=True), 1):
        if isinstance(outcome, StoreError):
            spared.append(Spared(removal, "failed", outcome.reason))
        elif outcome:
            removed.append(removal)
        else:
            spared.append(Spared(removal, "changed", "changed since the plan was made, or gone"))
        if progress:
            progress(done, len(going))
    stamps = [r.atime for r in removed if r.atime is not None]
    for _ in store.delete_many(stamps):
        pass
    order = {r.file.name: number for number, r in enumerate(removals)}
    removed.sort(key=lambda r: order[r.file.name])
    spared.sort(key=lambda s: order[s.removal.file.name])
    return Execution(tuple(removed), tuple(spared), 0.0)


def _look_at_atime(store: Store, removal: Removal) -> FileInfo | None:
    return find(store, removal.atime.name) if removal.atime else None


def _remove_one(store: Store, removal: Removal) -> Spared | None:
    """Remove one thing, ``-cache`` before ``-atime``; say why if it was not."""
    name = removal.file.name
    try:
        stamp = atime_name(name) if removal.subject == "entry" else None
        if stamp and not _same(find(store, stamp), removal.atime):
            return Spared(removal, "used", _USED)
        if is_temporary(name):
            alive = Spared(removal, "used", "its writer may be alive")
            return None if delete_leftover(store, name) else alive
        deleted = (
            delete_pair(store, removal.file)
            if removal.atime
            else store.delete(name, expected=removal.file)
        )
        if not deleted:
            if find(store, name) is None:
                return Spared(removal, "gone", "another process removed it")
            return Spared(removal, "changed", "changed since the plan was made")
    except StoreError as error:
        return Spared(removal, "failed", error.reason)
    return None


def _same(now: FileInfo | None, then: FileInfo | None) -> bool:
    if now is None or then is None:
        # Another prune may be between the two files of an entry; a missing date is no use.
        return now is None
    return same_file(now, then)
