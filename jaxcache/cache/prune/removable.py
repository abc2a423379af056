"""The removable files of a cache, with the facts that rules need, and the choice among them."""

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Literal, NamedTuple

from jaxcache.cache.files import counted_bytes, is_temporary
from jaxcache.cache.ledger.record import LedgerRecord
from jaxcache.cache.scan import Scan
from jaxcache.core import eviction
from jaxcache.entry.names import FileKind
from jaxcache.model import UNTUNED, FileInfo, ProblemKind, result_repr, short_repr
from jaxcache.options import PruneOptions
from jaxcache.store.base import Store
from jaxcache.units import NS_PER_SECOND, format_compiling, format_count, format_size

#: Why something goes; part of the JSON contract (``prune``: ``removed[].reason``).
RemovalReason = Literal[
    "max-size", "max-entries", "unused-for", "older-than", "used-since", "keep-last",
    "legacy", "untuned", "orphan-atime", "temp-file", "quarantine", "requested", "duplicate",
    "unreferenced",
]  # fmt: skip
#: What prune removes as one: an entry, or one file of another kind.
RemovalKind = Literal[
    "entry", "side-cache", "orphan-atime", "temp-file", "quarantine", "generated-code",
]  # fmt: skip
#: Why something stays that a rule or bound names.
Hold = Literal["young", "pinned", "kept"]


class Removal(NamedTuple):
    """One thing that goes. A NamedTuple because a plan holds one per entry of a large cache."""

    kind: RemovalKind
    file: FileInfo
    """As it was when the plan was made: anything else under the name is left alone."""
    atime: FileInfo | None
    """The entry's ``-atime`` file, which goes right after it."""
    key: str | None
    """The key of an entry; None for any other file."""
    module: str
    reason: RemovalReason
    last_used_ns: int
    compile_seconds: float | None

    def __repr__(self) -> str:
        key = self.key or self.file.name
        digest = key.removeprefix(f"{self.module}-") if self.key else ""
        size = f"{self.size_bytes:,} bytes"
        return short_repr(type(self).__name__, key, digest, size, self.reason)

    @property
    def size_bytes(self) -> int:
        """The bytes that it frees, its ``-atime`` file included."""
        return self.file.size_bytes + (self.atime.size_bytes if self.atime else 0)


@dataclass(frozen=True, slots=True)
class SkippedRemoval:
    """One thing that a plan names and that is still there, or that another process removed."""

    removal: Removal
    why: Literal["changed", "used", "gone", "failed"]
    detail: str
    """For people: the system's reason where it failed."""


@dataclass(frozen=True, slots=True)
class Execution:
    """The outcome of a plan."""

    __repr__ = result_repr

    removed: tuple[Removal, ...]
    spared: tuple[SkippedRemoval, ...]
    longest_hold_seconds: float
    """The longest that JAX's lock was held at a stretch."""

    @property
    def failed(self) -> bool:
        """Whether something could not be removed that should have been."""
        return any(s.why == "failed" for s in self.spared)

    def __str__(self) -> str:
        return describe(self.removed, "removed") if self.removed else "nothing was removed"


def freed_bytes(removals: Iterable[Removal]) -> int:
    """Sum up what removals free."""
    return sum(r.size_bytes for r in removals)


def lost_compile_seconds(removals: Iterable[Removal]) -> float:
    """Sum up the compile seconds that removals give up, as far as they are known."""
    return math.fsum(r.compile_seconds or 0.0 for r in removals)


def count_entries(removals: Iterable[Removal]) -> int:
    """Count the entries among what is removed."""
    return sum(r.kind == "entry" for r in removals)


def format_counts(entries: int, files: Sequence[Removal]) -> str:
    """Return a number of entries, and of the files of other kinds."""
    parts = [format_count(entries, "entry")] if entries or not files else []
    quarantined = sum(r.kind == "quarantine" for r in files)
    if quarantined:
        parts.append(format_count(quarantined, "quarantined file"))
    if others := len(files) - quarantined:
        parts.append(format_count(others, "other file"))
    return " and ".join(parts)


def describe(removed: Sequence[Removal], verb: str) -> str:
    """Return what is removed, its size and its compile time, without a full stop."""
    entries = count_entries(removed)
    counts = format_counts(entries, [r for r in removed if r.kind != "entry"])
    seconds = [r.compile_seconds for r in removed if r.compile_seconds is not None]
    each = " each" if entries > 1 else ""
    lost = format_compiling(sum(seconds), entries) if seconds else f"unknown compile time{each}"
    freed = format_size(freed_bytes(removed))
    cost = f", {lost}" if entries else ""
    return f"{verb} {counts} ({freed}{cost})"


