"""Knowledge about entries beyond their files: digests, exact times, versions, hits, pins.

The ledger is a directory of segments, ``.jaxcache/ledger/<time_ns>-<random>.jsonl``. A segment is
written once, atomically, and never changed, so that two writers cannot disturb each other, a
crash leaves a whole segment or none, and two ledgers merge by putting their segments into one
directory. Each line is one event: a JSON object with ``key``, ``kind``, ``at_ns`` and facts.

The ledger helps and never hinders: a missing directory is an empty ledger, a damaged line or
segment is skipped and counted, a fact of the wrong type is left out, and a cache that cannot be
written simply learns nothing.
"""

import contextlib
import hashlib
import json
import os
import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

from jaxcache.cache.ledger.record import (
    DIGEST_FACTS,
    HIT,
    IMPORTED,
    SKETCH,
    Event,
    LedgerRecord,
    fold,
)
from jaxcache.core.ledger import (
    COMPACT_ABOVE,
    COUNTED,
    MAX_AHEAD_NS,
    MAX_LINE_BYTES,
    MAX_REPLACED,
    PINNING,
    SEGMENT_KIND,
    SUMS,
    Lines,
    add_totals,
    choose_forgotten,
    choose_live,
    is_compacted,
    is_open,
    parse_lines,
    read_lines,
    seconds_of,
    sum_uses,
)
from jaxcache.core.names import LEDGER_DIR, TEMP_PREFIX
from jaxcache.entry.names import split_name
from jaxcache.errors import JaxcacheError
from jaxcache.model import FileInfo
from jaxcache.store.base import FetchedFile, Store, StoreError

#: Longer segments are damaged: nothing here writes such.
MAX_SEGMENT_BYTES = 32 << 20
#: Events are split over segments of about this size.
_SEGMENT_BYTES = 8 << 20
_NAMES_PER_LINE = 2_000
#: More segments than :data:`COMPACT_ABOVE`, or more bytes in them than in the compacted part and in
#: these, are compacted by the next :func:`append`.
_SLACK_BYTES = 256 << 10
#: Readings of a directory that is compacted meanwhile.
_ATTEMPTS = 5
#: Sketches of one module that a compaction keeps.
_KEPT_SKETCHES = 8
_LOCK = f"{LEDGER_DIR}/{TEMP_PREFIX}compact"

_SUFFIX = ".jsonl"
_NAME = re.compile(r"\d{1,20}-(c[0-9a-f]{16}-\d{1,6}|[0-9a-f]{16})\.jsonl")


