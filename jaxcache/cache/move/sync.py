"""``push`` and ``pull``: what one cache lacks of another, by two listings, file by file."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import partial
from typing import TYPE_CHECKING, Any

from jaxcache.cache.gate import Gate, Signed
from jaxcache.cache.inventory import EntryFile, Inventory
from jaxcache.cache.ledger.record import Event
from jaxcache.cache.ledger.segments import Ledger, append
from jaxcache.cache.leftovers import delete_leftovers
from jaxcache.cache.move.copy import plan_copy
from jaxcache.cache.move.ledgers import arrivals, carry_segments, missing_segments
from jaxcache.cache.move.loop import move
from jaxcache.cache.move.offer import ExportPlan, entry_item, side_steps, travelling_events
from jaxcache.cache.move.room import make_room
from jaxcache.cache.move.signatures import unsigned_digests, write_signatures
from jaxcache.cache.move.step import Item, ItemFacts, MoveAction, MoveTarget, Outcome, Plan, Step
from jaxcache.cache.move.stores import StoreTarget, sender_of
from jaxcache.cache.prune.execute import remove
from jaxcache.cache.scan import NO_AIDS, Progress, Scan, ScanAids, scan
from jaxcache.cache.select import Selection
from jaxcache.core.names import ATIME_SUFFIX
from jaxcache.model import FileInfo
from jaxcache.options.move import SyncOptions
from jaxcache.store.base import Store

if TYPE_CHECKING:
    from jaxcache.cache.index import Index


def plan_sync(
    source: Store,
    target: Store | None,
    options: SyncOptions | None = None,
    *,
    target_url: str = "",
    now_ns: int,
    signed: Signed | None = None,
    index: "Index | None" = None,
    fits: Callable[[Item, ItemFacts], str | None] | None = None,
    progress: Progress | None = None,
) -> Plan:
    """Compare two caches by their listings.

    Of the entries that both have, those of a local target that are truncated are replaced;
    nothing else there is read. A limit opens entries of the target for their compile seconds.

    Args:
        target: None where its directory does not exist yet; then ``target_url`` says its name.
        signed: the policy of the target, see :class:`jaxcache.cache.gate.Gate`.
        index: of the target, to spare opening its entries then.
        fits: see :class:`jaxcache.cache.move.check.Check`.

    Raises:
        NoCacheError: one of them cannot be listed.
        UsageError, JaxcacheError: a limit that cannot be kept; see
            :func:`jaxcache.cache.prune.plan.plan_prune`.
    """
    options = options or SyncOptions()
    limited = options.max_size_bytes is not None
    selection = Selection.parse((), options.filters)
    depth = selection.scan_options(has_heads=True)
    depth["heads"] |= limited and not source.remote
    ours = scan(source, NO_AIDS, deep=options.side_caches, **depth)
    used_ns = {e.file: e.last_used_ns for e in selection.pick(ours.entries, now_ns)}
    ledger = ours.ledger or Ledger()
    theirs = _scan_target(target, index, progress) if limited else None
    # Nobody signs a ledger, and its digests and pins would steer `verify --fix` and `prune`.
    events = travelling_events(ledger) if signed is None else {}
    offered = tuple(_offer(ours, options, used_ns, events, now_ns))
    plan = plan_copy(
        source,
        ExportPlan(source.url, offered, ledger, now_ns, dated=bool(ours.inventory.atimes)),
        target,
        cache_dir=target.url if target else target_url,
        on_conflict=None,
        signed=signed,
        # Whoever takes an entry out of a bucket checks how far it inflates.
        allow_large=options.allow_large or (target is not None and target.remote),
        origins=fits is not None,
        fits=fits,
        inventory=theirs.inventory if theirs else None,
        progress=progress,
    )
    plan = replace(
        plan,
        entries=len(ours.inventory.entries),
        records=options.ledger,
        segments=missing_segments(source, target) if options.ledger and signed is None else (),
    )
    return make_room(plan, ours, theirs, options, now_ns) if theirs else plan


def _scan_target(target: Store | None, index: "Index | None", progress: Progress | None) -> Scan:
    if target is None:
        return Scan((), Inventory(), ())
    seen = scan(target, ScanAids(index, progress=progress), heads=True, deep=True)
    if index is not None:
        index.save(file.info.name for file in seen.inventory.entries)
    return seen


def _offer(
    ours: Scan,
    options: SyncOptions,
    used_ns: Mapping[str, int],
    events: Mapping[str, tuple[Event, ...]],
    now_ns: int,
) -> Iterator[Step]:
    """Yield every selected entry and side file."""
    for problem in ours.problems:
        if problem.kind == "unreadable" and problem.file.endswith(ATIME_SUFFIX):
            item = Item(problem.file, problem.key, 0, 0)
            yield Step(item, MoveAction.STRAY, problem.detail, problem.kind)
    gate = Gate()
    for file in sorted(ours.inventory.entries, key=lambda e: e.info.name):
        if file.info.name in used_ns and _is_selected(file, options):
            item = entry_item(file, used_ns[file.info.name], events.get(file.key_text, ()))
            reason = gate.refuse_name(file.info.name)
            yield Step(item, MoveAction.STRAY, reason) if reason else Step(item, MoveAction.WRITE)
    if options.side_caches and not options.filters:
        yield from side_steps(ours.inventory, gate, now_ns)


def _is_selected(file: EntryFile, options: SyncOptions) -> bool:
    def fits(globs: Sequence[str]) -> bool:
        return any(
            fnmatchcase(file.key.module, glob) or fnmatchcase(file.key_text, glob) for glob in globs
        )

    return (not options.include or fits(options.include)) and not fits(options.exclude)


def execute(
    source: Store,
    target: Store | None,
    plan: Plan,
    *,
    now_ns: int,
    jobs: int | None = None,
    signers: Sequence[Any] = (),
    dry_run: bool = False,
    progress: Progress | None = None,
) -> Outcome:
    """Carry out a plan.

    Room is made first. Signatures and ledger come last: they speak of entries that are there.

    Args:
        target: None for a dry run into a directory that does not exist.
        jobs: files under way at once.
        signers: private keys that vouch for what the target has of the selection.
        dry_run: read and check what would be written. Of a bucket nothing is read.

    Raises:
        NoCacheError: a store cannot be reached any more; what was written until then is whole, and
            another run does the rest.
        LockedError: see :func:`jaxcache.cache.prune.execute.remove`.
    """
    sender = sender_of(source, plan)
    moving = partial(move, sender, plan=plan, now_ns=now_ns, jobs=jobs, progress=progress)
    if dry_run or target is None:
        done = Outcome(plan, plan.steps) if source.remote else moving(target=MoveTarget())
        return replace(done, dry_run=True, segments=len(plan.segments))
    delete_leftovers(target)
    removed = remove(target, plan.removals) if plan.removals else None
    vouched = unsigned_digests(target, sender, plan, signers) if signers else {}

    def sign(written: Mapping[str, Step], _: Mapping[str, FileInfo]) -> None:
        if signers:
            digests = vouched | {name: s.item.sha256 or "" for name, s in written.items()}
            write_signatures(target, digests, signers, now_ns=now_ns)

    receiver = StoreTarget(target, plan, sign)
    done = moving(target=receiver)
    carried = {step.key for step in done.written if step.key is not None}
    segments = carry_segments(source, target, plan.segments, carried) if plan.segments else 0
    if carried and plan.records and not target.remote:  # an object has the date of its arrival
        append(target, arrivals(carried, Ledger.load(target)))
    written_bytes = sum(file.size_bytes for file in receiver.files.values())
    return replace(done, written_bytes=written_bytes, segments=segments, removed=removed)
