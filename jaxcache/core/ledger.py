"""The segments of a ledger: which of them count, and how many become one.

A segment is a file ``<time_ns>-<16 hex>.jsonl`` below ``.jaxcache/ledger/`` that is written once
and whole (docs/entry-format.md). A compaction, ``<time_ns>-c<16 hex>-<part>.jsonl``, begins with
lines of the kind ``segment``, which name the segments that it replaces, its parts, and the sums of
what it left out.
"""

import hashlib
import json
import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, cast

SEGMENT_KIND = "segment"
#: More segments than this are compacted.
COMPACT_ABOVE = 64
#: Replaced segments that a compaction remembers beyond those that it read, newest first.
MAX_REPLACED = 500
#: Keys without an entry whose events are kept: as many as there are entries, and at least these.
MIN_ABSENT = 1_000
#: What all segments hold together: a sparse file takes no space on the disk, and time to read.
MAX_LEDGER_BYTES = 256 << 20
#: Lines longer than this are damaged: nothing here writes such.
MAX_LINE_BYTES = 256 << 10
DAY_NS = 86_400 * 10**9
#: A client rewrites its segment of a day until the day is over, by any clock and time limit.
_OPEN_NS = DAY_NS + DAY_NS // 2
#: Kinds whose counts add up.
COUNTED = ("hit", "compile", "too-quick", "miss")
#: Kinds of which only the latest one of a key counts, even one dated in the future.
PINNING = ("pin", "unpin")
#: Facts of hits that add up: the seconds that ``timed`` of them saved as a run found it, and the
#: seconds that fetching the others took.
SUMS = ("saved_seconds", "timed", "retrieval_seconds")
_MAX_COUNT = 1 << 62
_MAX_SECONDS = 1e9
#: Dates further ahead of the clock than this are wrong, by a bad clock or on purpose.
MAX_AHEAD_NS = DAY_NS
#: Facts that accuse a file whose bytes are others.
DIGEST_FACTS = ("payload_sha256", "file_mtime_ns", "file_size_bytes", "file_inode")
#: The fact of an event that another cache recorded.
IMPORTED = "imported"
#: Years 1970 to 2262: the range of nanoseconds in 63 bits.
_MAX_NS = 2**63
_ENVELOPE = ("key", "kind", "at_ns")
#: A compaction splits events over segments of about this size.
_SEGMENT_BYTES = 8 << 20
_NAMES_PER_LINE = 2_000
#: Sketches of one module that a compaction keeps: programs of several shapes share one name.
_KEPT_SKETCHES = 64


class Event(NamedTuple):
    """Something that was learnt of one entry at one moment."""

    key: str
    kind: str
    """One of the constants of ``cache/ledger/record.py``; facts of an unknown kind count, too."""
    at_ns: int
    """Nanoseconds since the epoch."""
    facts: "Mapping[str, Any]" = MappingProxyType({})
    """The fields of ``LedgerRecord`` by name, and anything else JSON can hold."""

    def to_json(self) -> "dict[str, Any]":
        """The event as one JSON object; an absurd time becomes the nearest good one."""
        at_ns = min(max(self.at_ns, 0), _MAX_NS - 1)
        return {"key": self.key, "kind": self.kind, "at_ns": at_ns, **self.facts}

    def without_digest(self) -> "Event":
        """Return the event without the facts that could accuse a file."""
        if self.facts.keys().isdisjoint(DIGEST_FACTS):
            return self
        return self._replace(facts={n: v for n, v in self.facts.items() if n not in DIGEST_FACTS})

    def imported(self, now_ns: int) -> "Event | None":
        """Return the event as another cache may bring it, marked; None where it may not.

        Only what this machine observed accuses an entry or ends its record. Pins belong to one
        cache. A date in the future proves nothing.
        """
        if self.kind in (*PINNING, "removed") or self.at_ns > now_ns + MAX_AHEAD_NS:
            return None
        event = self.without_digest()
        return event._replace(facts={**event.facts, IMPORTED: True})

    @classmethod
    def from_json(cls, values: "Mapping[str, Any]") -> "Event | None":
        """Read an event; None if ``key``, ``kind`` or ``at_ns`` is missing or absurd."""
        key, kind, at_ns = (values.get(name) for name in _ENVELOPE)
        if not (isinstance(key, str) and key and isinstance(kind, str) and kind):
            return None
        if type(at_ns) is not int or not 0 <= at_ns < _MAX_NS:
            return None
        facts = {n: v for n, v in values.items() if n not in _ENVELOPE and v is not None}
        return cls(key, kind, at_ns, facts)


