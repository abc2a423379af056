"""What one ledger takes over from another: marked as imported, without pins and digests."""

import time
from collections.abc import Collection, Iterable, Iterator, Sequence

from jaxcache.cache.ledger.record import ARRIVED, HIT, Event
from jaxcache.cache.ledger.segments import (
    MAX_SEGMENT_BYTES,
    Ledger,
    import_lines,
    is_own,
    is_segment,
    read_events,
    read_segments,
)
from jaxcache.cache.ledger.write import append, compact
from jaxcache.core.ledger import COMPACT_ABOVE, is_compacted
from jaxcache.core.names import LEDGER_DIR
from jaxcache.model import FileInfo
from jaxcache.store.base import Store, StoreError
from jaxcache.store.concurrency import map_ordered


def arrivals(keys: Iterable[str], ledger: Ledger, brought: Iterable[Event] = ()) -> Iterator[Event]:
    """Yield the arrival of each entry of which neither a ledger nor what came along has a hit.

    A hit from before the entry was removed is none of the entry that arrived.
    """
    now_ns = time.time_ns()
    hit_keys = {event.key for event in brought if event.kind == HIT}
    for key in sorted({*keys} - hit_keys):
        record = ledger.record(key)
        if record is None or (record.last_hit_ns or 0) <= (record.removed_ns or 0):
            yield Event(key, ARRIVED, now_ns)


def missing_segments(source: Store, target: Store | None) -> tuple[FileInfo, ...]:
    """Segments of the source's ledger that the target neither has nor has compacted away."""
    ours = _segments(source)
    if target is None or not ours:
        return tuple(ours)
    present_names = {i.name.rpartition("/")[2] for i in _segments(target)}
    if any(map(is_compacted, present_names)):
        present_names |= Ledger.load(target).originals
    return tuple(i for i in ours if i.name.rpartition("/")[2] not in present_names)


def _segments(store: Store) -> list[FileInfo]:
    return sorted(
        i
        for i in store.list(LEDGER_DIR)
        if i.type == "file" and i.size_bytes <= MAX_SEGMENT_BYTES and is_segment(i.name)
    )


def carry_segments(
    source: Store, target: Store, segments: Sequence[FileInfo], carried: Collection[str]
) -> int:
    """Copy the records of a ledger as imported ones; return the number of segments written.

    Segments that this user wrote go over as they are, without pins and digests. Of any other, only
    the records of entries that were carried go over, and of those nothing that the target records
    already. Nothing depends on a ledger, so what fails is left.

    Args:
        carried: keys of the entries that were written.
    """
    now_ns = time.time_ns()
    foreign: list[Event] = []
    own: list[tuple[FileInfo, bytes]] = []
    for read in read_segments(source, segments):
        if isinstance(read, StoreError):
            continue
        if is_own(source, read.info):
            data = import_lines(read.data, now_ns)
            own += [(read.info, data)] if data else []
        elif carried:
            events = (event.imported(now_ns) for event in read_events(read.data))
            foreign += [event for event in events if event and event.key in carried]

    def carry(segment: tuple[FileInfo, bytes]) -> bool:
        info, data = segment
        try:
            target.write(info.name, [data], mtime_ns=info.mtime_ns, replace=False)
        except StoreError:
            return False
        return True

    count = sum(map_ordered(carry, own))
    ledger = Ledger.load(target) if foreign else Ledger()
    count += append(target, new) if (new := [e for e in foreign if e.key not in ledger]) else 0
    if count and len(_segments(target)) > COMPACT_ABOVE:
        compact(target)
    return count
