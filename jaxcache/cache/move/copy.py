"""Plan to copy what one cache offers into another."""

from collections.abc import Callable
from dataclasses import replace

from jaxcache.cache.gate import Gate, Signed
from jaxcache.cache.inventory import Inventory
from jaxcache.cache.move.check import Check
from jaxcache.cache.move.choose import (
    choose_all,
    compare_payloads,
    has_atimes,
    list_target,
    look_at_frames,
)
from jaxcache.cache.move.loop import open_step
from jaxcache.cache.move.offer import ExportPlan
from jaxcache.cache.move.step import Item, ItemFacts, MoveAction, Plan, Step
from jaxcache.cache.move.stores import StoreSource
from jaxcache.cache.scan import Progress
from jaxcache.store.base import Store


def plan_copy(
    source: Store,
    export: ExportPlan,
    target: Store | None,
    *,
    cache_dir: str,
    on_conflict: str | None = "keep",
    signed: Signed | None = None,
    allow_large: bool = False,
    origins: bool = True,
    fits: Callable[[Item, ItemFacts], str | None] | None = None,
    inventory: Inventory | None = None,
    progress: Progress | None = None,
) -> Plan:
    """Compare what a cache offers with what another has.

    Args:
        target: None where its directory does not exist yet.
        on_conflict: what to do where both have an entry with other contents; what both have is
            read on both sides. None compares names alone, and the sizes of truncated entries.
        signed, allow_large: the policy of the target, see :class:`jaxcache.cache.gate.Gate`.
        origins, fits: see :class:`jaxcache.cache.move.check.Check`.
        inventory: of the target, where somebody has listed it.

    Raises:
        UsageError, JaxcacheError: see :func:`jaxcache.cache.move.arrive.plan_import`.
    """
    check = Check(
        Gate(signed=signed, allow_large=allow_large), export.ledger, origins=origins, fits=fits
    )
    sender = StoreSource(source, check)

    def read(item: Item) -> Item | Step:
        found = open_step(sender, Step(item, MoveAction.WRITE), None, export.now_ns)
        if isinstance(found, Step):
            return found
        found.close()
        return replace(item, facts=found.facts)

    inventory = inventory or list_target(target)
    if on_conflict is None:
        look = look_at_frames(target, export.now_ns)
        steps = choose_all(export.steps, inventory, look, progress=progress)
    else:
        steps = compare_payloads(
            target, export.steps, inventory, on_conflict, read=read, progress=progress
        )
    return Plan(
        export.cache_dir,
        cache_dir,
        steps,
        entries=sum(step.key is not None for step in export.writes),
        with_atimes=has_atimes(inventory, target, dated=export.dated),
        check=check,
    )


def is_left_out(step: Step) -> bool:
    """Return whether a step ended before its entry was read whole, so that nothing came of it."""
    ended = (MoveAction.STRAY, MoveAction.DAMAGED, MoveAction.UNFINISHED, MoveAction.FAILED)
    return step.action in ended and step.item.facts is None