#: Looks up the ledger's record of a key; None if it has none.
FindRecord = Callable[[str], LedgerRecord | None]

#: Problems that do not keep JAX from using an entry; any other makes it worthless.
_HARMLESS: frozenset[ProblemKind] = frozenset(
    {"legacy-name", "bad-atime", "missing-atime", "unsealed", "unreadable"}
)


#: JAX's lock is for all files, and they go in any order.
file_lock = None
removal_rank = None


@dataclass(slots=True)
class RemovableItem:
    """One thing that could go, with all that a rule asks about it."""

    removal: Removal
    group: str
    """The module, or what else ``--keep-last`` counts by."""
    created_ns: int
    candidate: eviction.Candidate
    used_from: eviction.LastUsedFrom
    """The source of the last use; ``mtime`` where nothing recorded a use."""
    held_by: Hold | None
    """The reason why no rule or bound may remove it."""
    legacy: bool = False
    untuned: bool = False
    reason: RemovalReason | None = None
    """Set once something takes it."""
    parts: tuple[Removal, ...] = ()
    """The files that it needs, perhaps with others: each goes with the last that needs it."""
    alternatives: tuple[frozenset[str], ...] = ()
    """Sets of files; where one of them goes entirely, it is useless."""

    @property
    def protected(self) -> bool:
        """Whether it must stay."""
        return self.held_by is not None


@dataclass(frozen=True, slots=True)
class RemovableSet:
    """The things that could go, and what they are measured against."""

    items: list[RemovableItem]
    entries: int
    size_bytes: int
    """All that a bound on the size counts."""
    fixed_bytes: int = 0
    """The part of it in files other than entries that must stay: no bound below it can be met."""
    records_reads: bool = True
    """Whether a use shows in an access time where nothing else records it."""
    rank: Callable[[str], int] | None = None
    """The place of a file in the order of removal; None where all are equal."""
    uncounted: Mapping[str, int] = field(default_factory=dict)
    """Directories and files that no bound counts, and nothing here removes → bytes."""
    unread: Mapping[str, str] = field(default_factory=dict)
    """Files that could not be read, of which it is unknown what belongs to them → the reason."""

    @property
    def pinned_bytes(self) -> int:
        """The part of it in pinned entries, which must stay as well."""
        return freed_bytes(i.removal for i in self.items if i.held_by == "pinned")


def find_removable(
    store: Store | None,
    scan_result: Scan,
    options: PruneOptions | None,
    *,
    now_ns: int,
    keep: Collection[str] = (),
    lookup: FindRecord | None = None,
) -> RemovableSet:
    """Tell what a plan could remove from a cache of JAX.

    Args:
        store: None for a forecast, which may overlook a pin.
        scan_result: a deep scan; with headers if an order asks for seconds.
        options: None where a person chooses among the entries.
        keep: keys that must stay.
        lookup: the ledger, if it is another than that of the scan.

    Raises:
        JaxcacheError: ``pins-unread``.
    """
    if store is not None and scan_result.ledger is not None:
        scan_result.ledger.check_pins()
    if lookup is None and scan_result.ledger:
        lookup = scan_result.ledger.record
    grace_seconds = options.grace_seconds if options else 0
    limits: dict[str, Any] = {"now_ns": now_ns, "grace_seconds": grace_seconds}
    items = list(removable_entries(scan_result, keep=frozenset(keep), lookup=lookup, **limits))
    if options:
        items += _removable_others(scan_result, _other_kinds(options), **limits)
    size = total_bytes(scan_result)
    fixed_bytes = size - sum(i.removal.size_bytes for i in items)
    entries = len(scan_result.entries)
    return RemovableSet(items, entries, size, fixed_bytes, scan_result.records_reads)


def _other_kinds(options: PruneOptions) -> frozenset[RemovalKind]:
    """Return the kinds of files other than entries that may be removed."""
    chosen: list[RemovalKind] = []
    chosen += ["orphan-atime", "temp-file"] if options.orphans else []
    chosen += ["side-cache"] if options.side_caches else []
    chosen += ["quarantine"] if options.takes_quarantine else []
    return frozenset(chosen)


