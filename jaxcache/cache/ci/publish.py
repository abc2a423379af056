"""Carry out a save: a bundle that appears whole, or a shared cache that keeps a record of use."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from jaxcache.cache.ci.save import SavePlan
from jaxcache.cache.ledger.record import HIT, Event
from jaxcache.cache.ledger.segments import Ledger
from jaxcache.cache.ledger.write import append, compact
from jaxcache.cache.move.import_bundle import events_of
from jaxcache.cache.move.plan import MoveAction, Outcome, Plan
from jaxcache.cache.move.sync import execute, plan_copy
from jaxcache.cache.prune.execute import remove
from jaxcache.cache.prune.plan import plan_prune, weighs_seconds
from jaxcache.cache.prune.removable import total_bytes
from jaxcache.cache.scan import Progress, scan
from jaxcache.core.ledger import COMPACT_ABOVE
from jaxcache.model import Problem
from jaxcache.options import PruneOptions
from jaxcache.store.base import Store

_LEFT_OUT = (MoveAction.STRAY, MoveAction.BLOCKED, MoveAction.DAMAGED, MoveAction.UNFINISHED)


@dataclass(frozen=True, slots=True)
class SaveResult:
    """The result of executing a plan."""

    written: int
    """Entries in the bundle, or new in the shared cache."""
    size_bytes: int
    """The size of the bundle, or of the files written into the shared cache."""
    left_out: tuple[Problem, ...] = ()
    pruned: int = 0
    """Entries that the shared cache gave up for its bounds."""
    failed: tuple[str, ...] = ()
    dry_run: bool = False

    @property
    def complete(self) -> bool:
        """Whether everything was saved that was to be."""
        return not (self.left_out or self.failed)


def save_result(done: Outcome) -> SaveResult:
    """Sum up a move into a shared cache, or a dry run."""
    left_out = tuple(step.problem for step in done.of(*_LEFT_OUT))
    failed = tuple(f"{s.name}: {s.detail}" for s in done.of(MoveAction.FAILED, MoveAction.UNTRIED))
    if done.dry_run:
        return SaveResult(0, 0, left_out, failed=failed, dry_run=True)
    entries = sum(step.key is not None for step in done.written)
    return SaveResult(entries, done.written_bytes, left_out, failed=failed)


def check_save(
    store: Store, target: Store | None, plan: SavePlan, *, allow_large: bool = False
) -> SaveResult:
    """Read and check what a save would write, and write nothing.

    Args:
        target: the shared cache; None for a bundle, or where its directory does not exist.
    """
    if not plan.saves:
        return SaveResult(0, 0, dry_run=True)
    saving = _plan(store, target, plan, allow_large=allow_large)
    return save_result(execute(store, target, saving, now_ns=plan.export.now_ns, dry_run=True))


def _plan(store: Store, target: Store | None, plan: SavePlan, *, allow_large: bool) -> Plan:
    """Compare what is saved with the names in the shared cache."""
    return plan_copy(
        store,
        plan.export,
        target,
        cache_dir=target.url if target else plan.target,
        on_conflict=None,
        allow_large=allow_large or (target is not None and target.remote),
        origins=False,
    )


def save_shared(
    store: Store,
    target: Store,
    plan: SavePlan,
    *,
    bounds: PruneOptions | None,
    private_keys: Sequence[Any] = (),
    allow_large: bool = False,
    now_ns: int,
    progress: Progress | None = None,
) -> SaveResult:
    """Add to a cache that other jobs share; what they put there stays unless a bound takes it.

    Uses are recorded there in any case: by them the bounds judge.

    Raises:
        NoCacheError: it cannot be reached.
        JaxcacheError: ``bound-out-of-reach``; LockedError
    """
    saved = SaveResult(0, 0)
    learnt = [Event(e.key, HIT, now_ns) for e in plan.usage.used]
    if plan.saves:
        saving = _plan(store, target, plan, allow_large=allow_large)
        done = execute(
            store, target, saving, signers=private_keys, now_ns=now_ns, progress=progress
        )
        learnt += events_of(done.written, {}, Ledger())
        saved = save_result(done)
    append(target, learnt)
    if len(Ledger.load(target).segments) > COMPACT_ABOVE:
        compact(target)
    if bounds is None or not _binds(target, bounds):
        return saved
    scan_result = scan(target, headers=weighs_seconds(bounds), deep=True)
    pruning = plan_prune(scan_result, bounds, cache_dir=target.url, now_ns=now_ns)
    return replace(saved, pruned=len(remove(target, pruning.removals).removed))


def _binds(target: Store, bounds: PruneOptions) -> bool:
    """Return whether there is anything to prune, by names alone: a value costs a request."""
    if bounds.by_age or bounds.max_size_bytes is None:
        return True
    return total_bytes(scan(target, headers=False, deep=True)) > bounds.max_size_bytes