@dataclass(slots=True)
class Ledger:
    """Every event of a cache, folded by key; :func:`Ledger.load` makes one."""

    segments: tuple[str, ...] = ()
    """Names of the segments that were read."""
    damaged: int = 0
    """Segments and lines that could not be read and were skipped."""
    _events: dict[str, dict[str, Event]] = field(default_factory=dict)
    originals: frozenset[str] = frozenset()
    """Names of every segment that is folded in here, present or compacted away."""
    _is_compact: bool = False
    """Whether all of it is one compaction."""
    totals: dict[str, float] = field(default_factory=dict)
    """Sums over the events that compactions have left out (:func:`sum_uses`)."""

    @classmethod
    def load(cls, store: Store, *, to_compact: bool = False) -> "Ledger":
        """Read the ledger of a cache; an empty one where there is none, or none readable.

        Args:
            to_compact: without the segments that a client may still write anew.
        """
        segments = _read_segments(store)
        if to_compact:
            now_ns = time.time_ns()
            segments = [s for s in segments if not is_open(s.name, now_ns)]
        ledger = cls(damaged=sum(s.damaged for s in segments))
        readable = [s for s in segments if s.readable]
        ledger.segments = tuple(s.name for s in readable)
        live, ledger.originals, chosen = choose_live(readable)
        ledger._is_compact = len(chosen) == 1 and len(chosen[0]) == len(readable)
        for segment in live:
            ledger.totals = add_totals(ledger.totals, segment.totals)
        latest_ns = time.time_ns() + MAX_AHEAD_NS
        events = (e for s in live for e in s.events)
        dated = (e for e in events if e.at_ns <= latest_ns or e.kind in PINNING)
        for event in sorted(dated, key=lambda e: e.at_ns):
            ledger._add(event)
        return ledger

    @classmethod
    def of(cls, events: Iterable[Event]) -> "Ledger":
        """Make one of events that are in no cache: nobody here has observed what they tell."""
        ledger = cls()
        now_ns = time.time_ns()
        brought = (imported for event in events if (imported := event.imported(now_ns)))
        for event in sorted(brought, key=lambda e: e.at_ns):
            ledger._add(event)
        return ledger

    def __len__(self) -> int:
        return len(self._events)

    def __bool__(self) -> bool:
        return bool(self._events)

    def __contains__(self, key: str) -> bool:
        return key in self._events

    def __iter__(self) -> Iterator[str]:
        """Yield every key that something is known of, whether or not its entry exists."""
        return iter(self._events)

    def record(self, key: str) -> LedgerRecord | None:
        """Everything known of one key, later facts over earlier ones; None if nothing is."""
        events = self._events.get(key)
        return fold(key, events.values()) if events else None

    @property
    def jax_versions(self) -> tuple[str, ...]:
        """The versions of JAX that its records name, sorted."""
        records = filter(None, map(self.record, self))
        return tuple(sorted({record.jax_version for record in records if record.jax_version}))

    def events(self) -> Iterator[Event]:
        """Yield the fewest events that say the same: one per key and kind, each fact once."""
        for kinds in self._events.values():
            latest: dict[str, Any] = {}
            new: dict[str, Event] = {}
            for event in sorted(kinds.values(), key=lambda e: e.at_ns):
                digest = {n: v for n, v in event.facts.items() if n in DIGEST_FACTS}
                is_new = digest != {n: latest[n] for n in DIGEST_FACTS if n in latest}
                facts = {
                    name: value
                    for name, value in event.facts.items()
                    if name == "count"
                    or (is_new and name in digest)
                    or type(latest.get(name)) is not type(value)
                    or latest.get(name) != value
                }
                if digest:
                    latest = {n: v for n, v in latest.items() if n not in DIGEST_FACTS}
                latest.update(event.facts)
                new[event.kind] = replace(event, facts=facts)
            yield from (new[kind] for kind in kinds)

    def _add(self, event: Event) -> None:
        """Join an event to the ones of its kind; events come in the order of their times."""
        kinds = self._events.setdefault(event.key, {})
        if event.kind in PINNING:
            for kind in PINNING:
                kinds.pop(kind, None)
            kinds[event.kind] = event
            return
        before = kinds.get(event.kind)
        facts = cast(dict[str, Any], before.facts) if before else {}  # our own: grows in place
        count = (before.count if before else 0) + event.count
        if "payload_sha256" in event.facts:  # what describes the file comes with its digest
            for name in DIGEST_FACTS:
                facts.pop(name, None)
        else:
            event = event.without_digest()
        all_imported = IMPORTED in event.facts and (before is None or IMPORTED in facts)
        sums: dict[str, float] = {}
        if event.kind == HIT:
            sums = {n: seconds_of(facts, n) + seconds_of(event.facts, n) for n in SUMS}
        facts.update(event.facts)
        facts.update({name: total for name, total in sums.items() if total})
        if not all_imported:
            facts.pop(IMPORTED, None)
        if event.kind == HIT or (event.kind in COUNTED and before):
            facts["count"] = count
        kinds[event.kind] = Event(event.key, event.kind, event.at_ns, facts)


def is_segment(name: str) -> bool:
    """Whether a name in the ledger is one that :func:`append` or :func:`compact` gives."""
    return bool(_NAME.fullmatch(name.rpartition("/")[2]))


def append(store: Store, events: Iterable[Event]) -> bool:
    """Add events to the ledger; durable when it returns. Compact a local one that has grown.

    An event of more than :data:`MAX_LINE_BYTES` is left out.

    Returns:
        Whether they are kept; False where the cache cannot be written.
    """
    batches = list(_batches(events))
    if batches and not store.writable:
        return False
    try:
        for lines, at_ns in batches:
            name = f"{LEDGER_DIR}/{at_ns:020d}-{os.urandom(8).hex()}{_SUFFIX}"
            store.write(name, lines, replace=False)
    except StoreError:
        return False
    if batches and not store.remote and _has_grown(store):
        compact(store)
    return True


