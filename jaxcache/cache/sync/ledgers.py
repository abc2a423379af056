"""Two ledgers become one: their segments, which never change, go into one folder."""

from jaxcache.cache.ledger.segments import (
    COMPACT_ABOVE,
    MAX_SEGMENT_BYTES,
    Ledger,
    compact,
    is_compacted,
    is_segment,
)
from jaxcache.core.names import LEDGER_DIR
from jaxcache.model import FileInfo
from jaxcache.store.ahead import in_order
from jaxcache.store.base import Store, StoreError


def missing_segments(source: Store, target: Store | None) -> tuple[FileInfo, ...]:
    """Segments of the source's ledger that the target neither has nor has compacted away."""
    ours = _segments(source)
    if target is None or not ours:
        return tuple(ours)
    known = {i.name.rpartition("/")[2] for i in _segments(target)}
    if any(map(is_compacted, known)):
        known |= Ledger.load(target).originals
    return tuple(i for i in ours if i.name.rpartition("/")[2] not in known)


def _segments(store: Store) -> list[FileInfo]:
    return sorted(
        i
        for i in store.list(LEDGER_DIR)
        if i.type == "file" and i.size_bytes <= MAX_SEGMENT_BYTES and is_segment(i.name)
    )


def carry_segments(source: Store, target: Store, segments: tuple[FileInfo, ...]) -> int:
    """Copy segments, and compact where the target has got too many; returns how many went over.

    Nothing depends on a ledger, so what fails is left.
    """

    def carry(info: FileInfo) -> bool:
        try:
            data, _ = source.fetch(info.name, limit=MAX_SEGMENT_BYTES)
            target.write(info.name, [data], mtime_ns=info.mtime_ns, replace=False)
        except StoreError:
            return False
        return True

    carried = sum(in_order(carry, segments))
    if carried and len(_segments(target)) > COMPACT_ABOVE:
        compact(target)
    return carried
