"""Knowledge about entries beyond their files: digests, exact times, versions, hits, pins.

The ledger is a directory of segments, ``.jaxcache/ledger/<time_ns>-<random>.jsonl``. A segment is
written once, atomically, and never changed, so that two writers cannot disturb each other, a
crash leaves a whole segment or none, and two ledgers merge by putting their segments into one
directory. Each line is one event: a JSON object with ``key``, ``kind``, ``at_ns`` and facts.

The ledger helps and never hinders: a missing directory is an empty ledger, a damaged line or
segment is skipped and counted, a fact of the wrong type is left out, and a cache that cannot be
written simply learns nothing.
"""

import json
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any, NamedTuple, cast

from jaxcache.cache.ledger.record import DIGEST_FACTS, HIT, IMPORTED, Event, LedgerRecord, fold
from jaxcache.core.configuration import report_once
from jaxcache.core.ledger import (
    COUNTED,
    MAX_AHEAD_NS,
    MAX_LEDGER_BYTES,
    PINNING,
    SEGMENT_KIND,
    SUMS,
    Lines,
    add_totals,
    choose_live,
    is_compacted,
    is_open,
    parse_lines,
    read_lines,
    seconds_of,
    sum_uses,
)
from jaxcache.core.names import LEDGER_DIR, OWN_DIR, live_directory
from jaxcache.core.signing import MAX_RECORD_BYTES, RECORD, TierRefusal, read_record
from jaxcache.core.system import is_own_or_roots
from jaxcache.errors import JaxcacheError
from jaxcache.model import FileInfo
from jaxcache.store.base import FetchedFile, Store, StoreError
from jaxcache.store.local import LocalStore
from jaxcache.units import format_compiling, format_count

#: Longer segments are damaged: nothing here writes such.
MAX_SEGMENT_BYTES = 32 << 20
#: Readings of a directory that is compacted meanwhile.
_ATTEMPTS = 20
#: A later attempt waits so much longer: whoever compacts all the time must pause as well.
_PAUSE_SECONDS = 0.005

SEGMENT_SUFFIX = ".jsonl"
_NAME = re.compile(r"\d{1,20}-(c[0-9a-f]{16}-\d{1,6}|[0-9a-f]{16})\.jsonl")


@dataclass(slots=True)
class Ledger:
    """Every event of a cache, folded by key; :func:`Ledger.load` makes one."""

    files: tuple[FileInfo, ...] = ()
    """The segments that were read."""
    damaged: int = 0
    """Segments and lines that could not be read and were skipped."""
    _events: dict[str, dict[str, Event]] = field(default_factory=dict)
    originals: frozenset[str] = frozenset()
    """Names of every segment that is folded in here, present or compacted away."""
    is_compact: bool = False
    """Whether all of it is one compaction."""
    totals: dict[str, float] = field(default_factory=dict)
    """Sums over the events that compactions have left out (:func:`sum_uses`)."""
    events_ahead: list[Event] = field(default_factory=list)
    """Events that count for nothing until the clock has come near their dates. The clock may be the
    one that is wrong, so a compaction keeps them as they are."""

    unread: list[StoreError] = field(default_factory=list)
    """Failures of the disk to read a segment, which may hold pins."""

    @property
    def segments(self) -> list[str]:
        """Names of the segments that were read."""
        return [file.name.rpartition("/")[2] for file in self.files]

    @classmethod
    def load(
        cls, store: Store, *, to_compact: bool = False, listed: Sequence[FileInfo] = ()
    ) -> "Ledger":
        """Read the ledger of a cache; an empty one if it has none, or none is readable.

        Args:
            to_compact: without the segments that a client may still rewrite.
            listed: the files of a bucket's ledger, where the caller has listed them.
        """
        segments = _read_segments(store, listed)
        if to_compact:
            now_ns = time.time_ns()
            segments = [s for s in segments if not is_open(s.name, now_ns)]
        ledger = cls(damaged=sum(s.damaged for s in segments))
        ledger.unread = [s.failure for s in segments if s.failure]
        readable = [s for s in segments if not s.failure]
        ledger.files = tuple(s.file for s in readable)
        live, ledger.originals, chosen = choose_live(readable)
        ledger.is_compact = len(chosen) == 1 and len(chosen[0]) == len(readable)
        for segment in live:
            ledger.totals = add_totals(ledger.totals, segment.totals)
        latest_ns = time.time_ns() + MAX_AHEAD_NS
        for event in sorted((e for s in live for e in s.events), key=lambda e: e.at_ns):
            if event.at_ns <= latest_ns or event.kind in PINNING:
                ledger._add(event)
            else:
                ledger.events_ahead.append(event)
        return ledger

    @classmethod
    def of(cls, events: Iterable[Event]) -> "Ledger":
        """Make a ledger of events from outside a cache; they count as imported, not as observed."""
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

    def check_pins(self) -> None:
        """Refuse to go on where a failing disk may hide a pin.

        A segment that this user may not read does not count: it would block every prune.

        Raises:
            JaxcacheError: ``pins-unread``.
        """
        for failure in self.unread:
            if failure.code == "io-error" and not isinstance(failure.__cause__, PermissionError):
                raise JaxcacheError(
                    f"{failure.message}: it may hold pins, so nothing is removed",
                    code="pins-unread",
                    hint=f"check the disk and {LEDGER_DIR}, and run the command again",
                )

    def events(self) -> Iterator[Event]:
        """Yield the fewest events with the same meaning: one per key and kind, each fact once."""
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
        facts = cast("dict[str, Any]", before.facts) if before else {}  # our own: grows in place
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
    """Whether a name in the ledger is one that ``append`` or ``compact`` gives."""
    return bool(_NAME.fullmatch(name.rpartition("/")[2]))


