"""Add events to a ledger, such as pins, and compact one that has grown."""

import contextlib
import os
from collections.abc import Iterable, Sequence

from jaxcache.cache.ledger.record import PIN, UNPIN, Event
from jaxcache.cache.ledger.segments import (
    MAX_SEGMENT_BYTES,
    SEGMENT_SUFFIX,
    Ledger,
    is_segment,
    list_segments,
)
from jaxcache.cache.scan import NO_AIDS
from jaxcache.cache.selection import fits_key, select_by_keys
from jaxcache.core import ledger as core_ledger
from jaxcache.core.names import LEDGER_DIR, TEMP_PREFIX
from jaxcache.core.system import is_full
from jaxcache.entry.names import split_name
from jaxcache.errors import JaxcacheError, NoCacheError
from jaxcache.layouts import Layout
from jaxcache.model import Depth
from jaxcache.store.base import Store, StoreError
from jaxcache.units import format_command

#: More segments than :data:`COMPACT_ABOVE`, or more bytes in them than in the compacted part and in
#: these, are compacted by the next :func:`append`.
_SLACK_BYTES = 256 << 10
_LOCK = f"{LEDGER_DIR}/{TEMP_PREFIX}compact"


def append(store: Store, events: Iterable[Event]) -> bool:
    """Add events to the ledger; durable when it returns. Compact a local one that has grown.

    Returns:
        Whether they are kept; False where the cache cannot be written.
    """
    batches = list(core_ledger.make_batches(events))
    if batches and not store.writable:
        return False
    try:
        for lines, at_ns in batches:
            name = f"{LEDGER_DIR}/{at_ns:020d}-{os.urandom(8).hex()}{SEGMENT_SUFFIX}"
            store.write(name, lines, replace=False)
    except StoreError:
        return False
    if batches and not store.remote and _has_grown(store):
        compact(store)
    return True


def _has_grown(store: Store) -> bool:
    """Return whether a ledger holds much more than its compacted part; one segment is in order."""
    sizes: dict[bool, list[int]] = {True: [], False: []}
    for info in store.list(LEDGER_DIR):
        if is_segment(info.name) and info.size_bytes <= MAX_SEGMENT_BYTES:
            sizes[core_ledger.is_compacted(info.name)].append(info.size_bytes)
    if len(sizes[False]) > core_ledger.COMPACT_ABOVE:
        return True
    return sum(map(len, sizes.values())) > 1 and (
        sum(sizes[False]) > sum(sizes[True]) + _SLACK_BYTES
    )


def compact(store: Store) -> None:
    """Merge the segments of a ledger into few, and delete those that were merged.

    :func:`jaxcache.core.ledger.make_compaction` says what is kept. Safe to interrupt; while another
    process compacts a local ledger, it is left to that one.
    """
    if not store.writable or not list_segments(store):
        return
    for info in store.list(LEDGER_DIR):
        if info.name.rpartition("/")[2].startswith(TEMP_PREFIX):
            store.delete_abandoned(info.name)
    # Locked, or the disk is full: the parts of an unfinished compaction count for nothing.
    with contextlib.suppress(StoreError), store.hold(_LOCK):
        ledger = Ledger.load(store, to_compact=True)
        parts = core_ledger.make_compaction(ledger, ledger.segments, _find_present(store, ledger))
        if segments := list(parts if ledger.segments else ()):
            for name, lines in segments:
                store.write(f"{LEDGER_DIR}/{name}", lines)
            for name in ledger.segments:
                store.delete(f"{LEDGER_DIR}/{name}")


def _find_present(store: Store, ledger: Ledger) -> set[str] | None:
    """Return the keys that have an entry; None where they cannot be listed."""
    try:
        present = {key for i in store.list() if (key := split_name(i.name)[1])}
    except JaxcacheError:
        return None
    return present | {key for key in ledger if "/" in key and _is_file(store, key)}


def _is_file(store: Store, path: str) -> bool:
    """Return whether a file of torch's, which is known by its path, exists."""
    try:
        return store.info(path).type == "file"
    except StoreError:
        return False


def pinned_keys(ledger: Ledger) -> list[str]:
    """Return every pinned key, whether or not its entry exists, sorted."""
    return sorted(k for k in ledger if (record := ledger.record(k)) and record.pinned)


def pin(store: Store, layout: Layout, keys: Sequence[str], *, now_ns: int) -> list[str]:
    """Pin the entries that KEY arguments name and return their full keys, sorted.

    Raises:
        JaxcacheError: ``no-match``, ``ambiguous-key`` or ``read-only``.
    """
    scan_result = layout.scans.scan(store, NO_AIDS, Depth.LISTED, deep=False)
    chosen = sorted({e.key for e in select_by_keys(scan_result.entries, keys)})
    _record(store, chosen, PIN, now_ns)
    return chosen


def unpin(store: Store, keys: Sequence[str], *, now_ns: int) -> list[str]:
    """Unpin what KEY arguments name among the pinned keys; return their full keys, sorted.

    Raises:
        JaxcacheError: ``not-pinned`` or ``read-only``.
    """
    pinned = pinned_keys(Ledger.load(store))
    chosen = sorted({key for text in keys for key in _match(pinned, text)})
    _record(store, chosen, UNPIN, now_ns)
    return chosen


def _match(pinned: Sequence[str], text: str) -> list[str]:
    """Pins by full key, or all that the text fits."""
    matches = [k for k in pinned if k == text] or [k for k in pinned if fits_key(k, text)]
    if not matches:
        raise JaxcacheError(
            f"no pinned entry matches {text!r}",
            code="not-pinned",
            hint="jaxcache pin lists the pins",
        )
    return matches


def _record(store: Store, keys: Sequence[str], kind: str, now_ns: int) -> None:
    """Record a pin or unpin as later than those before it, even if the clock was set back."""
    last_ns = {e.key: e.at_ns for e in Ledger.load(store).events() if e.kind in core_ledger.PINNING}
    at_ns = {key: max(now_ns, last_ns.get(key, -1) + 1) for key in keys}
    if append(store, [Event(key, kind, at_ns[key]) for key in keys]):
        return
    if not store.remote and is_full(store.url):
        raise NoCacheError(
            f"the disk of {store.url} is full, so nothing can be recorded",
            code="disk-full",
            hint=format_command("prune --max-size SIZE", store.url),
        )
    raise NoCacheError(f"the ledger of {store.url} cannot be written", code="read-only")
