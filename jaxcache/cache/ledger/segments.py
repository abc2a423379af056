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
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

from jaxcache.cache.ledger.record import Event, LedgerRecord, fold
from jaxcache.core.configuration import report_once
from jaxcache.core.ledger import (
    MAX_LEDGER_BYTES,
    SEGMENT_KIND,
    EventFold,
    Lines,
    add_totals,
    is_compacted,
    is_open,
    parse_lines,
    read_lines,
    read_totals,
    segment_line,
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


class Ledger(EventFold):
    """Every event of a cache, folded by key; :func:`Ledger.load` makes one."""

    def __init__(
        self,
        segments: Sequence[Lines] = (),
        files: Sequence[FileInfo] = (),
        unread: Sequence[StoreError] = (),
    ) -> None:
        super().__init__(segments)
        self.files = files
        """The segments that were read."""
        self.damaged = sum(s.damaged for s in segments) + len(unread)
        """Segments and lines that could not be read and were skipped."""
        self._unread = unread
        """Failures of the disk to read a segment, which may hold pins."""

    @property
    def segments(self) -> list[str]:
        """Names of the segments that were read."""
        return [_base(file) for file in self.files]

    @classmethod
    def load(
        cls, store: Store, *, to_compact: bool = False, listed: Sequence[FileInfo] = ()
    ) -> "Ledger":
        """Read the ledger of a cache; an empty one if it has none, or none is readable.

        Args:
            to_compact: without the segments that a client may still rewrite.
            listed: the files of a bucket's ledger, where the caller has listed them.
        """
        read = _read_segments(store, listed)
        if to_compact:
            now_ns = time.time_ns()
            read = {f: s for f, s in read.items() if not is_open(_base(f), now_ns)}
        segments = {f: s for f, s in read.items() if isinstance(s, Lines)}
        unread = [s for s in read.values() if isinstance(s, StoreError)]
        return cls([*segments.values()], [*segments], unread)

    @classmethod
    def of(cls, events: Iterable[Event]) -> "Ledger":
        """Make a ledger of events from outside a cache; they count as imported, as not observed."""
        ledger = cls()
        now_ns = time.time_ns()
        ledger.add_all(filter(None, (event.imported(now_ns) for event in events)))
        return ledger

    def record(self, key: str) -> LedgerRecord | None:
        """Everything known of one key, later facts over earlier ones; None if nothing is."""
        kinds = self.kinds_of(key)
        return fold(key, kinds.values()) if kinds else None

    def check_pins(self) -> None:
        """Refuse to go on where a failing disk may hide a pin.

        A segment that this user may not read does not count: it would block every prune.

        Raises:
            JaxcacheError: ``pins-unread``.
        """
        for failure in self._unread:
            if failure.code == "io-error" and not isinstance(failure.__cause__, PermissionError):
                raise JaxcacheError(
                    f"{failure.message}: it may hold pins, so nothing is removed",
                    code="pins-unread",
                    hint=f"check the disk and {LEDGER_DIR}, and run the command again",
                )


def _base(file: FileInfo) -> str:
    return file.name.rpartition("/")[2]


def is_segment(name: str) -> bool:
    """Whether a name in the ledger is one that ``append`` or ``compact`` gives."""
    return bool(_NAME.fullmatch(name.rpartition("/")[2]))


def _read_segments(store: Store, listed: Sequence[FileInfo]) -> dict[FileInfo, Lines | StoreError]:
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


def _read_listed(store: Store, files: Sequence[FileInfo]) -> dict[FileInfo, Lines | StoreError]:
    segments: dict[FileInfo, Lines | StoreError] = {}
    for info, read in zip(files, read_segments(store, files), strict=True):
        if isinstance(read, StoreError):
            if read.code != "missing":  # compacted away since the listing
                segments[info] = read
            continue
        lines = read_lines(_base(info), read.data)
        if not is_own(store, read.info):
            lines = lines._replace(events=[event.without_digest() for event in lines.events])
        segments[info] = lines
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


def import_lines(data: bytes, now_ns: int) -> bytes:
    """Return a segment's content as another cache takes it over; its headers stay."""
    lines = []
    for values in parse_lines(data):
        if values and values.get("kind") == SEGMENT_KIND:
            lines.append(segment_line(values))
        elif values and (event := Event.from_json(values)) and (imported := event.imported(now_ns)):
            lines.append(segment_line(imported.to_json()))
    return b"".join(lines)


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
    counted = add_totals(ledger.totals, sum_uses(ledger.events()))
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
    # The store of a bundle has no such file; a user without a home directory has no local record.
    with suppress(JaxcacheError, AttributeError, FileNotFoundError):
        local = LocalStore(live_directory(store.url)) if store.remote else store
        return read_record(local.read(f"{OWN_DIR}/{RECORD}", limit=MAX_RECORD_BYTES))
    return ()


def live_totals(store: Store) -> dict[str, int | float] | None:
    """Return the live layer's counts in this cache, by name; None where it has not been on."""
    try:
        totals = read_totals(json.loads(store.read(f"{OWN_DIR}/live/totals", limit=1 << 16)))
    # The store of a bundle has no such file, and no way to read one.
    except (JaxcacheError, OSError, ValueError, AttributeError, RecursionError):
        return None
    return {n: v if n.endswith("_seconds") else int(v) for n, v in sorted(totals.items())}
