"""Look at a cache as far as a plan to remove something needs it."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from jaxcache.cache.heads import Facts, Request, read_facts
from jaxcache.cache.prune.plan import PrunePlan, plan_prune, plan_removal
from jaxcache.cache.prune.removable import Lookup
from jaxcache.cache.prune.removal import Removal
from jaxcache.cache.scan import Progress, Scan, scan
from jaxcache.cache.select import REMOVAL_PREFIX, select_by_keys
from jaxcache.errors import JaxcacheError
from jaxcache.options import PruneOptions
from jaxcache.store.base import Store

if TYPE_CHECKING:
    from jaxcache.cache.index import Index


def plan_cache_prune(
    store: Store,
    options: PruneOptions,
    *,
    keep: Sequence[str] = (),
    lookup: Lookup | None = None,
    now_ns: int,
    index: "Index | None" = None,
    workers: int = 1,
    progress: Progress | None = None,
) -> PrunePlan:
    """Scan a cache and plan its pruning, opening as few entries as the policy allows.

    Args:
        keep: KEY arguments; each must fit an entry, so that a typing error deletes nothing.
        index: what earlier scans read, where opening entries is slow.
        workers: processes to read with in a large directory.

    Raises:
        UsageError: ``no-bound``.
        NoCacheError
        UsageError: ``short-prefix``.
        JaxcacheError: ``no-match`` or ``ambiguous-key`` for a ``keep``; ``no-record-of-use``
            where ``used_since`` would take entries of a cache that records no use at all.
    """
    options.check()
    bounded = options.max_size_bytes is not None or options.max_entries is not None
    heads = options.policy == "cost" and bounded
    seen = scan(store, heads=heads, deep=True, index=index, workers=workers, progress=progress)
    if index is not None:
        index.save(file.info.name for file in seen.inventory.entries)
    kept = {e.key for e in select_by_keys(seen.entries, keep)} if keep else set()
    plan = plan_prune(seen, options, cache_dir=store.url, now_ns=now_ns, keep=kept, lookup=lookup)
    if plan.undated and not _records_use(seen, lookup):
        raise JaxcacheError(
            f"nothing in {store.url} records which entries were used",
            code="no-record-of-use",
            hint="run the program through jaxcache run, which does, or bound the size instead",
        )
    return plan if heads else replace(plan, removals=price(store, seen, plan.removals, workers))


def _records_use(seen: Scan, lookup: Lookup | None) -> bool:
    if any(e.last_used_from != "mtime" for e in seen.entries):
        return True
    known = (lookup(e.key) for e in seen.entries) if lookup else ()
    return any(record is not None and record.last_hit_ns for record in known)


def price(
    store: Store, seen: Scan, removals: Sequence[Removal], workers: int = 1
) -> tuple[Removal, ...]:
    """Fill in the compile seconds of removals that a scan without heads left unknown.

    Not where that takes a request for each.
    """
    if store.remote:
        return tuple(removals)
    unknown = {r.file.name for r in removals if r.key is not None and r.compile_seconds is None}
    files = [f for f in seen.inventory.entries if f.info.name in unknown]
    requests = [Request(f.info.name, f.info.size_bytes, None, True) for f in files]
    facts = zip(requests, read_facts(store, requests, workers=workers), strict=True)
    seconds = {r.name: _seconds(found) for r, found in facts}
    return tuple(
        r._replace(compile_seconds=seconds.get(r.file.name)) if r.file.name in unknown else r
        for r in removals
    )


def _seconds(facts: Facts) -> float | None:
    seconds = facts.head.compile_seconds if facts.head else None
    return None if seconds is None else float(seconds)


def plan_cache_removal(
    store: Store,
    keys: Sequence[str],
    *,
    lookup: Lookup | None = None,
    now_ns: int,
    workers: int = 1,
    progress: Progress | None = None,
) -> PrunePlan:
    """Plan to remove exactly the entries that KEY arguments name.

    Raises:
        NoCacheError
        JaxcacheError: ``no-match``, ``ambiguous-key``, or ``pinned``.
    """
    seen = scan(store, heads=False, deep=True, workers=workers, progress=progress)
    chosen = select_by_keys(seen.entries, keys, shortest_prefix=REMOVAL_PREFIX)
    plan = plan_removal(seen, chosen, cache_dir=store.url, now_ns=now_ns, lookup=lookup)
    return replace(plan, removals=price(store, seen, plan.removals, workers))