def _has_grown(store: Store) -> bool:
    """Return whether a ledger holds much more than its compacted part."""
    sizes: dict[bool, list[int]] = {True: [], False: []}
    for info in store.list(LEDGER_DIR):
        if is_segment(info.name) and info.size_bytes <= MAX_SEGMENT_BYTES:
            sizes[is_compacted(info.name)].append(info.size_bytes)
    return len(sizes[False]) > COMPACT_ABOVE or sum(sizes[False]) > sum(sizes[True]) + _SLACK_BYTES


def compact(store: Store) -> Ledger:
    """Write the ledger anew as few segments and delete those that they replace.

    It keeps the keys with an entry, pinned ones, and as many of the others as there are entries,
    the latest first; of the rest, the sums. The new segments name the ones they stand for, so that
    a copy of those which comes back in a merge is not counted twice. Safe to interrupt; while
    another process compacts a local ledger, it is left to that one.

    Returns:
        The ledger as it was read.
    """
    if not store.writable or not _list_segments(store):
        return Ledger.load(store)
    for info in store.list(LEDGER_DIR):
        if info.name.rpartition("/")[2].startswith(TEMP_PREFIX):
            store.delete_abandoned(info.name)
    ledger = None
    # Locked, or the disk is full: the parts of an unfinished compaction count for nothing.
    with contextlib.suppress(StoreError), store.hold(_LOCK):
        ledger = Ledger.load(store, to_compact=True)
        if ledger.segments:
            _compact(store, ledger, _worth_keeping(store, ledger))
    return Ledger.load(store)


def _compact(store: Store, ledger: Ledger, keep: Callable[[str], bool]) -> None:
    segment_names = frozenset(ledger.segments)
    history = sorted(ledger.originals - segment_names)[-MAX_REPLACED:]
    replaces = sorted(segment_names.union(history))
    sketched = _newest_sketches(ledger)
    kept = (e for e in ledger.events() if keep(e.key) and (e.kind != SKETCH or e.key in sketched))
    batches = list(_batches(kept)) or [([], 0)]
    if ledger._is_compact and all(map(keep, ledger)):
        return
    forgotten = (e.to_json() for e in ledger.events() if not keep(e.key))
    totals = add_totals(ledger.totals, sum_uses(forgotten))
    digest = hashlib.sha256("\n".join(replaces).encode())
    for lines, _ in batches:
        digest.update(b"".join(lines))
    stem = f"{replaces[-1].partition('-')[0]}-c{digest.hexdigest()[:16]}"
    names = [f"{stem}-{i}{_SUFFIX}" for i in range(len(batches))]
    for index, (name, (lines, _)) in enumerate(zip(names, batches, strict=True)):
        stands_for = replaces if index == 0 else []
        headers = [
            _line(
                {
                    "kind": SEGMENT_KIND,
                    "replaces": stands_for[at : at + _NAMES_PER_LINE],
                    "parts": names,
                    "totals": totals if index == at == 0 else {},
                }
            )
            for at in range(0, len(stands_for) or 1, _NAMES_PER_LINE)
        ]
        store.write(f"{LEDGER_DIR}/{name}", [*headers, *lines])
    for name in segment_names:
        store.delete(f"{LEDGER_DIR}/{name}")


def _newest_sketches(ledger: Ledger) -> set[str]:
    """Return the keys whose sketches a compaction keeps: the newest few of each module."""
    modules: defaultdict[str, list[Event]] = defaultdict(list)
    for event in ledger.events():
        if event.kind == SKETCH:
            modules[event.key.rpartition("-")[0]].append(event)
    newest = (
        sorted(sketches, key=lambda e: e.at_ns)[-_KEPT_SKETCHES:] for sketches in modules.values()
    )
    return {event.key for sketches in newest for event in sketches}


def _worth_keeping(store: Store, ledger: Ledger) -> Callable[[str], bool]:
    try:
        present = {key for i in store.list() if (key := split_name(i.name)[1])}
    except JaxcacheError:
        return bool
    latest = {e.key: e.at_ns for e in sorted(ledger.events(), key=lambda e: e.at_ns)}
    present.update(key for key in latest if "/" in key and _is_file(store, key))
    pinned = (key for key in latest if (record := ledger.record(key)) and record.pinned)
    forgotten = choose_forgotten(latest, present, pinned)
    return lambda key: key not in forgotten


def _is_file(store: Store, path: str) -> bool:
    """Return whether a file of torch's, which is known by its path, is there."""
    try:
        return store.info(path).type == "file"
    except StoreError:
        return False


