"""Keep a bound: the planner of ``prune``, over the target as it would be with all that comes."""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from jaxcache.cache.inventory import EntryFile, Inventory
from jaxcache.cache.prune.plan import plan_prune
from jaxcache.cache.prune.removable import Lookup
from jaxcache.cache.scan import Scan
from jaxcache.model import Entry
from jaxcache.options import PruneOptions

if TYPE_CHECKING:
    from jaxcache.cache.sync.plan import SyncPlan


def make_room(
    plan: "SyncPlan",
    target: Scan,
    source_entries: Mapping[str, Entry],
    max_size_bytes: int,
    *,
    remove: bool,
    now_ns: int,
    lookup: Lookup | None,
) -> "SyncPlan":
    """Leave behind, or remove from the target, what is worth least until all fits.

    Args:
        target: a deep scan, with heads.
        source_entries: by file.
        remove: whether entries of the target may go.
    """
    coming: list[EntryFile] = [t.file for t in plan.transfers if t.file]
    names = {file.info.name for file in coming}
    inventory = target.inventory
    union = Scan(
        (
            *(e for e in target.entries if e.file not in names),  # a torn one is replaced
            *(source_entries[file.info.name] for file in coming),
        ),
        Inventory(
            [*(f for f in inventory.entries if f.info.name not in names), *coming],
            inventory.atimes,
            inventory.others,
        ),
        (),
    )
    pruned = plan_prune(
        union,
        PruneOptions(max_size_bytes=max_size_bytes, grace_seconds=0),
        cache_dir=plan.target,
        now_ns=now_ns,
        keep=() if remove else {e.key for e in target.entries},
        lookup=lookup,
    )
    going = {r.file.name for r in pruned.removals}
    return replace(
        plan,
        transfers=tuple(t for t in plan.transfers if t.info.name not in going),
        no_room=tuple(t for t in plan.transfers if t.info.name in going),
        removals=tuple(r for r in pruned.removals if r.file.name not in names),
        unmet=bool(pruned.unmet),
    )
