"""``push`` and ``pull``: what one cache lacks of another, by two listings, file by file."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import partial
from typing import TYPE_CHECKING, Any

from jaxcache.cache.gate import Gate, Signed
from jaxcache.cache.inventory import EntryFile, Inventory, take_inventory
from jaxcache.cache.ledger.record import Event
from jaxcache.cache.ledger.segments import Ledger
from jaxcache.cache.leftovers import delete_leftovers
from jaxcache.cache.move.check import Check
from jaxcache.cache.move.choose import choose, counted, look_at_frames
from jaxcache.cache.move.ledgers import carry_segments, missing_segments
from jaxcache.cache.move.loop import move
from jaxcache.cache.move.offer import ExportPlan, entry_item, side_steps, travelling_events
from jaxcache.cache.move.room import make_room
from jaxcache.cache.move.signatures import unsigned_digests, write_signatures
from jaxcache.cache.move.step import Item, MoveAction, Outcome, Plan, Step
from jaxcache.cache.move.stores import NoTarget, StoreSource, StoreTarget
from jaxcache.cache.prune.execute import remove
from jaxcache.cache.scan import NO_AIDS, Progress, Scan, ScanAids, scan
from jaxcache.cache.select import Selection
from jaxcache.core.names import ATIME_SUFFIX
from jaxcache.entry.names import FileKind
from jaxcache.model import result_repr
from jaxcache.options.move import SyncOptions
from jaxcache.store.ahead import REQUESTS_AT_ONCE
from jaxcache.store.base import Store

if TYPE_CHECKING:
    from jaxcache.cache.index import Index

#: Threads that write to a disk, or read for a dry run: most of the time goes into syncing.
_WRITERS = 8


@dataclass(frozen=True, slots=True)
class SyncPlan(Plan):
    """The plan of ``push`` or ``pull``; nothing has happened yet."""

    __repr__ = result_repr

    check: Check | None = None
    """What each entry must pass."""

    def sender(self, source: Store) -> StoreSource:
        """Return the source of the plan, which checks each entry as the plan says."""
        return StoreSource(source, self.check or Check(Gate(), Ledger.load(source)))


def plan_sync(
    source: Store,
    target: Store | None,
    options: SyncOptions | None = None,
    *,
    target_url: str = "",
    now_ns: int,
    signed: Signed | None = None,
    index: "Index | None" = None,
    make_check: Callable[[Gate, Ledger], Check] = Check,
    progress: Progress | None = None,
) -> SyncPlan:
    """Compare two caches by their listings.

    Of the entries that both have, those of a local target that are truncated are replaced;
    nothing else there is read. A limit opens entries of the target for their compile seconds.

    Args:
        target: None where its directory does not exist yet; then ``target_url`` says its name.
        signed: the policy of the target, see :class:`jaxcache.cache.gate.Gate`.
        index: of the target, to spare opening its entries then.
        make_check: makes the check that each entry must pass.

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
    theirs = _scan_target(target, limited, index, progress)
    names = {i.name: i for kind, i in theirs.inventory.files() if kind is not FileKind.ATIME}
    used_ns = {e.file: e.last_used_ns for e in selection.pick(ours.entries, now_ns)}
    # Whoever takes an entry out of a bucket checks how far it inflates.
    allow_large = options.allow_large or (target is not None and target.remote)
    gate = Gate(names, signed=signed, allow_large=allow_large)
    # Nobody signs a ledger.
    events = travelling_events(ours.ledger or Ledger()) if signed is None else {}
    offered = list(_offer(ours, options, used_ns, events, now_ns))
    look = look_at_frames(target, now_ns)
    steps = counted(
        (choose(s.item, names, gate, look) if s.action is MoveAction.WRITE else s for s in offered),
        len(offered),
        progress,
    )
    plan = SyncPlan(
        source.url,
        target.url if target else target_url,
        tuple(steps),
        entries=len(ours.inventory.entries),
        with_atimes=has_atimes(theirs.inventory, target, offered=bool(ours.inventory.atimes)),
        # Nobody signs a ledger, and its digests and pins would steer `verify --fix` and `prune`.
        segments=missing_segments(source, target) if options.ledger and signed is None else (),
        check=make_check(gate, ours.ledger or Ledger()),
    )
    return make_room(plan, ours, theirs, options, now_ns) if limited else plan


def plan_save_to(export: ExportPlan, target: Store | None, *, target_url: str) -> SyncPlan:
    """Compare what a cache offers with the names in another one, as :func:`plan_sync` does."""
    inventory = take_inventory(target, deep=True) if target else Inventory()
    names = {i.name: i for kind, i in inventory.files() if kind is not FileKind.ATIME}
    gate = Gate(names, allow_large=target is not None and target.remote)
    look = look_at_frames(target, export.now_ns)
    dated = any(step.item.used_ns is not None for step in export.writes)
    return SyncPlan(
        export.cache_dir,
        target_url,
        tuple(
            choose(s.item, names, gate, look) if s.action is MoveAction.WRITE else s
            for s in export.steps
        ),
        with_atimes=has_atimes(inventory, target, offered=dated),
        check=Check(gate, export.ledger),
    )


def has_atimes(theirs: Inventory, target: Store | None, *, offered: bool) -> bool:
    """Return whether new entries get an ``-atime`` file.

    A cache has them for all its entries or for none: JAX with a cap before 0.11.2 fails on the
    first that lacks one, and JAX without a cap writes none. A new directory is like the one that
    it is filled from. A bucket, which no JAX evicts from, is spared the requests.

    Args:
        offered: whether the source has any.
    """
    if theirs.atimes:
        return True
    return offered and not theirs.entries and not (target and target.remote)


def _scan_target(
    target: Store | None, limited: bool, index: "Index | None", progress: Progress | None
) -> Scan:
    if target is None:
        return Scan((), Inventory(), ())
    aids = ScanAids(index, progress=progress) if limited else NO_AIDS
    seen = scan(target, aids, heads=limited, deep=True)
    if limited and index is not None:
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
    plan: SyncPlan,
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
    sender = plan.sender(source)
    workers = jobs or (
        REQUESTS_AT_ONCE if source.remote or (target and target.remote) else _WRITERS
    )
    moving = partial(move, sender, plan=plan, now_ns=now_ns, workers=workers, progress=progress)
    if dry_run or target is None:
        if source.remote:
            return Outcome(plan, plan.steps, dry_run=True, segments=len(plan.segments))
        done = moving(target=NoTarget(), dry_run=True)
        return replace(done, segments=len(plan.segments))
    delete_leftovers(target)
    removed = remove(target, plan.removals) if plan.removals else None
    vouched = unsigned_digests(target, sender, plan, signers) if signers else {}

    def sign(written: Mapping[str, Step]) -> None:
        if signers:
            digests = vouched | {name: s.item.sha256 or "" for name, s in written.items()}
            write_signatures(target, digests, signers, now_ns=now_ns)

    receiver = StoreTarget(target, plan, sign)
    done = moving(target=receiver)
    carried = {step.key for step in done.written if step.key is not None}
    segments = carry_segments(source, target, plan.segments, carried) if plan.segments else 0
    written_bytes = sum(file.size_bytes for file in receiver.files.values())
    return replace(done, written_bytes=written_bytes, segments=segments, removed=removed)
