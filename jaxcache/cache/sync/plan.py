"""Decide what goes from one cache to another, by two listings."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, NamedTuple

from jaxcache.cache.gate import Gate, Signed
from jaxcache.cache.inventory import EntryFile, Inventory
from jaxcache.cache.prune.plan import plan_prune
from jaxcache.cache.prune.removal import Removal
from jaxcache.cache.scan import NO_AIDS, Progress, Scan, ScanAids, scan
from jaxcache.cache.select import Selection
from jaxcache.cache.sync.ledgers import missing_segments
from jaxcache.core.names import ATIME_SUFFIX, AUTOTUNE_DIR
from jaxcache.entry.codec import CodecError, check_frame
from jaxcache.entry.names import FileKind
from jaxcache.model import GRACE_NS, FileInfo, Problem, result_repr
from jaxcache.options import PruneOptions
from jaxcache.options.move import SyncOptions
from jaxcache.store.base import Store, StoreError

if TYPE_CHECKING:
    from jaxcache.cache.index import Index

#: What XLA calls the results of autotuning one fusion (xla/service/gpu/autotuning,
#: ``GetCacheFilePath``): base64 of a hash. Its temporary files are called otherwise.
_AUTOTUNE_NAME = re.compile(rf"{AUTOTUNE_DIR}/[\w=+-]{{1,200}}\.textproto", re.ASCII)
_MAX_AUTOTUNE_BYTES = 16 << 20


class Transfer(NamedTuple):
    """One file to carry."""

    file: EntryFile | None
    """The entry; None for a side file."""
    info: FileInfo
    """In the source."""
    last_used_ns: int
    there: FileInfo | None = None
    """A damaged file in the target, which it replaces."""

    @property
    def key(self) -> str | None:
        """The key of an entry; None for any other file."""
        return self.file.key_text if self.file else None

    @property
    def replaces_damaged(self) -> bool:
        """Whether the target has a damaged file of this name."""
        return self.there is not None


@dataclass(frozen=True, slots=True)
class SyncPlan:
    """The files to copy; nothing has happened yet."""

    __repr__ = result_repr

    source: str
    target: str
    entries: int
    """In the source, selected or not."""
    transfers: tuple[Transfer, ...]
    present: int
    """Selected files that the target has already."""
    left_out: tuple[Problem, ...]
    """Names that cannot travel."""
    no_room: tuple[Transfer, ...] = ()
    """Files that ``max_size_bytes`` leaves no room for."""
    removals: tuple[Removal, ...] = ()
    """Entries to remove from the target to make room."""
    unmet: bool = False
    """The target holds more than ``max_size_bytes`` whatever is done."""
    segments: tuple[FileInfo, ...] = ()
    """Segments of the ledger."""
    with_atimes: bool = False
    """Whether new entries get an ``-atime`` file."""
    gate: Gate = field(default_factory=Gate)
    """The checks for each entry."""


def plan_sync(
    source: Store,
    target: Store | None,
    options: SyncOptions | None = None,
    *,
    target_url: str = "",
    now_ns: int,
    signed: Signed | None = None,
    allow_large: bool = False,
    index: "Index | None" = None,
    progress: Progress | None = None,
) -> SyncPlan:
    """Compare two caches by their listings.

    Of the entries that both have, those of a local target that are torn are replaced; nothing
    else there is read. A bound opens entries of the target for their compile seconds.

    Args:
        target: None where its directory does not exist yet; then ``target_url`` says its name.
        signed, allow_large: the policy of the target, see :class:`jaxcache.cache.gate.Gate`.
        index: of the target, to spare opening its entries then.

    Raises:
        NoCacheError: one of them cannot be listed.
        UsageError, JaxcacheError: a bound that cannot be kept; see
            :func:`jaxcache.cache.prune.plan.plan_prune`.
    """
    options = options or SyncOptions()
    bounded = options.max_size_bytes is not None
    selection = Selection.parse((), options.filters)
    depth = selection.scan_options(has_heads=True)
    depth["heads"] |= bounded and not source.remote
    ours = scan(source, NO_AIDS, deep=options.side_caches, **depth)
    theirs = _scan_target(target, bounded, index, progress)
    their_files = theirs.inventory.files()
    names = {info.name: info for kind, info in their_files if kind is not FileKind.ATIME}
    used_ns = {e.file: e.last_used_ns for e in selection.pick(ours.entries, now_ns)}
    gate = Gate(names, signed=signed, allow_large=allow_large)
    left_out = [
        p for p in ours.problems if p.kind == "unreadable" and p.file.endswith(ATIME_SUFFIX)
    ]
    wanted = list(_entries(ours, options, used_ns, gate, left_out))
    if options.side_caches and not options.filters:
        wanted += _side_files(ours.inventory)
    transfers = []
    for number, transfer in enumerate(wanted):
        there = names.get(transfer.info.name)
        if there is None:
            transfers.append(transfer)
        elif target is not None and _is_torn(target, transfer, there, now_ns):
            transfers.append(transfer._replace(there=there))
        if progress and number % 256 == 0:
            progress(number, len(wanted))
    plan = SyncPlan(
        source=source.url,
        target=target.url if target else target_url,
        entries=len(ours.inventory.entries),
        transfers=tuple(transfers),
        present=len(wanted) - len(transfers),
        left_out=tuple(left_out),
        # Nobody signs a ledger, and its digests and pins would steer `verify --fix` and `prune`.
        segments=missing_segments(source, target) if options.ledger and signed is None else (),
        with_atimes=_wants_atimes(ours.inventory, theirs.inventory, target),
        gate=gate,
    )
    return _make_room(plan, ours, theirs, options, now_ns) if bounded else plan


def _wants_atimes(ours: Inventory, theirs: Inventory, target: Store | None) -> bool:
    """A cache has ``-atime`` files for all its entries or for none: a new directory is like the
    one that it is filled from. A bucket, which no JAX evicts from, is spared the requests."""
    if theirs.atimes:
        return True
    return bool(ours.atimes and not theirs.entries and not (target and target.remote))


def _scan_target(
    target: Store | None, bounded: bool, index: "Index | None", progress: Progress | None
) -> Scan:
    if target is None:
        return Scan((), Inventory(), ())
    aids = ScanAids(index, progress=progress) if bounded else NO_AIDS
    seen = scan(target, aids, heads=bounded, deep=True)
    if bounded and index is not None:
        index.save(file.info.name for file in seen.inventory.entries)
    return seen


def _entries(
    seen: Scan,
    options: SyncOptions,
    used_ns: dict[str, int],
    gate: Gate,
    left_out: list[Problem],
) -> Iterator[Transfer]:
    for file in sorted(seen.inventory.entries, key=lambda e: e.info.name):
        if file.info.name not in used_ns or not _is_selected(file, options):
            continue
        if reason := gate.refuse_name(file.info.name):
            left_out.append(Problem(file.info.name, "stray-file", reason, file.key_text))
            continue
        yield Transfer(file, file.info, used_ns[file.info.name])


def _side_files(inventory: Inventory) -> Iterator[Transfer]:
    for other in inventory.others:
        info = other.info
        if (
            other.kind is FileKind.AUTOTUNE
            and info.type == "file"
            and _AUTOTUNE_NAME.fullmatch(info.name)
            and 0 < info.size_bytes <= _MAX_AUTOTUNE_BYTES
        ):
            yield Transfer(None, info, info.mtime_ns)


def _make_room(
    plan: SyncPlan, ours: Scan, theirs: Scan, options: SyncOptions, now_ns: int
) -> SyncPlan:
    """Leave behind, or remove from the target, what is worth least until all fits.

    The planner of ``prune`` chooses, over the target as it would be with all that comes.
    """
    coming: list[EntryFile] = [t.file for t in plan.transfers if t.file]
    names = {file.info.name for file in coming}
    inventory, entries = theirs.inventory, {e.file: e for e in ours.entries}
    union = Scan(
        (
            *(e for e in theirs.entries if e.file not in names),  # a torn one is replaced
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
    ledgers = [seen.ledger for seen in (theirs, ours) if seen.ledger]
    pruned = plan_prune(
        union,
        PruneOptions(max_size_bytes=options.max_size_bytes, grace_seconds=0),
        cache_dir=plan.target,
        now_ns=now_ns,
        keep=() if options.make_room else {e.key for e in theirs.entries},
        lookup=lambda key: next((r for known in ledgers if (r := known.record(key))), None),
    )
    going = {r.file.name for r in pruned.removals}
    return replace(
        plan,
        transfers=tuple(t for t in plan.transfers if t.info.name not in going),
        no_room=tuple(t for t in plan.transfers if t.info.name in going),
        removals=tuple(r for r in pruned.removals if r.file.name not in names),
        unmet=bool(pruned.unmet),
    )


def _is_selected(file: EntryFile, options: SyncOptions) -> bool:
    def fits(globs: Sequence[str]) -> bool:
        return any(
            fnmatchcase(file.key.module, glob) or fnmatchcase(file.key_text, glob) for glob in globs
        )

    return (not options.include or fits(options.include)) and not fits(options.exclude)


def _is_torn(target: Store, transfer: Transfer, there: FileInfo, now_ns: int) -> bool:
    """Return whether what the target has is only the beginning of an entry.

    An empty file is; another size is a reason to look, where looking costs nothing: sealed
    entries differ in size, too.
    """
    same_size = there.size_bytes == transfer.info.size_bytes
    if transfer.file is None or there.type != "file" or same_size:
        return False
    if abs(now_ns - there.mtime_ns) < GRACE_NS and not target.remote:
        return False
    if there.size_bytes == 0:
        return True
    if target.remote:
        return False
    try:
        with target.open(there.name) as opened:
            check_frame(opened, there.size_bytes)
    except CodecError:
        return True
    except StoreError:
        return False
    return False
