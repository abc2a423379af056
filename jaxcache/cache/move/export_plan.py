"""What a cache offers for a move, and what is done about each item by what the target has of it."""

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from jaxcache.cache.archive import hash_chunks, read_chunks
from jaxcache.cache.bundle.format import JAX
from jaxcache.cache.diff import DiffEntry, DiffSide
from jaxcache.cache.files import ATIME_BYTES, EntryFile, Inventory, parse_atime, take_inventory
from jaxcache.cache.ledger.record import PAYLOAD, Event
from jaxcache.cache.ledger.segments import Ledger
from jaxcache.cache.move.plan import Item, ItemFacts, MoveAction, Step, Steps
from jaxcache.cache.scan import Scan, UnknownFormats, scan
from jaxcache.cache.selection import Selection
from jaxcache.cache.verify.check import ImportPolicy, read_content
from jaxcache.core.ledger import PINNING
from jaxcache.core.names import ATIME_SUFFIX, AUTOTUNE_DIR, KERNEL_CACHE
from jaxcache.entry.codec import CodecError, check_frame
from jaxcache.entry.names import FileKind
from jaxcache.entry.summary import Entry
from jaxcache.errors import JaxcacheError, UsageError
from jaxcache.model import GRACE_NS, Depth, FileInfo, report_progress
from jaxcache.store.base import MissingError, Store, StoreError
from jaxcache.store.concurrency import map_ordered

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
    known: Mapping[str, DiffEntry] = field(default_factory=dict)
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
    since: DiffSide | None = None,
    only: Callable[[Entry], bool] | None = None,
    side_caches: bool | None = None,
    depth: Depth = Depth.DATED,
    by_use: bool = False,
    records: bool = True,
    scan_result: Scan | None = None,
    now_ns: int,
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
        scan_result = scan(store, depth=depth, deep=True)
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


ON_CONFLICT = ("keep", "replace", "fail")
#: Decides about an item whose name is that of a regular file in the target.
LookThere = Callable[[Item, FileInfo], Step]


def choose(
    item: Item, present: Mapping[str, FileInfo], policy: ImportPolicy, look: LookThere
) -> Step:
    """Decide about one item.

    Args:
        present: the files of the target by name.
        policy: knows the names in the target, and refuses those that no cache takes.
        look: decides where the target has a file of that name.
    """
    if reason := policy.name_error(item.name):
        return Step(item, MoveAction.BLOCKED, reason)
    info = present.get(item.name)
    if info is None:
        return Step(item, MoveAction.WRITE)
    if info.type != "file":
        return Step(item, MoveAction.BLOCKED, f"a {info.type} has its name")
    return look(item, info)


def list_target(target: Store | None) -> Inventory:
    """List everything that a target holds; None is a directory that does not exist yet."""
    return take_inventory(target, deep=True) if target else Inventory()


def choose_all(
    offered: Sequence[Step], inventory: Inventory, look: LookThere, *, at_once: bool = False
) -> tuple[Step, ...]:
    """Decide about each step that writes; the others stay as they are.

    Args:
        inventory: of the target.
        at_once: look at several files of the target at once.
    """
    present = {i.name: i for kind, i in inventory.files() if kind is not FileKind.ATIME}
    policy = ImportPolicy(present)

    def decide(step: Step) -> Step:
        return choose(step.item, present, policy, look) if step.action is MoveAction.WRITE else step

    steps = map_ordered(decide, offered) if at_once else map(decide, offered)
    return tuple(counted(steps, len(offered)))


def has_atimes(theirs: Inventory, target: Store | None, *, dated: bool) -> bool:
    """Return whether new entries get an ``-atime`` file.

    A cache has them for all its entries or for none: JAX with a cap before 0.11.2 fails on the
    first that lacks one, and JAX without a cap writes none. A new directory has them where a cap
    is set, or where the directory that it is filled from has them. A bucket, which no JAX evicts
    from, is spared the requests.

    Args:
        dated: whether the source has any.
    """
    wanted = dated or os.environ.get("JAX_COMPILATION_CACHE_MAX_SIZE", "-1") != "-1"
    return bool(theirs.atimes or (wanted and not (theirs.entries or (target and target.remote))))


def look_at_frames(target: Store | None, now_ns: int) -> LookThere:
    """Compare sizes, and read the block headers of a local entry that has another size."""

    formats = UnknownFormats(target) if target else None

    def look(item: Item, info: FileInfo) -> Step:
        # Sealed entries differ in size, too, so that another size is only a reason to look.
        differs = item.key is not None and info.size_bytes != item.size_bytes
        try:
            if formats and differs and is_truncated(formats, info, now_ns):
                return Step(item, MoveAction.HEAL, there=info)
        except MissingError:
            return Step(item, MoveAction.WRITE)
        except StoreError as error:
            return Step(item, MoveAction.BLOCKED, error.reason)
        return Step(item, MoveAction.PRESENT)

    return look