@dataclass(slots=True)
class _Segment:
    file: FileInfo
    events: list[Event] = field(default_factory=list)
    replaces: frozenset[str] = frozenset()
    parts: frozenset[str] = frozenset()
    totals: dict[str, float] = field(default_factory=dict)
    damaged: int = 0
    failure: StoreError | None = None

    @property
    def name(self) -> str:
        return self.file.name.rpartition("/")[2]


def _read_segments(store: Store, listed: Sequence[FileInfo]) -> list[_Segment]:
    for attempt in range(_ATTEMPTS):
        time.sleep(_PAUSE_SECONDS * attempt)
        files = _choose(listed) if listed and not attempt else list_segments(store)
        segments = _read_listed(store, files)
        if len(segments) == len(files) and (store.remote or not _newly_compacted(store, files)):
            break  # else a compaction went on meanwhile: what it replaced may have been overlooked
    return segments


def list_segments(store: Store) -> list[FileInfo]:
    """List the segments of a local ledger, or of a bucket's; none where it cannot be listed."""
    try:
        return _choose(store.list(LEDGER_DIR))
    except Exception:  # no directory, no permission: nothing is known
        if store.remote:  # nothing of the rest will work, and pins must not be overlooked
            raise
        return []


def _choose(files: Iterable[FileInfo]) -> list[FileInfo]:
    """Choose the segments among the files of a ledger."""
    return sorted(i for i in files if i.type == "file" and i.name.endswith(SEGMENT_SUFFIX))


def _newly_compacted(store: Store, before: Sequence[FileInfo]) -> bool:
    earlier_names = {i.name for i in before}
    return any(is_compacted(i.name) and i.name not in earlier_names for i in list_segments(store))


def _read_listed(store: Store, files: Sequence[FileInfo]) -> list[_Segment]:
    segments = []
    for info, read in zip(files, read_segments(store, files), strict=True):
        if isinstance(read, StoreError):
            if read.code != "missing":  # compacted away since the listing
                segments.append(_Segment(info, damaged=1, failure=read))
            continue
        lines = read_lines(info.name.rpartition("/")[2], read.data)
        events = list(_read_events(lines))
        damaged = lines.damaged + len(lines.values) - len(events)
        if not is_own(store, read.info):
            events = [event.without_digest() for event in events]
        contents = (events, lines.replaces, lines.parts, lines.totals, damaged)
        segments.append(_Segment(info, *contents))
    return segments