def removable_entries(
    scan_result: Scan,
    *,
    now_ns: int,
    grace_seconds: float,
    keep: Collection[str] = (),
    lookup: FindRecord | None = None,
) -> Iterator[RemovableItem]:
    """Yield every entry.

    Args:
        grace_seconds: younger ones are protected; so are those in ``keep`` and pinned ones.
        lookup: the ledger.
    """
    inventory = scan_result.inventory
    files = {f.info.name: f for f in inventory.entries}
    grace_ns = int(grace_seconds * NS_PER_SECOND)
    records = {e.key: r for e in scan_result.entries if lookup and (r := lookup(e.key))}
    measured = {k: r.compile_seconds for k, r in records.items() if r.compile_seconds is not None}
    means = eviction.mean_seconds(measured.values())
    for entry in scan_result.entries:
        file = files[entry.file]
        record = records.get(entry.key)
        used_ns = min(entry.last_used_ns, now_ns)
        seconds = measured.get(entry.key, entry.compile_seconds)
        saved = eviction.saved_seconds(measured.get(entry.key), entry.compile_seconds, means)
        worthless = not _HARMLESS.issuperset(entry.problems)
        legacy = file.kind is FileKind.LEGACY_ENTRY
        atime = None if legacy else inventory.atimes.get(entry.key)
        removal = Removal(
            "entry", file.info, atime, entry.key, entry.module, "requested", used_ns, seconds
        )
        yield RemovableItem(
            removal=removal,
            group=entry.module,
            legacy=legacy,
            created_ns=entry.created_ns,
            candidate=eviction.Candidate(
                entry.file,
                removal.size_bytes,
                used_ns,
                0.0 if worthless else saved,
                eviction.estimate_hits(record.hits if record else 0, entry.created_ns, used_ns),
            ),
            used_from=entry.last_used_from,
            held_by=(
                "kept"
                if entry.key in keep
                else "pinned"
                if record and record.pinned
                else protect_young(entry.created_ns, now_ns, grace_ns)
            ),
            untuned=bool(
                record and record.tuning_of(entry.created_ns, entry.size_bytes) == UNTUNED
            ),
        )


def _removable_others(
    scan_result: Scan, wanted: Collection[RemovalKind], *, now_ns: int, grace_seconds: float
) -> Iterator[RemovableItem]:
    """Yield the files of the ``wanted`` kinds that are not entries."""
    grace_ns = int(grace_seconds * NS_PER_SECOND)
    for kind, info in _other_files(scan_result):
        if kind in wanted:
            used_ns = min(max(info.mtime_ns, info.atime_ns), now_ns)
            removal = Removal(kind, info, None, None, "", "requested", used_ns, None)
            yield other_item(removal, held_by=protect_young(info.mtime_ns, now_ns, grace_ns))


def other_item(
    removal: Removal, *, held_by: Hold | None = None, reason: RemovalReason | None = None
) -> RemovableItem:
    """Return the item of a file that is not an entry."""
    file = removal.file
    used_ns = removal.last_used_ns
    candidate = eviction.Candidate(
        file.name, file.size_bytes, used_ns, eviction.saved_seconds(None, None, {})
    )
    return RemovableItem(removal, "", file.mtime_ns, candidate, "fs-atime", held_by, reason=reason)


def protect_young(created_ns: int, now_ns: int, grace_ns: int) -> Hold | None:
    """Protect what was made within the grace period, or is from the future."""
    return "young" if abs(now_ns - created_ns) < grace_ns else None


def _other_files(scan_result: Scan) -> Iterator[tuple[RemovalKind, FileInfo]]:
    for _, info in scan_result.inventory.orphan_atimes():
        yield "orphan-atime", info
    for other in scan_result.inventory.others:
        if other.info.type != "file" or other.kind is FileKind.UNKNOWN:
            continue
        if other.kind is FileKind.TEMP or is_temporary(other.info.name):
            yield "temp-file", other.info
        elif other.kind in (FileKind.KERNEL_CACHE, FileKind.AUTOTUNE):
            yield "side-cache", other.info
        elif other.kind is FileKind.QUARANTINE:
            yield "quarantine", other.info


def total_bytes(scan_result: Scan) -> int:
    """Sum up what a bound on the size counts; an entry that vanished meanwhile counts nothing."""
    inventory = scan_result.inventory
    entry_files = {e.file for e in scan_result.entries}
    gone = (f.info.size_bytes for f in inventory.entries if f.info.name not in entry_files)
    return counted_bytes(inventory.files()) - sum(gone)


