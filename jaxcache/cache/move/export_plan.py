"""The entries and side files that a cache offers for a move."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from jaxcache.cache.admission import ImportPolicy
from jaxcache.cache.bundle.manifest import JAX
from jaxcache.cache.entry_files import ATIME_BYTES, parse_atime
from jaxcache.cache.inventory import EntryFile, Inventory
from jaxcache.cache.ledger.record import PAYLOAD, Event
from jaxcache.cache.ledger.segments import Ledger
from jaxcache.cache.move.items import Item, MoveAction, Step
from jaxcache.cache.move.plan import Steps
from jaxcache.cache.scan import Scan, ScanAids, scan
from jaxcache.cache.selection import Selection
from jaxcache.core.ledger import PINNING
from jaxcache.core.names import ATIME_SUFFIX, AUTOTUNE_DIR, KERNEL_CACHE
from jaxcache.entry.names import FileKind
from jaxcache.model import GRACE_NS, Depth, Entry, FileInfo, Progress
from jaxcache.store.base import MissingError, Store, StoreError

if TYPE_CHECKING:
    from jaxcache.cache.diff import DiffEntry, DiffSide

#: The results of autotuning. Up to jaxlib 0.11.0 a file is base64 of a hash
#: (xla/service/gpu/autotuning, ``GetCacheFilePath``). From 0.11.2 on it is a hash below a
#: fingerprint of the device, and a version may come between (directory_store.cc). Temporary files
#: of both have other names.
_AUTOTUNE_NAME = re.compile(
    rf"{AUTOTUNE_DIR}/(?:[\w=+-]{{1,200}}\.textproto"
    r"|[0-9a-f]{16}/(?:\w[\w.+-]{0,99}/)?[0-9a-f]{32}\.pb)",
    re.ASCII,
)
_MAX_AUTOTUNE_BYTES = 16 << 20
_KERNELS = "XLA loads its code on any GPU without a check"


def refuse_side_file(name: str, size_bytes: int) -> str | None:
    """Return the reason why a file of XLA's caches does not travel; None if it does."""
    if name == KERNEL_CACHE:
        return _KERNELS
    if not _AUTOTUNE_NAME.fullmatch(name):
        return "not a name that XLA gives to the results of autotuning"
    if not 0 < size_bytes <= _MAX_AUTOTUNE_BYTES:
        return "empty" if size_bytes == 0 else f"larger than {_MAX_AUTOTUNE_BYTES} bytes"
    return None


def side_steps(inventory: Inventory, policy: ImportPolicy, now_ns: int) -> Iterator[Step]:
    """Yield a step for each file of XLA's caches, in the order of their names."""
    kinds = (FileKind.AUTOTUNE, FileKind.KERNEL_CACHE)
    files = [o.info for o in inventory.others if o.kind in kinds and o.info.type == "file"]
    for info in sorted(files):
        item = Item(info.name, None, info.size_bytes, info.mtime_ns, info=info)
        reason = refuse_side_file(info.name, info.size_bytes)
        if reason is None and abs(now_ns - info.mtime_ns) < GRACE_NS:
            reason = "younger than a minute, so XLA may still be writing it"
        if reason is not None:
            yield Step(item, MoveAction.LEFT, reason)
        elif reason := policy.name_error(info.name):
            yield Step(item, MoveAction.STRAY, reason)
        else:
            yield Step(item, MoveAction.WRITE)


def travelling_events(ledger: Ledger) -> Mapping[str, tuple[Event, ...]]:
    """Return the events that travel, by key.

    Pins are a decision of one cache, and a digest is recorded by who checks it.
    """
    events_by_key: dict[str, list[Event]] = {}
    for event in ledger.events():
        if event.kind not in PINNING and event.kind != PAYLOAD:
            events_by_key.setdefault(event.key, []).append(event)
    return {
        key: tuple(sorted(events, key=lambda e: (e.at_ns, e.kind)))
        for key, events in events_by_key.items()
    }


@dataclass(frozen=True, slots=True)
class ExportPlan(Steps):
    """What a cache offers, in the order of a bundle."""

    cache_dir: str
    steps: tuple[Step, ...]
    """Entries, then side files; those that are left out contain the reason."""
    ledger: Ledger
    now_ns: int
    """When it was made: a truncated entry that is young may still be being written."""
    since: str | None = None
    known: "Mapping[str, DiffEntry]" = field(default_factory=dict)
    """The entries by key of what ``since`` names: the same need not travel again."""
    layout: str = JAX
    """The layout of the cache; in layouts other than JAX every file is a side file."""
    dated: bool = False
    """Whether its entries have ``-atime`` files."""
    seen: Scan | None = None
    """The cache as it was read for this plan."""
    warnings: tuple[str, ...] = ()
    """Warnings about the content, for whoever passes the bundle on."""


def with_ledger(plan: ExportPlan, ledger: Ledger) -> ExportPlan:
    """Return a plan with the current records of a ledger."""
    events = travelling_events(ledger)
    steps = (
        replace(s, item=replace(s.item, events=events.get(s.key, ()))) if s.key else s
        for s in plan.steps
    )
    return replace(plan, steps=tuple(steps), ledger=ledger)


