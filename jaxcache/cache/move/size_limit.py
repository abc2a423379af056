"""Keep the target of a move within a limit."""

from dataclasses import replace

from jaxcache.cache.inventory import EntryFile, Inventory
from jaxcache.cache.move.plan import WRITES, MoveAction, Plan
from jaxcache.cache.prune.plan import plan_prune
from jaxcache.cache.scan import Scan
from jaxcache.options import PruneOptions
from jaxcache.options.move import SyncOptions


def make_room(plan: Plan, ours: Scan, theirs: Scan, options: SyncOptions, now_ns: int) -> Plan:
    """Leave behind, or remove from the target, what is worth least until all fits.

    The planner of ``prune`` chooses, over the target as it would be with all that comes.
    """
    names = {step.name for step in plan.writes if step.key is not None}
    coming: list[EntryFile] = [f for f in ours.inventory.entries if f.info.name in names]
    coming.sort(key=lambda file: file.info.name)
    inventory = theirs.inventory
    entries = {e.file: e for e in ours.entries}
    union = Scan(
        (
            *(e for e in theirs.entries if e.file not in names),  # a truncated one is replaced
            *(entries[file.info.name] for file in coming),
        ),
        Inventory(
            [*(f for f in inventory.entries if f.info.name not in names), *coming],
            inventory.atimes,
            inventory.others,
        ),
        (),
    )
    # Of pins and values, what the target knows counts first.
    ledgers = [scan_result.ledger for scan_result in (theirs, ours) if scan_result.ledger]
    pruned = plan_prune(
        union,
        PruneOptions(max_size_bytes=options.max_size_bytes, grace_seconds=0),
        cache_dir=plan.target,
        now_ns=now_ns,
        keep=() if options.make_room else {e.key for e in theirs.entries},
        lookup=lambda key: next((r for ledger in ledgers if (r := ledger.record(key))), None),
    )
    going = {r.file.name for r in pruned.removals}
    steps = (
        replace(s, action=MoveAction.NO_ROOM) if s.action in WRITES and s.name in going else s
        for s in plan.steps
    )
    return replace(
        plan,
        steps=tuple(steps),
        removals=tuple(r for r in pruned.removals if r.file.name not in names),
        unmet=bool(pruned.unmet),
    )
