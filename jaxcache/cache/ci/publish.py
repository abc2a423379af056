"""Carry out a save: a bundle that appears whole, or a shared cache that keeps a record of use."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from jaxcache.cache.bundle.deliver import bundle_bytes, make_in_between, write_file
from jaxcache.cache.bundle.importing import plan_import
from jaxcache.cache.bundle.pack import write_stream
from jaxcache.cache.bundle.unpack import execute_import
from jaxcache.cache.ci.save import SavePlan
from jaxcache.cache.evict import remove
from jaxcache.cache.ledger import COMPACT_ABOVE, Ledger, append, compact
from jaxcache.cache.ledger_record import HIT, Event
from jaxcache.cache.prune import PruneOptions
from jaxcache.cache.scan import Progress
from jaxcache.cache.survey import plan_cache_prune
from jaxcache.model import Problem
from jaxcache.store.base import Store


@dataclass(frozen=True, slots=True)
class Saved:
    """What became of a plan."""

    written: int
    """Entries in the bundle, or new in the shared cache."""
    size_bytes: int
    """Of the bundle, or of what was written into the shared cache."""
    left_out: tuple[Problem, ...] = ()
    pruned: int = 0
    """Entries that the shared cache gave up for its bounds."""
    failed: tuple[str, ...] = ()


def save_bundle(
    store: Store,
    plan: SavePlan,
    *,
    level: int,
    private_keys: Sequence[Any] = (),
    folder: str | None = None,
    progress: Progress | None = None,
) -> Saved:
    """Write the bundle at ``plan.target``; who reads it meanwhile reads the old one.

    Raises:
        JaxcacheError: ``io-error``, ``changed``
    """
    exported = write_stream(store, plan.export, level=level, folder=folder, progress=progress)
    with exported.stream:
        write_file(plan.target, bundle_bytes(exported, private_keys))
    size_bytes = os.stat(plan.target).st_size
    return Saved(len(exported.manifest.items), size_bytes, exported.left_out)


def save_shared(
    store: Store,
    target: Store,
    plan: SavePlan,
    *,
    bounds: PruneOptions | None,
    now_ns: int,
    progress: Progress | None = None,
) -> Saved:
    """Add to a cache that other jobs share; what they put there stays unless a bound takes it.

    Uses are recorded there in any case: by them the bounds judge.

    Raises:
        JaxcacheError: ``bound-out-of-reach``; LockedError
    """
    saved = Saved(0, 0)
    if plan.saves:
        bundle, exported = make_in_between(store, plan.export)
        with bundle.file:
            importing = plan_import(target, bundle, cache_dir=target.url)
            done = execute_import(target, bundle, importing, progress=progress)
        saved = Saved(
            len(done.written),
            sum(target.info(s.name).size_bytes for s in done.written),
            exported.left_out,
            failed=tuple(f"{f.name}: {f.detail}" for f in done.failed),
        )
    append(target, (Event(e.key, HIT, now_ns) for e in plan.usage.used))
    if len(Ledger.load(target).segments) > COMPACT_ABOVE:
        compact(target)
    if bounds is not None:
        ledger = Ledger.load(target)
        pruning = plan_cache_prune(target, bounds, lookup=ledger.record, now_ns=now_ns)
        saved = replace(saved, pruned=len(remove(target, pruning.removals).removed))
    return saved
