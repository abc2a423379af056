"""Carry out removals while JAX processes may run.

JAX with a size cap takes ``.lockfile`` for every read and write and waits 10 s for it at the most
(``jax/_src/lru_cache.py``). So the lock is held for a few files at a time and let go in between,
long enough for a process that polls it to get it.
"""

import contextlib
import time
from collections.abc import Sequence

from jaxcache.cache import files as entry_files
from jaxcache.cache.ledger.record import REMOVED, Event
from jaxcache.cache.ledger.write import append, compact
from jaxcache.cache.prune.removable import Execution, Removal, SkippedRemoval
from jaxcache.core.ledger import COMPACT_ABOVE
from jaxcache.core.names import LEDGER_DIR
from jaxcache.errors import JaxcacheError
from jaxcache.model import FileInfo, report_progress
from jaxcache.store.base import FileLock, Store, StoreError, same_file
from jaxcache.store.concurrency import map_ordered

_USED = "used since the plan was made"


def remove(
    store: Store, removals: Sequence[Removal], *, file_lock: "FileLock | None" = None
) -> Execution:
    """Remove files in the order of the plan, each looked at again before.

    An entry that changed or was used since the plan was made stays. A file that another process
    removed first is not an error. Directories stay, even empty ones: a compiler makes one and
    writes into it in two steps.

    Args:
        file_lock: the layout's locks of single files; by default JAX's lock is held, at most 50 ms
            at a stretch.

    Raises:
        LockedError: the lock was not obtained; what was removed until then stays removed.
    """
    if store.remote and file_lock is None:
        done = _remove_remote(store, removals)
        _compact_remote(store)
        return done
    began_ns = time.time_ns()  # before anything can be compiled again
    removed: list[Removal] = []
    spared: list[SkippedRemoval] = []

    def remove_one(removal: Removal) -> None:
        if reprieve := _remove_one(store, removal, file_lock):
            spared.append(reprieve)
        else:
            removed.append(removal)

    longest = entry_files.run_under_lock(store, remove_one, removals, file_lock=file_lock)
    _end_records(store, removed, began_ns)
    return Execution(tuple(removed), tuple(spared), longest)


def _end_records(store: Store, removed: Sequence[Removal], at_ns: int) -> None:
    """Record that entries were removed: what is recorded of their bytes is of no later file."""
    if any(True for _ in store.list(LEDGER_DIR)):
        append(store, [Event(r.key, REMOVED, at_ns) for r in removed if r.key])


def _compact_remote(store: Store) -> None:
    """Make one segment of those that clients have left, so that the next prune reads few."""
    with contextlib.suppress(JaxcacheError):
        if sum(1 for _ in store.list(LEDGER_DIR)) > COMPACT_ABOVE:
            compact(store)


def _remove_remote(store: Store, removals: Sequence[Removal]) -> Execution:
    """Remove many objects with few requests, without a lock and in no fixed order.

    Entries are removed before their ``-atime``. They are sorted by name, so that those that are
    checked together are next to each other.
    """
    ordered = sorted(removals, key=lambda r: r.file.name)
    dated = [(r.file.name, r.atime) for r in ordered if r.atime is not None]
    now_there = map_ordered(lambda pair: entry_files.find(store, pair[1].name), dated)
    used = {
        name for (name, then), now in zip(dated, now_there, strict=True) if not _same(now, then)
    }
    spared = [SkippedRemoval(r, "used", _USED) for r in ordered if r.file.name in used]
    going = [r for r in ordered if r.file.name not in used]
    removed: list[Removal] = []
    outcomes = store.delete_many([r.file for r in going])
    for done, (removal, outcome) in enumerate(zip(going, outcomes, strict=True), 1):
        if isinstance(outcome, StoreError):
            spared.append(SkippedRemoval(removal, "failed", outcome.reason))
        elif outcome:
            removed.append(removal)
        else:
            spared.append(
                SkippedRemoval(removal, "changed", "changed since the plan was made, or gone")
            )
        report_progress(done, len(going))
    stamps = [r.atime for r in removed if r.atime is not None]
    for _ in store.delete_many(stamps):
        pass
    order = {r.file.name: number for number, r in enumerate(removals)}
    removed.sort(key=lambda r: order[r.file.name])
    spared.sort(key=lambda s: order[s.removal.file.name])
    return Execution(tuple(removed), tuple(spared), 0.0)


def _remove_one(
    store: Store, removal: Removal, file_lock: "FileLock | None"
) -> SkippedRemoval | None:
    """Remove one thing, ``-cache`` before ``-atime``; return why if it was not removed."""
    name = removal.file.name
    try:
        with entry_files.hold_file_lock(store, name, file_lock) as held:
            if not held:
                return SkippedRemoval(removal, "used", "its compiler is writing it")
            stamp = entry_files.atime_name(name) if removal.kind == "entry" else None
            if stamp and not _same(entry_files.find(store, stamp), removal.atime):
                return SkippedRemoval(removal, "used", _USED)
            if entry_files.is_temporary(name):
                alive = SkippedRemoval(removal, "used", "its writer may be alive")
                return None if entry_files.remove_leftover(store, name) else alive
            if removal.atime:
                deleted = entry_files.remove_entry(store, removal.file)
            else:
                deleted = store.delete(name, expected=removal.file)
            if deleted:
                return None
        if entry_files.find(store, name) is None:
            return SkippedRemoval(removal, "gone", "another process removed it")
        return SkippedRemoval(removal, "changed", "changed since the plan was made")
    except StoreError as error:
        return SkippedRemoval(removal, "failed", error.reason)


def _same(now: FileInfo | None, then: FileInfo | None) -> bool:
    if now is None or then is None:
        # Another prune may be between the two files of an entry; a missing date is not a use.
        return now is None
    return same_file(now, then)
