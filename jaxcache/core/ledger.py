"""The segments of a ledger: which of them count, and how many become one.

A segment is a file ``<time_ns>-<16 hex>.jsonl`` below ``.jaxcache/ledger/`` that is written once
and whole (docs/ledger.md). A compaction, ``<time_ns>-c<16 hex>-<part>.jsonl``, begins with lines of
the kind ``segment``, which name the segments that it replaces, its parts, and the sums of what it
left out. The command line folds all events of a key; the live layer, in :func:`merge_uses`, sums up
bare uses and leaves every other line as it is.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

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
_BARE = {"key", "kind", "at_ns", "count", *SUMS}
_MAX_COUNT = 1 << 62
_MAX_SECONDS = 1e9
#: Dates further ahead of the clock than this are wrong, by a bad clock or on purpose.
MAX_AHEAD_NS = DAY_NS


class Segment(Protocol):
    """The header of a segment."""

    @property
    def name(self) -> str:
        """The name of its file."""

    @property
    def replaces(self) -> "frozenset[str]":
        """Segments that no longer count if this one does."""

    @property
    def parts(self) -> "frozenset[str]":
        """The names of all parts of a compaction; empty for any other segment."""


_S = TypeVar("_S", bound=Segment)


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
    segments: "Sequence[_S]",
) -> "tuple[list[_S], frozenset[str], list[frozenset[str]]]":
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


def choose_forgotten(
    latest_ns: "Mapping[str, int]", present: "Iterable[str]", pinned: "Iterable[str]"
) -> "set[str]":
    """Choose the keys whose events a compaction leaves out: gone for longest, and not pinned.

    Args:
        latest_ns: the last event of each key.
        present: keys that have an entry.
    """
    kept = {*present}
    absent = sorted(
        (k for k in latest_ns if k not in kept), key=latest_ns.__getitem__, reverse=True
    )
    return {*absent[max(len(kept), MIN_ABSENT) :]} - {*pinned}


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
    values: "list[dict[str, Any]]"
    """Its events, as JSON has them."""
    replaces: "frozenset[str]"
    parts: "frozenset[str]"
    totals: "dict[str, float]"
    damaged: int
    """The number of lines that are not valid."""


def read_lines(name: str, data: bytes) -> Lines:
    """Read a segment; damaged lines are skipped and counted."""
    values: list[dict[str, Any]] = []
    replaces: set[str] = set()
    parts: set[str] = set()
    totals: dict[str, float] = {}
    damaged = 0
    for event in parse_lines(data):
        if event is None:
            damaged += 1
        elif event.get("kind") == SEGMENT_KIND:
            replaces.update(_texts(event.get("replaces")))
            parts.update(_texts(event.get("parts")))
            totals = add_totals(totals, read_totals(event.get("totals")))
        elif isinstance(event.get("key"), str) and type(event.get("at_ns")) is int:
            values.append(event)
        else:
            damaged += 1
    return Lines(name, values, frozenset(replaces), frozenset(parts), totals, damaged)


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


def merge_uses(segments: "Sequence[Lines]", present: "Iterable[str]") -> "tuple[str, bytes]":
    """Make one compaction of segments; its name and its content.

    Args:
        present: keys that have an entry.
    """
    live, originals, _ = choose_live(segments)
    totals: dict[str, float] = {}
    for segment in live:
        totals = add_totals(totals, segment.totals)
    events = [event for segment in live for event in segment.values]
    forgotten = _choose_forgotten(events, present)
    totals = add_totals(totals, sum_uses(e for e in events if e["key"] in forgotten))
    lines = sum_up(e for e in events if e["key"] not in forgotten)
    read = {s.name for s in segments}
    replaces = sorted(read.union(sorted(originals - read)[-MAX_REPLACED:]))
    digest = hashlib.sha256("\n".join([*replaces, *lines]).encode()).hexdigest()
    name = f"{replaces[-1].partition('-')[0]}-c{digest[:16]}-0.jsonl"
    header = {"kind": SEGMENT_KIND, "replaces": replaces, "parts": [name], "totals": totals}
    return name, "".join(f"{line}\n" for line in [_text(header), *lines]).encode()


def _text(value: "dict[str, Any]") -> str:
    return json.dumps(value, separators=(",", ":"))


def _choose_forgotten(events: "list[dict[str, Any]]", present: "Iterable[str]") -> "set[str]":
    latest: dict[str, int] = {}
    pins: dict[str, tuple[int, bool]] = {}
    for event in events:
        key = event["key"]
        at_ns = event["at_ns"]
        latest[key] = max(latest.get(key, 0), at_ns)
        if event.get("kind") in PINNING:
            pins[key] = max(pins.get(key, (0, False)), (at_ns, event["kind"] == "pin"))
    return choose_forgotten(latest, present, (key for key, (_, is_pin) in pins.items() if is_pin))


def sum_up(events: "Iterable[dict[str, Any]]") -> "list[str]":
    """Add up bare uses by key and kind, and leave every other event as it is."""
    sums: dict[tuple[str, str], dict[str, Any]] = {}
    lines: dict[str, None] = {}
    for event in events:
        kind = event.get("kind")
        if kind not in COUNTED or not event.keys() <= _BARE:
            lines[_text(event)] = None
            continue
        added = sums.setdefault((event["key"], kind), {"at_ns": 0, "count": 0})
        added["at_ns"] = max(added["at_ns"], event["at_ns"])
        added["count"] += count_of(event)
        for name in SUMS:
            if event.get(name):
                added[name] = added.get(name, 0) + seconds_of(event, name)
    for (key, kind), added in sums.items():
        lines[_text({"key": key, "kind": kind, **added})] = None
    return list(lines)


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


def sum_uses(events: "Iterable[Mapping[str, Any]]") -> "dict[str, float]":
    """Sum up the hits, the misses and the seconds that the hits saved; empty without any.

    Hits that a run has timed saved what it found; each of the others saved the time of a compile,
    and all of them together less the time that fetching them took.
    """
    hits: dict[str, list[float]] = {}
    seconds: dict[str, float] = {}
    misses = 0
    for event in events:
        key = event["key"]
        kind = event.get("kind")
        if kind == "hit":
            counts = [count_of(event), *(seconds_of(event, name) for name in SUMS)]
            before = hits.get(key, [0.0] * len(counts))
            hits[key] = [x + y for x, y in zip(before, counts)]  # noqa: B905
        elif kind in COUNTED:
            misses += count_of(event)
        seconds[key] = seconds_of(event, "compile_seconds") or seconds.get(key, 0.0)
    if not hits and not misses:
        return {}
    saved = sum(
        saved_seconds + max(0.0, max(0, number - timed) * seconds[key] - fetching)
        for key, (number, saved_seconds, timed, fetching) in hits.items()
    )
    return {"hits": sum(int(h[0]) for h in hits.values()), "misses": misses, "saved_seconds": saved}
