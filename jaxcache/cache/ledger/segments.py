"""What is known about entries beyond their files: digests, exact times, versions, hits, pins.

The ledger is a folder of segments, ``.jaxcache/ledger/<time_ns>-<random>.jsonl``. A segment is
written once, atomically, and never changed, so that two writers cannot disturb each other, a
crash leaves a whole segment or none, and two ledgers merge by putting their segments into one
folder. Each line is one event: a JSON object with ``key``, ``kind``, ``at_ns`` and facts.

The ledger helps and never hinders: a missing folder is an empty ledger, a damaged line or segment
is skipped and counted, a fact of the wrong type is left out, and a cache that cannot be written
simply learns nothing.
"""

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from jaxcache.cache.ledger.record import COUNTED, PINNING, Event, Record, fold
from jaxcache.entry.names import OWN_DIR
from jaxcache.store.base import ExistsError, Store, StoreError

LEDGER_DIR = f"{OWN_DIR}/ledger"
#: Segments and lines longer than this are damaged: nothing here writes such.
MAX_SEGMENT_BYTES = 32 << 20
MAX_LINE_BYTES = 256 << 10
#: Events are split over segments of about this size.
_SEGMENT_BYTES = 8 << 20
#: Segments that :func:`compact` has replaced are remembered up to this number, newest first.
_MAX_REPLACED = 10_000
#: A folder with fewer segments than this is read as fast as a compacted one.
COMPACT_ABOVE = 64

_SUFFIX = ".jsonl"
_NAME = re.compile(r"\d{1,20}-(c[0-9a-f]{16}-\d{1,6}|[0-9a-f]{16})\.jsonl")
_SEGMENT_KIND = "segment"


@dataclass(slots=True)
class Ledger:
    """Every event of a cache, folded by key; :func:`Ledger.load` makes one."""

    segments: tuple[str, ...] = ()
    """Names of the segments that were read."""
    damaged: int = 0
    """Segments and lines that could not be read and were skipped."""
    _events: dict[str, dict[str, Event]] = field(default_factory=dict)
    _originals: frozenset[str] = frozenset()
    """Every segment as first written that is folded in here, present or compacted away."""

    @classmethod
    def load(cls, store: Store) -> "Ledger":
        """Read the ledger of a cache; an empty one where there is none, or none readable."""
        found = _read_segments(store)
        ledger = cls(damaged=sum(s.damaged for s in found))
        readable = [s for s in found if s.readable]
        ledger.segments = tuple(s.name for s in readable)
        live, ledger._originals = _live(readable)
        for event in sorted((e for s in live for e in s.events), key=lambda e: e.at_ns):
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

    def record(self, key: str) -> Record | None:
        """Everything known of one key, later facts over earlier ones; None if nothing is."""
        events = self._events.get(key)
        return fold(key, events.values()) if events else None

    @property
    def originals(self) -> frozenset[str]:
        """Names of every segment as first written that is folded in, compacted away or not."""
        return self._originals

    def events(self) -> Iterator[Event]:
        """Yield the fewest events that say the same: one per key and kind."""
        return (event for kinds in self._events.values() for event in kinds.values())

    def _add(self, event: Event) -> None:
        """Join an event to the ones of its kind; events come in the order of their times."""
        kinds = self._events.setdefault(event.key, {})
        if event.kind in PINNING:
            for kind in PINNING:
                kinds.pop(kind, None)
            kinds[event.kind] = event
            return
        before = kinds.get(event.kind)
        facts = {**before.facts, **event.facts} if before else event.facts
        if event.kind in COUNTED:
            facts = {**facts, "count": (before.count if before else 0) + event.count}
        kinds[event.kind] = Event(event.key, event.kind, event.at_ns, facts)


def is_segment(name: str) -> bool:
    """Whether a name in the ledger's folder is one that :func:`append` or :func:`compact` gives."""
    return bool(_NAME.fullmatch(name.rpartition("/")[2]))


def is_compacted(name: str) -> bool:
    """Whether :func:`compact` made the segment of that name."""
    return "-c" in name