def read_segments(store: Store, files: Sequence[FileInfo]) -> Iterator[FetchedFile | StoreError]:
    """Read segments, in order, each with its owner; a failure takes its place.

    Of segments that are larger than any ledger together, none is read.
    """
    if sum(min(info.size_bytes, MAX_SEGMENT_BYTES) for info in files) > MAX_LEDGER_BYTES:
        reason = f"the ledger holds more than {MAX_LEDGER_BYTES >> 20} MiB and is ignored"
        report_once(f"{store.url}: {reason}; remove {LEDGER_DIR} from it")
        yield from (StoreError(info.name, reason, code="io-error") for info in files)
        return
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
    """Return whether this user or root wrote a segment; False for a bucket, which has no owners."""
    return not store.remote and is_own_or_roots(info.owner)


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
            lines.append(segment_line(values))
        elif values and (event := Event.from_json(values)) and (imported := event.imported(now_ns)):
            lines.append(segment_line(imported.to_json()))
    return b"".join(lines)


def segment_line(values: Mapping[str, Any]) -> bytes:
    """Return one line of a segment."""
    return json.dumps(values, separators=(",", ":")).encode() + b"\n"


#: Reasons of compile requests that are neither a hit nor a miss: the cache was not to serve them.
_NO_MISS = frozenset(
    {"verified", "same-hlo", "not-deterministic", "collected", "interrupted", "shared-by-process-0"}
)


def is_miss(outcome: str, reason: str, key: str | None) -> bool:
    """Whether a compile request is a miss: it has a key, and the cache did not serve it.

    JAX makes no key where its cache is off or the platform has none. What a guard refused was never
    compiled, and JAX counts no miss.
    """
    return key is not None and outcome not in ("hit", "refused") and reason not in _NO_MISS


def hit_rate(hits: int, misses: int) -> float | None:
    """Return hits over hits and misses; None without any."""
    return hits / (hits + misses) if hits + misses else None


@dataclass(frozen=True, slots=True)
class Uses:
    """The recorded uses of a cache; every field is None where nothing was recorded."""

    hits: int | None = None
    misses: int | None = None
    """Compiles that the cache did not serve, whether or not they were written."""
    hit_rate: float | None = None
    """Hits over hits and misses."""
    saved_seconds: float | None = None
    """Compile seconds of the hits less their retrieval; hits of one run at the same time count
    once."""

    def __str__(self) -> str:
        if self.hits is None or self.misses is None:
            return "hits not recorded"
        of = f"{self.hits:,} of {format_count(self.hits + self.misses, 'compile')} hit"
        return f"{of}, saved {format_compiling(self.saved_seconds or 0.0, self.hits)}"


def count_uses(ledger: Ledger) -> Uses:
    """Sum up the hits and misses of a ledger, those of entries that are gone included."""
    counted = add_totals(ledger.totals, sum_uses(e.to_json() for e in ledger.events()))
    if not counted:
        return Uses()
    hits = int(counted.get("hits", 0))
    misses = int(counted.get("misses", 0))
    return Uses(hits, misses, hit_rate(hits, misses), float(counted.get("saved_seconds", 0.0)))


class LiveStats(NamedTuple):
    """What the live layer has counted in a cache, and what it has refused."""

    totals: dict[str, int | float] | None
    """Its counts, by name; None where it has not been on."""
    refusals: tuple[TierRefusal, ...]
    """What it has refused from tiers, and what is still to be mended."""


def read_refusals(store: Store) -> tuple[TierRefusal, ...]:
    """Return what the live layer has refused from tiers, and what is still to be mended.

    The record is in the local directory; that of a bucket is the one that JAX puts before it.
    """
    # A bundle's store reads no other file; without a home directory there is no local one.
    with suppress(JaxcacheError, AttributeError, FileNotFoundError):
        local = LocalStore(live_directory(store.url)) if store.remote else store
        return read_record(local.read(f"{OWN_DIR}/{RECORD}", limit=MAX_RECORD_BYTES))
    return ()


def live_totals(store: Store) -> dict[str, int | float] | None:
    """Return the live layer's counts in this cache, by name; None where it has not been on."""
    try:
        counts = json.loads(store.read(f"{OWN_DIR}/live/totals", limit=1 << 16))
        totals = {str(n): v for n, v in counts.items() if type(v) in (int, float) and 0 <= v < inf}
    except (JaxcacheError, OSError, ValueError, AttributeError, RecursionError):
        return None
    return {n: v if n.endswith("_seconds") else int(v) for n, v in sorted(totals.items())}
