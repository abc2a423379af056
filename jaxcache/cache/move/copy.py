"""Copy entries from one cache to another, each compared by its payload."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from jaxcache.cache.gate import Gate, Signed
from jaxcache.cache.inventory import Inventory, take_inventory
from jaxcache.cache.ledger.segments import Ledger
from jaxcache.cache.move.arrive import choose_all, receive
from jaxcache.cache.move.check import Check
from jaxcache.cache.move.loop import BUDGET_BYTES, open_step
from jaxcache.cache.move.offer import ExportPlan
from jaxcache.cache.move.step import WRITES, Item, MoveAction, Outcome, Plan, Step
from jaxcache.cache.move.stores import StoreSource
from jaxcache.cache.move.sync import has_atimes
from jaxcache.cache.scan import Progress
from jaxcache.store.base import Store

_WITH_ORIGINS = partial(Check, origins=True)


class CopyPlan(NamedTuple):
    """A plan, and the source that carries it out."""

    plan: Plan
    source: StoreSource
    now_ns: int


def plan_copy(
    source: Store,
    export: ExportPlan,
    target: Store | None,
    *,
    cache_dir: str,
    on_conflict: str = "keep",
    signed: Signed | None = None,
    allow_large: bool = False,
    make_check: Callable[[Gate, Ledger], Check] = _WITH_ORIGINS,
    progress: Progress | None = None,
) -> CopyPlan:
    """Compare what a cache offers with what another has; what both have is read on both sides.

    Args:
        target: None where its directory does not exist yet.
        signed, allow_large: the policy of the target, see :class:`jaxcache.cache.gate.Gate`.
        make_check: makes the check that each entry must pass.

    Raises:
        UsageError, JaxcacheError: see :func:`jaxcache.cache.move.arrive.plan_import`.
    """
    gate = Gate(signed=signed, allow_large=allow_large)
    sender = StoreSource(source, make_check(gate, export.ledger))

    def read(item: Item) -> Item | Step:
        found = open_step(sender, Step(item, MoveAction.WRITE), None, export.now_ns)
        if isinstance(found, Step):
            return found
        found.close()
        return replace(item, facts=found.facts)

    offered = [step.item for step in export.steps if step.action is MoveAction.WRITE]
    chosen = choose_all(target, offered, on_conflict, read=read, progress=progress)
    by_name = {step.name: step for step in chosen}
    inventory = take_inventory(target) if target else Inventory()
    dated = any(item.used_ns is not None for item in offered)
    plan = Plan(
        source.url,
        cache_dir,
        tuple(s if s.action is not MoveAction.WRITE else by_name[s.name] for s in export.steps),
        entries=sum(item.key is not None for item in offered),
        with_atimes=has_atimes(inventory, target, offered=dated),
    )
    return CopyPlan(plan, sender, export.now_ns)


def execute_copy(
    target: Store | None,
    copy: CopyPlan,
    *,
    atomic: bool = False,
    progress: Progress | None = None,
) -> Outcome:
    """Carry out a plan; see :func:`jaxcache.cache.move.arrive.execute_import`.

    Args:
        target: None for a dry run, which reads and checks everything.
    """
    return receive(
        target,
        copy.source,
        copy.plan,
        now_ns=copy.now_ns,
        budget_bytes=BUDGET_BYTES,
        atomic=atomic,
        progress=progress,
    )


def is_left_out(step: Step) -> bool:
    """Return whether a step ended before its entry was read whole, so that nothing came of it."""
    ended = (MoveAction.STRAY, MoveAction.DAMAGED, MoveAction.UNFINISHED, MoveAction.FAILED)
    return step.action in ended and step.item.facts is None


def offers_anything(export: ExportPlan) -> bool:
    """Return whether a plan has anything to copy."""
    return any(step.action in WRITES for step in export.steps)