def append(store: Store, events: Iterable[Event]) -> bool:
    """Add events to the ledger; durable when it returns.

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
    return True


def compact(store: Store, *, keep: Callable[[str], bool] | None = None) -> Ledger:
    """Write the ledger anew as few segments and delete those that they replace.

    The new segments name the ones they stand for, so that a copy of those which comes back in a
    merge is not counted twice. Safe to interrupt, and to run twice at once.

    Args:
        keep: which keys to keep, all if None.

    Returns:
        The ledger as it was read.
    """
    ledger = Ledger.load(store)
    if not store.writable or not ledger._originals:
        return ledger
    replaces = sorted(ledger._originals)[-_MAX_REPLACED:]
    batches = list(_batches(e for e in ledger.events() if keep is None or keep(e.key)))
    batches = batches or [([], 0)]
    digest = hashlib.sha256("\n".join(replaces).encode())
    for lines, _ in batches:
        digest.update(b"".join(lines))
    stem = f"{replaces[-1].partition('-')[0]}-c{digest.hexdigest()[:16]}"
    names = [f"{stem}-{i}{_SUFFIX}" for i in range(len(batches))]
    header = {"kind": _SEGMENT_KIND, "replaces": replaces, "parts": names}
    try:
        for index, (name, (lines, _)) in enumerate(zip(names, batches, strict=True)):
            first = header if index == 0 else {**header, "replaces": []}
            try:
                store.write(f"{LEDGER_DIR}/{name}", [_line(first), *lines], replace=False)
            except ExistsError:  # the same segments, compacted by somebody else
                continue
        for name in set(ledger.segments) - set(names):
            store.delete(f"{LEDGER_DIR}/{name}")
    except StoreError:
        pass  # what was written counts for nothing until all of it is there
    return ledger


@dataclass(slots=True)
class _Segment:
    name: str
    events: list[Event] = field(default_factory=list)
    replaces: frozenset[str] = frozenset()
    parts: frozenset[str] = frozenset()
    damaged: int = 0
    readable: bool = True


def _read_segments(store: Store) -> list[_Segment]:
    try:
        infos = sorted(i for i in store.list(LEDGER_DIR) if i.name.endswith(_SUFFIX))
    except Exception:  # no folder, no permission: nothing is known
        if store.remote:  # nothing of the rest will work, and pins must not be overlooked
            raise
        return []
    files = [i for i in infos if i.type == "file"]
    found = []
    for info, data in zip(
        files, store.read_many([i.name for i in files], limit=MAX_SEGMENT_BYTES + 1), strict=True
    ):
        segment = _Segment(info.name.rpartition("/")[2])
        if isinstance(data, StoreError):
            if data.code == "missing":
                continue  # compacted away since the listing
            segment.damaged, segment.readable = 1, False
        else:
            _read_lines(data, segment)
        found.append(segment)
    return found


def _read_lines(data: bytes, segment: _Segment) -> None:
    if len(data) > MAX_SEGMENT_BYTES:
        segment.damaged, segment.readable = 1, False
        return
    for line in data.split(b"\n"):
        if not line:
            continue
        try:
            values = json.loads(line) if len(line) <= MAX_LINE_BYTES * 4 else None
        except (ValueError, RecursionError):
            values = None
        if not isinstance(values, dict):
            segment.damaged += 1
        elif values.get("kind") == _SEGMENT_KIND:
            segment.replaces |= _names(values.get("replaces"))
            segment.parts |= _names(values.get("parts"))
        elif event := Event.from_json(values):
            segment.events.append(event)
        else:
            segment.damaged += 1


def _names(value: object) -> frozenset[str]:
    return frozenset(v for v in value if isinstance(v, str)) if isinstance(value, list) else _NONE


_NONE: frozenset[str] = frozenset()


def _live(found: Sequence[_Segment]) -> tuple[list[_Segment], frozenset[str]]:
    """The segments that count, and the names of all originals that they stand for.

    A compaction counts when all its parts are there; then nothing that it replaces does, nor
    does another compaction of no more than the same segments.
    """
    present = {s.name: s for s in found}
    complete: dict[frozenset[str], frozenset[str]] = {}
    for segment in found:
        if segment.parts and segment.parts <= present.keys():
            complete.setdefault(segment.parts, _NONE)
            complete[segment.parts] |= segment.replaces
    chosen: list[frozenset[str]] = []
    for parts in sorted(complete, key=lambda p: (-len(complete[p]), sorted(p))):
        if not any(complete[parts] <= complete[other] for other in chosen):
            chosen.append(parts)
    replaced = frozenset().union(*(complete[parts] for parts in chosen))
    counted = frozenset().union(*chosen)
    live = [
        s for s in found
        if s.name in counted or (not s.parts and s.name not in replaced)
    ]  # fmt: skip
    originals = frozenset(s.name for s in live if not s.parts)
    return live, originals | replaced


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
            lines, size_bytes, at_ns = [], 0, 0
        lines.append(line)
        size_bytes += len(line)
        at_ns = max(at_ns, event.at_ns)
    if lines:
        yield lines, at_ns