def is_compacted(name: str) -> bool:
    """Whether a compaction made the segment of that name."""
    return name.count("-") == 2  # the random part of another name may begin with c, too


def day_segment(day: int, client: str) -> str:
    """Return the name of the segment of one client and day since the epoch."""
    return f"{day * DAY_NS:020d}-{client}.jsonl"


def is_open(name: str, now_ns: int) -> bool:
    """Return whether a client may still rewrite a segment, so that no compaction may replace it."""
    time_ns = name.partition("-")[0]
    if is_compacted(name) or not time_ns.isdecimal() or int(time_ns) % DAY_NS:
        return False
    return int(time_ns) > 0 and now_ns - int(time_ns) < _OPEN_NS


def choose_live(
    segments: "Sequence[Lines]",
) -> "tuple[list[Lines], frozenset[str], list[frozenset[str]]]":
    """Return the segments that count, the names of all that they replace, and the compactions.

    A compaction counts when all its parts are present; then nothing that it replaces does, nor
    does another compaction of no more than the same segments.
    """
    present = {s.name for s in segments}
    complete: dict[frozenset[str], set[str]] = {}
    for segment in segments:
        if segment.parts and segment.parts <= present:
            complete.setdefault(segment.parts, set()).update(segment.replaces)
    replaced: set[str] = set().union(*complete.values())
    chosen: list[frozenset[str]] = []
    covered: set[str] = set()
    for parts in sorted(complete, key=lambda p: (-len(complete[p]), sorted(p))):
        if parts.isdisjoint(replaced) and not (complete[parts] and complete[parts] <= covered):
            chosen.append(parts)
            covered |= complete[parts]
    counted = frozenset().union(*chosen)
    live = [s for s in segments if s.name in counted or not (s.parts or s.name in replaced)]
    originals = frozenset(s.name for s in live if not s.parts)
    return live, originals | replaced, chosen


def read_totals(value: object) -> "dict[str, float]":
    """Return the sums in the header of a compaction, without values that are not sums."""
    if not isinstance(value, dict):
        return {}
    return {
        str(name): number
        for name, number in value.items()
        if type(number) in (int, float) and 0 <= number < _MAX_COUNT
    }


def add_totals(left: "Mapping[str, float]", right: "Mapping[str, float]") -> "dict[str, float]":
    """Add two sets of sums."""
    return {n: left.get(n, 0) + right.get(n, 0) for n in sorted({*left, *right})}


class Lines(NamedTuple):
    """A segment that was read."""

    name: str
    events: "list[Event]"
    replaces: "frozenset[str]"
    parts: "frozenset[str]"
    totals: "dict[str, float]"
    damaged: int
    """The number of lines that are not valid."""


def read_lines(name: str, data: bytes) -> Lines:
    """Read a segment; damaged lines are skipped and counted."""
    events: list[Event] = []
    replaces: set[str] = set()
    parts: set[str] = set()
    totals: dict[str, float] = {}
    damaged = 0
    for values in parse_lines(data):
        if values and values.get("kind") == SEGMENT_KIND:
            replaces.update(_texts(values.get("replaces")))
            parts.update(_texts(values.get("parts")))
            totals = add_totals(totals, read_totals(values.get("totals")))
        elif values and (event := Event.from_json(values)):
            events.append(event)
        else:
            damaged += 1
    return Lines(name, events, frozenset(replaces), frozenset(parts), totals, damaged)


def parse_lines(data: bytes) -> "Iterator[dict[str, Any] | None]":
    """Yield the object of each line; None for a damaged one."""
    for line in data.split(b"\n"):
        if not line:
            continue
        try:
            values = json.loads(line) if len(line) <= 4 * MAX_LINE_BYTES else None
        except (ValueError, RecursionError):
            values = None
        yield values if isinstance(values, dict) else None


def _texts(value: object) -> "list[str]":
    return [v for v in value if isinstance(v, str)] if isinstance(value, list) else []