@dataclass(slots=True)
class _Segment:
    name: str
    events: list[Event] = field(default_factory=list)
    replaces: frozenset[str] = frozenset()
    parts: frozenset[str] = frozenset()
    totals: dict[str, float] = field(default_factory=dict)
    damaged: int = 0
    readable: bool = True


def _read_segments(store: Store) -> list[_Segment]:
    for _ in range(_ATTEMPTS):
        listed = _list_segments(store)
        segments = _read_listed(store, listed)
        if len(segments) == len(listed) and (store.remote or not _newly_compacted(store, listed)):
            break  # else a compaction went on meanwhile: what it replaced may have been overlooked
    return segments


def _list_segments(store: Store) -> list[FileInfo]:
    try:
        infos = sorted(i for i in store.list(LEDGER_DIR) if i.name.endswith(_SUFFIX))
    except Exception:  # no directory, no permission: nothing is known
        if store.remote:  # nothing of the rest will work, and pins must not be overlooked
            raise
        return []
    return [i for i in infos if i.type == "file"]


def _newly_compacted(store: Store, before: Sequence[FileInfo]) -> bool:
    earlier_names = {i.name for i in before}
    return any(is_compacted(i.name) and i.name not in earlier_names for i in _list_segments(store))


def _read_listed(store: Store, files: Sequence[FileInfo]) -> list[_Segment]:
    segments = []
    for info, read in zip(files, read_segments(store, files), strict=True):
        name = info.name.rpartition("/")[2]
        if isinstance(read, StoreError):
            if read.code != "missing":  # compacted away since the listing
                segments.append(_Segment(name, damaged=1, readable=False))
            continue
        lines = read_lines(name, read.data)
        events = list(_read_events(lines))
        damaged = lines.damaged + len(lines.values) - len(events)
        if not is_own(store, read.info):
            events = [event.without_digest() for event in events]
        segments.append(_Segment(name, events, lines.replaces, lines.parts, lines.totals, damaged))
    return segments


def read_segments(store: Store, files: Sequence[FileInfo]) -> Iterator[FetchedFile | StoreError]:
    """Read segments, in order, each with its owner; a failure takes its place."""
    if store.remote:
        read = store.read_many([i.name for i in files], limit=MAX_SEGMENT_BYTES + 1)
        for info, data in zip(files, read, strict=True):
            if isinstance(data, bytes) and len(data) > MAX_SEGMENT_BYTES:
                data = StoreError(info.name, "is too large", code="too-large")
            yield data if isinstance(data, StoreError) else FetchedFile(data, info)
        return
    for info in files:
        try:
            yield store.fetch(info.name, limit=MAX_SEGMENT_BYTES)
        except StoreError as error:
            yield error


def is_own(store: Store, info: FileInfo) -> bool:
    """Whether this user, or root, wrote a segment; of a bucket nobody can tell."""
    return not store.remote and info.owner in (os.geteuid(), 0)


def _read_events(segment: Lines) -> Iterator[Event]:
    return filter(None, map(Event.from_json, segment.values))


def read_events(data: bytes) -> list[Event]:
    """Return the events of a segment's content."""
    return list(_read_events(read_lines("", data)))


def import_lines(data: bytes, now_ns: int) -> bytes:
    """Return a segment's content as another cache takes it over; its headers stay."""
    lines = []
    for values in parse_lines(data):
        if values and values.get("kind") == SEGMENT_KIND:
            lines.append(_line(values))
        elif values and (event := Event.from_json(values)) and (imported := event.imported(now_ns)):
            lines.append(_line(imported.to_json()))
    return b"".join(lines)


def _line(values: Mapping[str, Any]) -> bytes:
    return json.dumps(values, separators=(",", ":")).encode() + b"\n"


def _batches(events: Iterable[Event]) -> Iterator[tuple[list[bytes], int]]:
    """Lines for one segment each, with the time of the latest event in it."""
    lines: list[bytes] = []
    size_bytes = at_ns = 0
    for event in events:
        line = _line(event.to_json())
        if len(line) > MAX_LINE_BYTES:
            continue
        if lines and size_bytes + len(line) > _SEGMENT_BYTES:
            yield lines, at_ns
            lines = []
            size_bytes = 0
            at_ns = 0
        lines.append(line)
        size_bytes += len(line)
        at_ns = max(at_ns, event.at_ns)
    if lines:
        yield lines, at_ns