def is_truncated(formats: UnknownFormats, info: FileInfo, now_ns: int) -> bool:
    """Return whether a file that is not young is empty, or ends before its frame does.

    Raises:
        StoreError: it cannot be read.
    """
    target = formats.store
    if abs(now_ns - info.mtime_ns) < GRACE_NS and not target.remote:
        return False
    if info.size_bytes == 0:
        return True
    if target.remote:
        return False
    try:
        with target.open(info.name) as opened:
            check_frame(opened, info.size_bytes)
    except CodecError as error:
        return not formats.covers(error)
    return False


def look_at_payloads(
    target: Store | None, on_conflict: str, read: Callable[[Item], Item | Step] | None = None
) -> LookThere:
    """Compare payloads; what the target has is read whole.

    Args:
        target: None if nothing exists to compare with.
        read: reads an item whose contents nothing has read yet, and returns it with its facts, or
            how it ended.

    Raises:
        UsageError: ``on_conflict`` is not in :data:`ON_CONFLICT`.
    """
    if on_conflict not in ON_CONFLICT:
        raise UsageError(f"{on_conflict!r} is not one of {', '.join(ON_CONFLICT)}")
    formats = UnknownFormats(target) if target else None
    chosen = MoveAction.REPLACE if on_conflict == "replace" else MoveAction.KEEP

    def look(item: Item, info: FileInfo) -> Step:
        if formats is None:
            return Step(item, MoveAction.WRITE)
        if item.facts is None and read is not None:
            content = read(item)
            if isinstance(content, Step):
                return content
            item = content
        try:
            here = _facts_there(formats, item, info)
        except CodecError as error:
            return Step(item, MoveAction.HEAL, error.detail, there=info)
        except MissingError:
            return Step(item, MoveAction.WRITE)
        except StoreError as error:
            return Step(item, MoveAction.BLOCKED, error.reason)
        return _compare(item, here, info, chosen)

    return look


def _facts_there(formats: UnknownFormats, item: Item, info: FileInfo) -> ItemFacts:
    """Read what the target has under the name of an item."""
    content = None
    with formats.store.open(info.name) as file:
        try:
            if item.key is not None:
                content = read_content(file, info.size_bytes, info.name, sound=item.sha256)
        except CodecError as error:
            if not formats.covers(error):
                raise
            file.seek(0)
        if content is None:
            return ItemFacts(hash_chunks(read_chunks(file)), info.size_bytes)
    return ItemFacts(
        content.payload_sha256, content.payload_bytes, compile_seconds=content.compile_seconds
    )


def _compare(item: Item, here: ItemFacts, info: FileInfo, chosen: MoveAction) -> Step:
    if here.sha256 != item.sha256:
        what = "another one is here" if item.key is None else "another payload is here"
        return Step(item, chosen, what, differs=True, there=info)
    seconds = item.facts.compile_seconds if item.facts else 0
    if item.key is None or here.compile_seconds == seconds:
        return Step(item, MoveAction.SAME)
    # The same executable: how long it took to compile is not a conflict.
    action = MoveAction.REPLACE if chosen is MoveAction.REPLACE else MoveAction.SAME
    detail = f"took {here.compile_seconds} s here and {seconds} s there"
    return Step(item, action, detail, there=info)


def compare_payloads(
    target: Store | None,
    offered: Sequence[Step],
    inventory: Inventory,
    on_conflict: str,
    *,
    read: Callable[[Item], Item | Step] | None = None,
) -> tuple[Step, ...]:
    """Decide about each step that writes by the payloads that the target has.

    Raises:
        UsageError, JaxcacheError: see :func:`look_at_payloads` and :func:`refuse_conflicts`.
    """
    look = look_at_payloads(target, on_conflict, read)
    at_once = target is not None and target.remote
    steps = choose_all(offered, inventory, look, at_once=at_once)
    refuse_conflicts(steps, on_conflict)
    return steps


def refuse_conflicts(steps: Iterable[Step], on_conflict: str) -> None:
    """Refuse a plan that would keep other contents, where that is not wanted.

    Raises:
        JaxcacheError: ``conflict``.
    """
    kept = [step for step in steps if step.action is MoveAction.KEEP]
    if on_conflict == "fail" and kept:
        what = "files" if kept[0].key is None else "entries"
        raise JaxcacheError(
            f"{len(kept)} {what} are there already with other contents, {kept[0].name} first",
            code="conflict",
            hint="--on-conflict keep or replace decides for all of them",
        )


def counted(steps: Iterable[Step], total: int) -> Iterator[Step]:
    """Yield steps, and report how many there were."""
    for number, step in enumerate(steps, 1):
        yield step
        report_progress(number, total)