class EventFold:
    """Events by key and kind, those of one kind joined."""

    def __init__(self, segments: "Sequence[Lines]" = ()) -> None:
        self._events: dict[str, dict[str, Event]] = {}
        self.totals: dict[str, float] = {}
        """Sums over the events that compactions have left out (:func:`sum_uses`)."""
        self.events_ahead: list[Event] = []
        """Events that count for nothing until the clock has come near their dates. The clock may
        be the one that is wrong, so a compaction keeps them as they are."""
        live, self.originals, chosen = choose_live(segments)
        """The names of every segment that is folded in here, present or compacted away."""
        self.is_compact = len(chosen) == 1 and len(chosen[0]) == len(segments)
        """Whether all of it is one compaction."""
        for segment in live:
            self.totals = add_totals(self.totals, segment.totals)
        self.add_all(event for segment in live for event in segment.events)

    def __len__(self) -> int:
        return len(self._events)

    def __contains__(self, key: str) -> bool:
        return key in self._events

    def __iter__(self) -> "Iterator[str]":
        """Yield every key that something is known of, whether or not its entry exists."""
        return iter(self._events)

    def kinds_of(self, key: str) -> "Mapping[str, Event]":
        """Return what is known of a key: by kind one event, dated as the latest of them."""
        return self._events.get(key, {})

    def add_all(self, events: "Iterable[Event]") -> None:
        """Add events in the order of their times; those of the future only count as pins."""
        latest_ns = time.time_ns() + MAX_AHEAD_NS
        for event in sorted(events, key=lambda e: e.at_ns):
            if event.at_ns <= latest_ns or event.kind in PINNING:
                self.add(event)
            else:
                self.events_ahead.append(event)

    def add(self, event: Event) -> None:
        """Join an event to the ones of its kind, none of which is later."""
        kinds = self._events.setdefault(event.key, {})
        if event.kind in PINNING:
            for kind in PINNING:
                kinds.pop(kind, None)
            kinds[event.kind] = event
            return
        before = kinds.get(event.kind)
        facts = cast("dict[str, Any]", before.facts) if before else {}  # our own: grows in place
        count = (count_of(facts) if before else 0) + count_of(event.facts)
        if "payload_sha256" in event.facts:  # what describes the file comes with its digest
            for name in DIGEST_FACTS:
                facts.pop(name, None)
        else:
            event = event.without_digest()
        all_imported = IMPORTED in event.facts and (before is None or IMPORTED in facts)
        sums: dict[str, float] = {}
        if event.kind == "hit":
            sums = {n: seconds_of(facts, n) + seconds_of(event.facts, n) for n in SUMS}
        facts.update(event.facts)
        facts.update({name: total for name, total in sums.items() if total})
        if not all_imported:
            facts.pop(IMPORTED, None)
        if event.kind == "hit" or (event.kind in COUNTED and before):
            facts["count"] = count
        kinds[event.kind] = Event(event.key, event.kind, event.at_ns, facts)

    def events(self) -> "Iterator[Event]":
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
                new[event.kind] = event._replace(facts=facts)
            yield from (new[kind] for kind in kinds)


def make_compaction(
    fold: EventFold, names: "Collection[str]", present: "Collection[str] | None"
) -> "Iterator[tuple[str, list[bytes]]]":
    """Yield name and lines of each part of a compaction of segments; nothing where they are one.

    It keeps the keys with an entry, pinned ones, and as many of the others as there are entries,
    the latest first; the rest is summed up. The new segments name those that they replace, so that
    a copy of one that comes back in a merge is not counted twice.

    Args:
        names: of the segments that were read.
        present: keys that have an entry; None where that is unknown, so that all are kept.
    """
    replaces = sorted({*names, *sorted(fold.originals.difference(names))[-MAX_REPLACED:]})
    events = [*fold.events(), *fold.events_ahead]
    forgotten = set() if present is None else _choose_forgotten(events, present)
    sketched = _newest_sketches(events)
    kept = (
        e for e in events if e.key not in forgotten and (e.kind != "sketch" or e.key in sketched)
    )
    if fold.is_compact and forgotten.isdisjoint(fold):
        return
    totals = add_totals(fold.totals, sum_uses(e for e in events if e.key in forgotten))
    batches = [lines for lines, _ in make_batches(kept)] or [[]]
    digest = hashlib.sha256("\n".join(replaces).encode())
    for lines in batches:
        digest.update(b"".join(lines))
    stem = f"{replaces[-1].partition('-')[0]}-c{digest.hexdigest()[:16]}"
    parts = [f"{stem}-{number}.jsonl" for number in range(len(batches))]
    for number, lines in enumerate(batches):
        named = replaces if number == 0 else []
        headers = [
            segment_line(
                {
                    "kind": SEGMENT_KIND,
                    "replaces": named[at : at + _NAMES_PER_LINE],
                    "parts": parts,
                    "totals": totals if number == at == 0 else {},
                }
            )
            for at in range(0, len(named) or 1, _NAMES_PER_LINE)
        ]
        yield parts[number], [*headers, *lines]


