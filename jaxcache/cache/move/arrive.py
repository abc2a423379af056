"""Put what a bundle holds into a cache: look at what is there, plan, then write.

Nothing is written before every byte of the bundle has been compared with the digests in its
manifest. Entries are written as sealed frames, each atomically and its ``-atime`` before it, so
that whatever interrupts an import leaves whole entries, and a second run does the rest. No lock is
taken: JAX looks at a new entry only under its final name, and never at ours before.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from jaxcache.cache.bundle.check import verify_bundle
from jaxcache.cache.bundle.format import Bundle
from jaxcache.cache.bundle.manifest import JAX, BundleError
from jaxcache.cache.gate import Gate
from jaxcache.cache.inventory import Inventory, take_inventory
from jaxcache.cache.ledger.record import PAYLOAD, Event, digest_facts
from jaxcache.cache.ledger.segments import Ledger, append
from jaxcache.cache.leftovers import delete_leftovers, staging
from jaxcache.cache.move.choose import choose, counted, look_at_payloads, refuse_conflicts
from jaxcache.cache.move.loop import move
from jaxcache.cache.move.offer import refuse_side_file
from jaxcache.cache.move.step import (
    WRITES,
    Item,
    MoveAction,
    MoveSource,
    Outcome,
    Plan,
    Step,
    bundle_items,
)
from jaxcache.cache.move.stores import NoTarget, StagedTarget, StoreTarget
from jaxcache.cache.move.sync import has_atimes
from jaxcache.cache.move.unpack import BundleSource
from jaxcache.cache.scan import Progress
from jaxcache.core.names import AUTOTUNE_DIR
from jaxcache.model import FileInfo
from jaxcache.store.ahead import in_order
from jaxcache.store.base import Store, StoreError

#: More than there are cores: most of their time goes into waiting for the disk to sync.
_WRITERS = 8
#: What the payloads out of a bundle hold, while they are compressed.
_BUDGET_BYTES = 32 << 20


def plan_import(
    store: Store | None,
    bundle: Bundle,
    *,
    cache_dir: str,
    on_conflict: str = "keep",
    side_caches: bool = True,
    wanted: Callable[[Item], str | None] | None = None,
    progress: Progress | None = None,
) -> Plan:
    """Look at what is there already, and decide for each entry.

    Args:
        store: the cache; None where its directory does not exist yet.
        on_conflict: what to do where the same key has another payload or header that is sound.
        wanted: returns why an entry does not come in; every one does if None.

    Raises:
        UsageError: ``on_conflict`` is none of :data:`jaxcache.cache.move.choose.ON_CONFLICT`.
        JaxcacheError: ``conflict`` where it is ``fail`` and there is one.
    """
    if bundle.manifest.layout != JAX:
        raise BundleError(
            f"{bundle.name} holds a cache of {bundle.manifest.layout}, not of JAX",
            code="other-layout",
            hint="put it into a cache with: jaxcache import",
        )
    refused = (bundle if bundle.refused is not None else verify_bundle(bundle)).refused or {}

    def refuse(item: Item) -> Step | None:
        if item.name in refused:
            reason, untrusted = refused[item.name]
            return Step(item, MoveAction.UNTRUSTED if untrusted else MoveAction.DAMAGED, reason)
        reason_left = wanted(item) if wanted is not None and item.key is not None else None
        if item.key is None:
            reason_left = refuse_side_file(item.name, item.content_bytes)
        return Step(item, MoveAction.LEFT, reason_left) if reason_left else None

    items = [i for i in bundle_items(bundle.manifest) if side_caches or i.key is not None]
    steps = choose_all(store, items, on_conflict, refuse=refuse, progress=progress)
    inventory = take_inventory(store) if store else Inventory()
    dated = any(item.atime_ns is not None for item in bundle.manifest.items)
    return Plan(
        bundle.name,
        cache_dir,
        steps,
        entries=len(bundle.manifest.items),
        with_atimes=has_atimes(inventory, store, offered=dated),
    )


def choose_all(
    store: Store | None,
    items: Sequence[Item],
    on_conflict: str,
    *,
    refuse: Callable[[Item], Step | None] = lambda _: None,
    read: Callable[[Item], Item | Step] | None = None,
    progress: Progress | None = None,
) -> tuple[Step, ...]:
    """Decide about items by the payloads that a cache has under their names.

    Args:
        refuse: decides about an item that does not come in.
        read: see :func:`jaxcache.cache.move.choose.look_at_payloads`.

    Raises:
        UsageError, JaxcacheError: see :func:`plan_import`.
    """
    there = _there(store)
    gate = Gate(there)
    look = look_at_payloads(store, on_conflict, read)

    def plan_step(item: Item) -> Step:
        return refuse(item) or choose(item, there, gate, look)

    remote = store is not None and store.remote
    found = in_order(plan_step, items) if remote else map(plan_step, items)
    steps = tuple(counted(found, len(items), progress))
    refuse_conflicts(steps, on_conflict, entries=True)
    return steps


def _there(store: Store | None) -> dict[str, FileInfo]:
    """Return everything in the root and below XLA's folder, by name."""
    if store is None:
        return {}
    found = {info.name: info for info in store.list()}
    if AUTOTUNE_DIR in found and found[AUTOTUNE_DIR].type == "dir":
        found.update((info.name, info) for info in store.walk(AUTOTUNE_DIR))
        found.update((info.name, info) for info in store.list(AUTOTUNE_DIR))
    return found


