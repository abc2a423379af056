"""Carry out a save: a bundle that appears whole, or a shared cache that keeps a record of use."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from jaxcache.cache.ci.save import SavePlan
from jaxcache.cache.ci.staging import sealed_copy
from jaxcache.cache.ledger.record import HIT, Event
from jaxcache.cache.ledger.segments import Ledger, append, compact
from jaxcache.cache.prune.execute import remove
from jaxcache.cache.prune.plan import plan_prune, weighs_seconds
from jaxcache.cache.prune.removable import total_bytes
from jaxcache.cache.scan import Progress, scan
from jaxcache.cache.sync.execute import execute
from jaxcache.cache.sync.plan import plan_sync
from jaxcache.core.ledger import COMPACT_ABOVE
from jaxcache.model import Problem
from jaxcache.options import PruneOptions
from jaxcache.options.move import SyncOptions
from jaxcache.store.base import Store


@dataclass(frozen=True, slots=True)
class Saved:
    """The result of executing a plan."""

    written: int
    """Entries in the bundle, or new in the shared cache."""
    size_bytes: int
    """The size of the bundle, or of the files written into the shared cache."""
    left_out: tuple[Problem, ...] = ()
    pruned: int = 0
    """Entries that the shared cache gave up for its bounds."""
    failed: tuple[str, ...] = ()


def save_shared(
    store: Store,
    target: Store,
    plan: SavePlan,
    *,
    bounds: PruneOptions | None,
    private_keys: Sequence[Any] = (),
    now_ns: int,
    progress: Progress | None = None,
) -> Saved:
    """Add to a cache that other jobs share; what they put there stays unless a bound takes it.

    Uses are recorded there in any case: by them the bounds judge.

    Raises:
        NoCacheError: it cannot be reached.
        JaxcacheError: ``bound-out-of-reach``; LockedError
    """
    saved, learnt = Saved(0, 0), [Event(e.key, HIT, now_ns) for e in plan.usage.used]
    if plan.saves:
        with sealed_copy(store, plan.export) as (staged, left_out):
            syncing = plan_sync(staged, target, SyncOptions(ledger=False), now_ns=now_ns)
            done = execute(
                staged, target, syncing, signers=private_keys, now_ns=now_ns, progress=progress
            )
            carried = {t.key for t in done.carried}
            learnt += [e for e in Ledger.load(staged).events() if e.key in carried]
        failed = tuple(f"{f.transfer.info.name}: {f.reason}" for f in done.failed)
        saved = Saved(len(done.carried), done.carried_bytes, left_out, failed=failed)
    append(target, learnt)
    if len(Ledger.load(target).segments) > COMPACT_ABOVE:
        compact(target)
    if bounds is None or not _binds(target, bounds):
        return saved
    seen = scan(target, heads=weighs_seconds(bounds), deep=True)
    pruning = plan_prune(seen, bounds, cache_dir=target.url, now_ns=now_ns)
    return replace(saved, pruned=len(remove(target, pruning.removals).removed))


def _binds(target: Store, bounds: PruneOptions) -> bool:
    """Return whether there is anything to prune, by names alone: a value costs a request."""
    if bounds.by_age or bounds.max_size_bytes is None:
        return True
    return total_bytes(scan(target, heads=False, deep=True)) > bounds.max_size_bytes