def _newest_sketches(events: "Iterable[Event]") -> "set[str]":
    """Return the keys whose sketches a compaction keeps: the newest few of each module."""
    modules: defaultdict[str, list[Event]] = defaultdict(list)
    for event in events:
        if event.kind == "sketch":
            modules[event.key.rpartition("-")[0]].append(event)
    newest = (
        sorted(sketches, key=lambda e: e.at_ns)[-_KEPT_SKETCHES:] for sketches in modules.values()
    )
    return {event.key for sketches in newest for event in sketches}


def _choose_forgotten(events: "Sequence[Event]", present: "Iterable[str]") -> "set[str]":
    """Choose the keys whose events a compaction leaves out: gone for longest, and not pinned."""
    kept = {*present}
    latest = {e.key: e.at_ns for e in sorted(events, key=lambda e: e.at_ns)}
    absent = sorted((k for k in latest if k not in kept), key=latest.__getitem__, reverse=True)
    pinned = {e.key for e in events if e.kind == "pin"}
    return {*absent[max(len(kept), MIN_ABSENT) :]} - pinned


_encode = json.JSONEncoder(separators=(",", ":")).encode  # dumps() makes an encoder each time


def segment_line(values: "Mapping[str, Any]") -> bytes:
    """Return one line of a segment."""
    return _encode(values).encode() + b"\n"


def make_batches(events: "Iterable[Event]") -> "Iterator[tuple[list[bytes], int]]":
    """Yield the lines of one segment each, with the time of the latest event in it.

    An event of more than :data:`MAX_LINE_BYTES` is left out.
    """
    lines: list[bytes] = []
    size_bytes = at_ns = 0
    for event in events:
        line = segment_line(event.to_json())
        if len(line) > MAX_LINE_BYTES:
            continue
        if lines and size_bytes + len(line) > _SEGMENT_BYTES:
            yield lines, at_ns
            lines = []
            size_bytes = at_ns = 0
        lines.append(line)
        size_bytes += len(line)
        at_ns = max(at_ns, event.at_ns)
    if lines:
        yield lines, at_ns


def count_of(event: "Mapping[str, Any]") -> int:
    """Return how often an event happened."""
    count = event.get("count", 1)
    return count if type(count) is int and 0 <= count < _MAX_COUNT else 1


def seconds_of(event: "Mapping[str, Any]", name: str) -> float:
    """Return a number of seconds that an event states; 0 where it is missing or absurd."""
    value = event.get(name)
    return 0 if read_seconds(value) is None else value  # type: ignore[return-value]


def read_seconds(value: object) -> "float | None":
    """Return a number of seconds that something can have taken; None for anything else in JSON."""
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return None
    return float(value) if 0 <= value < _MAX_SECONDS else None


def sum_uses(events: "Iterable[Event]") -> "dict[str, float]":
    """Sum up the hits, the misses and the seconds that the hits saved; empty without any.

    Hits that a run has timed saved what it found; each of the others saved the time of a compile,
    and all of them together less the time that fetching them took.
    """
    hits: dict[str, list[float]] = {}
    seconds: dict[str, float] = {}
    misses = 0
    for event in events:
        key, kind, _, facts = event
        if kind == "hit":
            counts = [count_of(facts), *(seconds_of(facts, name) for name in SUMS)]
            before = hits.get(key, [0.0] * len(counts))
            hits[key] = [x + y for x, y in zip(before, counts)]  # noqa: B905
        elif kind in COUNTED:
            misses += count_of(facts)
        seconds[key] = seconds_of(facts, "compile_seconds") or seconds.get(key, 0.0)
    if not hits and not misses:
        return {}
    saved = sum(
        saved_seconds + max(0.0, max(0, number - timed) * seconds[key] - fetching)
        for key, (number, saved_seconds, timed, fetching) in hits.items()
    )
    return {"hits": sum(int(h[0]) for h in hits.values()), "misses": misses, "saved_seconds": saved}