class PlanBuilder:
    """The removals of a plan while it is made; a file that several need goes with the last."""

    def __init__(self, removable: RemovableSet) -> None:
        self.removable = removable
        self.removals: list[Removal] = []
        self._needed = Counter(p.file.name for item in removable.items for p in item.parts)

    @property
    def kept(self) -> int:
        """The number of entries that stay."""
        return self.removable.entries - count_entries(self.removals)

    @property
    def size_bytes(self) -> int:
        """The size of what stays, as a bound counts it."""
        return self.removable.size_bytes - freed_bytes(self.removals)

    def copy(self) -> "PlanBuilder":
        """Return a builder whose choices leave this one as it is."""
        trial = PlanBuilder(self.removable)
        trial.removals = list(self.removals)
        trial._needed = self._needed.copy()
        return trial

    def take(self, item: RemovableItem, reason: RemovalReason) -> list[Removal]:
        """Let an item go; return what goes with it."""
        item.reason = reason
        self._needed.subtract(part.file.name for part in item.parts)
        free = [part for part in item.parts if not self._needed[part.file.name]]
        gone = [removal._replace(reason=reason) for removal in (item.removal, *free)]
        self.removals += gone
        return gone

    def candidate(self, item: RemovableItem) -> eviction.Candidate:
        """The item as a policy weighs it: with the files that nothing else needs."""
        own = [p.size_bytes for p in item.parts if self._needed[p.file.name] == 1]
        size_bytes = item.candidate.size_bytes + sum(own)
        return item.candidate._replace(size_bytes=size_bytes) if own else item.candidate


def choose_for_limits(
    builder: PlanBuilder,
    options: PruneOptions,
    now_ns: int,
    young: Sequence[tuple[RemovableItem, RemovalReason]],
) -> list[tuple[RemovableItem, RemovalReason]]:
    """Choose what is removed to meet the bounds, in order, as if no item were too young.

    A young item of the choice stays for the next time. If others went in its place, a bound that
    young entries block would cost all older ones, however valuable.

    Args:
        young: what other rules would remove if it were older.
    """
    items = builder.removable.items
    trial = builder.copy()
    for item, reason in young:
        trial.take(item, reason)
    chosen: list[tuple[RemovableItem, RemovalReason]] = []

    def take(item: RemovableItem, reason: RemovalReason) -> list[Removal]:
        chosen.append((item, reason))
        return trial.take(item, reason)

    if options.max_entries is not None:
        excess = trial.kept - options.max_entries
        pool = _pool(items, ("entry",))
        order: list[eviction.Candidate] = []
        if excess > 0:
            candidates = map(trial.candidate, pool.values())
            order = eviction.eviction_order(candidates, options.policy, now_ns, per_byte=False)
        for candidate in order:
            if excess <= 0:
                break
            excess -= count_entries(take(pool[candidate.name], "max-entries"))
    if options.max_size_bytes is not None:
        excess = trial.size_bytes - options.max_size_bytes
        discarded = _pool(items, ("quarantine",))
        for _, together in groupby(sorted(discarded), without_suffix):
            if excess > 0:  # its directory's name begins with the time: the oldest first
                taken = [take(discarded[name], "max-size") for name in together]
                excess -= sum(map(freed_bytes, taken))
        while excess > 0:  # again where items share files, of which the first frees nothing
            pool = _pool(items, ("entry", "side-cache"))
            candidates = map(trial.candidate, pool.values())
            order = eviction.choose_for_room(candidates, excess, options.policy, now_ns)
            if not order:
                break
            for candidate in order:
                if excess > 0:  # else what several had needed became free
                    excess -= freed_bytes(take(pool[candidate.name], "max-size"))
    for item, _ in (*chosen, *young):
        item.reason = None
    return chosen


def unmet_limits(builder: PlanBuilder, options: PruneOptions) -> Iterator[RemovalReason]:
    """Yield the bounds that the removals do not meet."""
    if options.max_entries is not None and builder.kept > options.max_entries:
        yield "max-entries"
    if options.max_size_bytes is not None and builder.size_bytes > options.max_size_bytes:
        yield "max-size"


def without_suffix(name: str) -> str:
    """The name that an entry and its ``-atime`` share."""
    return name.removesuffix("-atime").removesuffix("-cache")


def _pool(items: Iterable[RemovableItem], kinds: Sequence[RemovalKind]) -> dict[str, RemovableItem]:
    """The items that a bound may still choose, by name."""
    free = (i for i in items if not i.reason and i.held_by in (None, "young"))
    return {i.candidate.name: i for i in free if i.removal.kind in kinds}