def execute_import(
    store: Store | None,
    bundle: Bundle,
    plan: Plan,
    *,
    level: int | None = None,
    atomic: bool = False,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> Outcome:
    """Write what a plan says. The bundle must have been verified.

    A file that cannot be written ends the import: most likely there is no room for the next one
    either. What was written until then stays, each entry whole; with ``atomic`` nothing stays.

    Args:
        store: None for a dry run.
        level: of the entries' frames; by default one that makes each as small as it was.
    """
    if dry_run or store is None:
        return Outcome(plan, plan.steps, dry_run=True)
    return receive(
        store,
        BundleSource(bundle, level=level),
        plan,
        budget_bytes=_BUDGET_BYTES,
        atomic=atomic,
        ordered=bundle.manifest.layout != JAX,
        progress=progress,
    )


def receive(
    store: Store | None,
    source: MoveSource,
    plan: Plan,
    *,
    now_ns: int = 0,
    workers: int = _WRITERS,
    budget_bytes: int,
    atomic: bool = False,
    ordered: bool = False,
    progress: Progress | None = None,
) -> Outcome:
    """Move what a plan says into a cache that is also told what is recorded of the entries.

    Args:
        store: None for a dry run.
        atomic: all entries, or none.
        ordered: each file after those before it, as torch needs its own.
    """
    moving = partial(
        move,
        source,
        plan=plan,
        now_ns=now_ns,
        workers=1 if ordered else workers,
        budget_bytes=budget_bytes,
        stop_at_failure=True,
        progress=progress,
    )
    if store is None:
        return moving(target=NoTarget(), dry_run=True)
    delete_leftovers(store)
    if not atomic:
        target = StoreTarget(store, plan)
        target.settle = partial(_record, store, target.files)
        if ordered:
            target.batch = 1
        return _settle_races(moving(target=target))
    try:
        with staging(store) as stage:
            staged = StagedTarget(store, plan, stage)
            done = moving(target=staged)
            failed = None if done.failed else staged.commit()
            staged.remove()
    except StoreError as error:
        failed = error
        done = Outcome(plan, plan.steps)
    if failed is not None:
        done = replace(done, steps=tuple(_fail(done.steps, failed)))
    if done.failed:
        return replace(done, steps=tuple(_roll_back(done.steps)), rolled_back=True)
    _record(store, {}, {step.name: step for step in done.written})
    return done


def _settle_races(done: Outcome) -> Outcome:
    """Count what another process wrote meanwhile as failed: nobody has compared it."""
    return replace(
        done,
        steps=tuple(
            replace(s, action=MoveAction.FAILED) if s.action is MoveAction.OVERTAKEN else s
            for s in done.steps
        ),
    )


def _fail(steps: Iterable[Step], error: StoreError) -> Iterator[Step]:
    """Yield steps of which the one of a failure has failed, or the first."""
    steps = list(steps)
    writes = [step for step in steps if step.action in WRITES]
    names = {step.name for step in writes}
    failed = error.name if error.name in names else (writes[0].name if writes else "")
    for step in steps:
        if step.name == failed:
            yield replace(step, action=MoveAction.FAILED, detail=error.reason)
        else:
            yield step


def _roll_back(steps: Iterable[Step]) -> Iterator[Step]:
    for step in steps:
        if step.action in WRITES or step.action is MoveAction.OVERTAKEN:
            yield replace(step, action=MoveAction.UNTRIED)
        else:
            yield step


def _record(store: Store, files: Mapping[str, FileInfo], written: Mapping[str, Step]) -> None:
    """Append to the ledger the digests of entries that were written, and the events with them."""
    append(store, list(events_of(written.values(), files, Ledger.load(store))))


def events_of(
    written: Iterable[Step], files: Mapping[str, FileInfo], known: Ledger
) -> Iterator[Event]:
    """Yield the digests of entries, and their events where a ledger does not know the key.

    Args:
        files: the files that were written, by name.
    """
    now_ns = time.time_ns()
    for step in written:
        item = step.item
        if item.key is None or item.sha256 is None:
            continue
        facts = {"payload_sha256": item.sha256, "file_mtime_ns": item.created_ns}
        if step.name in files:
            facts = digest_facts(item.sha256, files[step.name])
        yield Event(item.key, PAYLOAD, item.created_ns, facts)
        if item.key not in known:
            yield from (e for event in item.events if (e := event.imported(now_ns)))
