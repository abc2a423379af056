"""``push``, ``pull`` and ``copy``: what one cache lacks of another, file by file."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import partial

from jaxcache.cache.files import EntryFile, Inventory
from jaxcache.cache.index import Index
from jaxcache.cache.move import export_plan, stores
from jaxcache.cache.move import plan as plans
from jaxcache.cache.move.execute import open_step
from jaxcache.cache.prune.plan import plan_prune
from jaxcache.cache.scan import Scan, ScanAids, scan
from jaxcache.cache.verify.check import ImportPolicy, Signed
from jaxcache.entry.summary import Entry
from jaxcache.model import Depth
from jaxcache.options import PruneOptions
from jaxcache.options.move import SyncOptions
from jaxcache.store.base import Store


def plan_sync(
    source: Store,
    target: Store | None,
    options: SyncOptions | None = None,
    *,
    target_url: str = "",
    now_ns: int,
    signed: Signed | None = None,
    index: Index | None = None,
    fits: Callable[[plans.Item, plans.ItemFacts], str | None] | None = None,
    on_conflict: str | None = None,
) -> plans.Plan:
    """Compare two caches by their listings, or by what both hold.

    By their listings, those entries of a local target that are truncated are replaced; nothing
    else there is read. A limit opens entries of the target for their compile seconds.

    Args:
        target: None if its directory does not exist yet; then ``target_url`` names it.
        signed: the policy of the target, see :class:`jaxcache.cache.verify.check.ImportPolicy`.
        index: of the target, to spare opening its entries then.
        fits: see :class:`jaxcache.cache.move.execute.Check`.
        on_conflict: see :func:`plan_copy`.

    Raises:
        NoCacheError: one of them cannot be listed.
        UsageError, JaxcacheError: a limit that cannot be kept; see
            :func:`jaxcache.cache.prune.plan.plan_prune`.
    """
    options = options or SyncOptions()
    # Nobody signs a ledger, and its digests and pins would steer `verify --fix` and `prune`.
    records = options.ledger and signed is None
    by_use = on_conflict is None
    export = plan_offer(source, options, records=records, by_use=by_use, now_ns=now_ns)
    limited = options.max_size_bytes is not None
    theirs = _scan_target(target, index) if limited else None
    plan = plan_copy(
        source,
        export,
        target,
        cache_dir=target.url if target else target_url,
        on_conflict=on_conflict,
        signed=signed,
        # Whoever takes an entry out of a bucket checks how far it inflates.
        allow_large=options.allow_large or (target is not None and target.remote),
        origins=on_conflict is not None or fits is not None or source.remote,
        fits=fits,
        inventory=theirs.inventory if theirs else None,
    )
    if on_conflict is None:
        plan = replace(plan, steps=tuple(sorted(plan.steps, key=lambda s: (s.key is None, s.name))))
    ours = export.seen or Scan((), Inventory(), ())
    plan = replace(
        plan,
        entries=len(ours.inventory.entries),
        records=options.ledger,
        runs=records,
        segments=stores.missing_segments(export.ledger, target)
        if records and on_conflict is None
        else (),
    )
    return make_room(plan, ours, theirs, options, now_ns) if theirs else plan


def plan_offer(
    source: Store, options: SyncOptions, *, records: bool = True, by_use: bool = True, now_ns: int
) -> export_plan.ExportPlan:
    """Choose what a cache offers to another.

    Args:
        by_use: date entries by their last use, not by their ``-atime`` files.
        records: whether the events of the ledger go with their entries.
    """
    return export_plan.plan_export(
        source,
        filters=options.filters,
        only=partial(_is_selected, options),
        side_caches=options.side_caches and not options.filters,
        depth=Depth.DATED if options.max_size_bytes is None or source.remote else Depth.OPENED,
        by_use=by_use,
        records=records,
        now_ns=now_ns,
    )


def plan_copy(
    source: Store,
    export: export_plan.ExportPlan,
    target: Store | None,
    *,
    cache_dir: str,
    on_conflict: str | None = "keep",
    signed: Signed | None = None,
    allow_large: bool = False,
    origins: bool = True,
    fits: Callable[[plans.Item, plans.ItemFacts], str | None] | None = None,
    inventory: Inventory | None = None,
) -> plans.Plan:
    """Compare what a cache offers with what another has.

    Args:
        target: None where its directory does not exist yet.
        on_conflict: what to do where both have an entry with other contents; what both have is
            read on both sides. None compares names alone, and the sizes of truncated entries.
        signed, allow_large: see :class:`jaxcache.cache.verify.check.ImportPolicy`, of the target.
        origins, fits: see :class:`jaxcache.cache.move.execute.Check`.
        inventory: of the target, if the caller has listed it.

    Raises:
        UsageError, JaxcacheError: see :func:`jaxcache.cache.move.import_bundle.plan_import`.
    """
    check = plans.Check(
        ImportPolicy(signed=signed, allow_large=allow_large),
        export.ledger,
        origins=origins,
        fits=fits,
    )
    sender = stores.StoreSource(source, check)

    def read(item: plans.Item) -> plans.Item | plans.Step:
        parcel = open_step(sender, plans.Step(item, plans.MoveAction.WRITE), None, export.now_ns)
        if isinstance(parcel, plans.Step):
            return parcel
        parcel.close()
        return replace(item, facts=parcel.facts)

    inventory = inventory or export_plan.list_target(target)
    if on_conflict is None:
        look = export_plan.look_at_frames(target, export.now_ns)
        steps = export_plan.choose_all(export.steps, inventory, look)
    else:
        steps = export_plan.compare_payloads(
            target, export.steps, inventory, on_conflict, read=read
        )
    return plans.Plan(
        export.cache_dir,
        cache_dir,
        steps,
        entries=sum(step.key is not None for step in export.writes),
        with_atimes=export_plan.has_atimes(inventory, target, dated=export.dated),
        by_name=on_conflict is None,
        check=check,
    )


def _scan_target(target: Store | None, index: Index | None) -> Scan:
    if target is None:
        return Scan((), Inventory(), ())
    scan_result = scan(target, ScanAids(index, unfilled=True), deep=True)
    if index is not None:
        index.save(file.info.name for file in scan_result.inventory.entries)
    return scan_result


def _is_selected(options: SyncOptions, entry: Entry) -> bool:
    def fits(globs: Sequence[str]) -> bool:
        return any(
            fnmatchcase(entry.module, glob) or fnmatchcase(entry.key, glob) for glob in globs
        )

    return (not options.include or fits(options.include)) and not fits(options.exclude)


def make_room(
    plan: plans.Plan, ours: Scan, theirs: Scan, options: SyncOptions, now_ns: int
) -> plans.Plan:
    """Leave out, or remove from the target, the entries that are worth least until all fit.

    The planner of ``prune`` chooses from the target as it would be with all new entries.

    Raises:
        JaxcacheError: ``pins-unread``, and as :func:`jaxcache.cache.prune.plan.plan_items`.
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
    # For pins and values, the target's own records have priority.
    ledgers = [s.ledger for s in (theirs, ours) if s.ledger is not None]
    for ledger in ledgers if options.make_room else ():
        ledger.check_pins()
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
        replace(s, action=plans.MoveAction.NO_ROOM)
        if s.action in plans.WRITES and s.name in going
        else s
        for s in plan.steps
    )
    return replace(
        plan,
        steps=tuple(steps),
        removals=tuple(r for r in pruned.removals if r.file.name not in names),
        unmet=bool(pruned.unmet),
    )