def plan_export(
    store: Store,
    *,
    keys: Sequence[str] = (),
    filters: Sequence[str] = (),
    since: "DiffSide | None" = None,
    only: Callable[[Entry], bool] | None = None,
    side_caches: bool | None = None,
    depth: Depth = Depth.DATED,
    by_use: bool = False,
    records: bool = True,
    scan_result: Scan | None = None,
    now_ns: int,
    progress: Progress | None = None,
) -> ExportPlan:
    """Choose entries as ``ls`` does.

    Args:
        since: leave out entries that this side has with the same payload.
        only: of those chosen, the entries for which this is true.
        side_caches: whether XLA's autotuning results go too; by default if nothing was selected.
        headers: read the compile seconds of every entry even if the selection does not need them.
        by_use: date entries by their last use, not by their ``-atime`` files.
        records: whether the events of the ledger go with their entries.
        scan_result: the cache, where the caller has read all of it already.

    Raises:
        UsageError, NoCacheError
        JaxcacheError: a KEY fits nothing, or more than it may.
    """
    selection = Selection.parse(keys, filters, "key")
    if scan_result is None:
        depth = max(depth, selection.scan_depth(has_headers=True))
        scan_result = scan(store, ScanAids(progress=progress), depth, deep=True)
    selected = selection.pick_sorted(scan_result.entries, now_ns)
    chosen = {e.file for e in selected if only is None or only(e)}
    ledger = Ledger() if scan_result.ledger is None else scan_result.ledger
    policy = ImportPolicy()
    events = travelling_events(ledger) if records else {}
    inventory = scan_result.inventory
    files = [file for file in inventory.entries if file.info.name in chosen]
    if by_use:
        used_ns: Mapping[str, int | None] = {e.key: e.last_used_ns for e in scan_result.entries}
        unreadable = _unreadable_dates(scan_result)
    else:
        used_ns, unreadable = read_stamps(store, files, inventory.atimes)
    steps = [*_entry_steps(files, policy, used_ns, events), *unreadable]
    if (not keys and not filters) if side_caches is None else side_caches:
        steps += side_steps(inventory, policy, now_ns)
    anything = any(step.action is not MoveAction.LEFT for step in steps)
    return ExportPlan(
        store.url,
        tuple(steps),
        ledger,
        now_ns,
        since.reference if since else None,
        since.entries if since else {},
        dated=bool(inventory.atimes),
        seen=scan_result,
        warnings=() if anything else (empty_warning(store.url),),
    )


def empty_warning(url: str) -> str:
    """Return the warning about a cache that offers nothing."""
    return f"no entries in {url}"


def _entry_steps(
    files: Iterable[EntryFile],
    policy: ImportPolicy,
    used_ns: Mapping[str, int | None],
    events: Mapping[str, tuple[Event, ...]],
) -> Iterator[Step]:
    """Yield entries by module, size and name, so that programs that differ little are near."""
    sound: list[EntryFile] = []
    for file in sorted(files, key=lambda f: f.info.name):
        if reason := policy.name_error(file.info.name):
            yield Step(entry_item(file), MoveAction.STRAY, reason)
        else:
            sound.append(file)
    for file in sorted(sound, key=lambda f: (f.key.module, f.info.size_bytes, f.info.name)):
        key = file.key_text
        yield Step(entry_item(file, used_ns.get(key), events.get(key, ())), MoveAction.WRITE)


def _unreadable_dates(scan_result: Scan) -> list[Step]:
    """Return steps for ``-atime`` files that a scan could not read."""
    return [
        Step(Item(p.file, None, 0, 0), MoveAction.FAILED, p.detail, p.kind)
        for p in scan_result.problems
        if p.kind == "unreadable" and p.file.endswith(ATIME_SUFFIX)
    ]


def entry_item(file: EntryFile, used_ns: int | None = None, events: tuple[Event, ...] = ()) -> Item:
    """Return an entry of a store as an item."""
    info = file.info
    created_ns = max(0, info.mtime_ns)
    return Item(info.name, file.key_text, info.size_bytes, created_ns, used_ns, info, events=events)


def read_stamps(
    store: Store, files: Iterable[EntryFile], atimes: Mapping[str, FileInfo]
) -> tuple[dict[str, int | None], list[Step]]:
    """Read the ``-atime`` files of entries: the dates by key, and steps for unreadable files."""
    dated = [f.key_text for f in files if f.kind is FileKind.ENTRY and f.key_text in atimes]
    names = [atimes[key].name for key in dated]
    stamps: dict[str, int | None] = {}
    unreadable: list[Step] = []
    for key, data in zip(dated, store.read_many(names, limit=ATIME_BYTES + 1), strict=True):
        if isinstance(data, bytes):
            stamps[key] = parse_atime(data)
        elif isinstance(data, StoreError) and not isinstance(data, MissingError):
            info = atimes[key]
            item = Item(info.name, None, info.size_bytes, info.mtime_ns, info=info)
            unreadable.append(Step(item, MoveAction.FAILED, data.reason))
    return stamps, unreadable
