"""What a job used of a cache.

The state before the job, its baseline, is in ``.jaxcache/ci.json`` until the job is over.
Three sources record uses, none of which is always present: the ledger, if a step ran under
``jaxcache run``, ``warm`` or the live layer; JAX's own dates of use, which it keeps under a size
cap; and the file system's access times, which ``ci restore`` has made sure will move at the first
read. Any of them proves a use. Only a source that would have recorded it proves that an entry was
*not* used. The ledger never does: a plain step of the same job leaves no record in it.
"""

import json
import math
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Literal, NamedTuple

from jaxcache.cache.files import EntryFile, Inventory, take_inventory
from jaxcache.cache.ledger.record import COMPILE, HIT
from jaxcache.cache.ledger.segments import Ledger, count_uses
from jaxcache.cache.scan import Scan
from jaxcache.cache.untrusted_json import Many, ManyNamed, Seconds, build, parse_json
from jaxcache.core.ledger import sum_uses
from jaxcache.core.names import OWN_DIR
from jaxcache.entry.names import FileKind
from jaxcache.entry.summary import Entry
from jaxcache.model import FileInfo
from jaxcache.store.base import Store, StoreError

BASELINE = f"{OWN_DIR}/ci.json"
_MAX_BYTES = 256 << 20
#: JSON values take far more memory than their text; an entry is four of them.
_MAX_VALUES = 4 << 20
_DAY_NS = 86_400 * 10**9


class EntryBefore(NamedTuple):
    """One entry as it was; times are nanoseconds since the epoch."""

    mtime_ns: int
    atime_ns: int
    stamp_ns: int | None
    """Time of the last use as JAX dated it: that of the ``-atime`` file, or of the entry where that
    has no suffix (JAX 0.4.30 touches what it reads); None where it dates none."""

    @property
    def fresh(self) -> bool:
        """Return whether the next read shows, even if only the first of a day does (relatime)."""
        return self.atime_ns <= self.mtime_ns


@dataclass(frozen=True, slots=True)
class Baseline:
    """A cache right before a job."""

    started_ns: int
    source: str
    """The source it was restored from; empty if from nothing."""
    records_reads: bool
    """Whether a read of a file showed in its access time when that was tried here."""
    entries: ManyNamed[EntryBefore] = field(default_factory=dict)
    """By key."""
    saved_seconds: Seconds = 0.0
    """What hits had saved by then, as the ledger counts it."""
    unusable_keys: Many[str] = ()
    """Keys that the source held and that cannot hit here, so ``ci restore`` left their entries."""
    format: Literal[1] = 1


def take_baseline(
    store: Store, *, source: str, unusable_keys: Sequence[str], now_ns: int
) -> Baseline:
    """Look at a cache as it is now, and try whether reads will show."""
    inventory = take_inventory(store)
    entries = {}
    for file in inventory.entries:
        stamp = dating_file(file, inventory)
        info = file.info
        stamp_ns = stamp.mtime_ns if stamp else None
        entries[file.key_text] = EntryBefore(info.mtime_ns, info.atime_ns, stamp_ns)
    saved_seconds = count_uses(Ledger.load(store)).saved_seconds or 0.0
    return Baseline(
        now_ns, source, records_reads(store), entries, saved_seconds, tuple(unusable_keys)
    )


def dating_file(file: EntryFile, inventory: Inventory) -> FileInfo | None:
    """The file whose time JAX sets when it reads an entry; None where it sets none."""
    if file.kind is FileKind.LEGACY_ENTRY:
        return file.info
    return inventory.atimes.get(file.key_text)


def records_reads(store: Store) -> bool:
    """Try whether reading a file there changes its access time.

    Mount options do not show it: containers and network file systems may behave otherwise.
    """
    if store.path is None or not store.writable:
        return False
    try:
        # Not by a name, which another user may put a link or a FIFO under meanwhile.
        with tempfile.TemporaryFile(dir=store.path, buffering=0) as file:
            file.write(b"read me")
            old_ns = os.fstat(file.fileno()).st_mtime_ns - 2 * _DAY_NS
            os.utime(file.fileno(), ns=(old_ns, old_ns))
            os.pread(file.fileno(), 1, 0)
            return os.fstat(file.fileno()).st_atime_ns != old_ns
    except OSError:
        return False


def write_baseline(store: Store, baseline: Baseline) -> None:
    """Keep a baseline in the cache.

    Raises:
        StoreError
    """
    document = {f.name: getattr(baseline, f.name) for f in fields(baseline)}
    store.write(BASELINE, [json.dumps(document, separators=(",", ":")).encode()])


def read_baseline(store: Store) -> Baseline | None:
    """The baseline of a cache; None if it is missing or invalid."""
    try:
        data = store.read(BASELINE, limit=_MAX_BYTES)
        return build(Baseline, parse_json(data, ValueError, max_values=_MAX_VALUES))
    except (StoreError, ValueError):
        return None


class UseSource(StrEnum):
    """The source that recorded the uses; it proves that the other entries were not used."""

    JAX = "jax"
    """It dates reads itself: under a size cap, and up to 0.5.0 always."""
    FILE_SYSTEM = "file-system"
    LEDGER = "ledger"
    """It has uses, but not those of programs outside jaxcache: the other entries are unknown."""
    NONE = "nobody"


@dataclass(frozen=True, slots=True)
class Usage:
    """The entries of a cache after a job, each in exactly one of four lists."""

    new: tuple[Entry, ...]
    used: tuple[Entry, ...]
    unused: tuple[Entry, ...]
    unknown: tuple[Entry, ...]
    witness: UseSource
    unrecorded: tuple[Entry, ...]
    """Used entries whose use the ledger does not know yet."""
    saved_seconds: float
    """What the hits since ``ci restore`` saved, as the ledger counts it; and the compile seconds of
    the used entries whose use it does not record."""
    new_seconds: float
    compared: bool
    """Whether ``ci restore`` ran before the job; if not, every entry is new."""
    hits: int
    """New entries that were read later on, as far as the ledger knows."""

    @property
    def entries(self) -> tuple[Entry, ...]:
        """All of them."""
        return self.new + self.used + self.unused + self.unknown


def classify_usage(scan_result: Scan, ledger: Ledger, baseline: Baseline | None) -> Usage:
    """Compare a cache with what it was before the job.

    Args:
        scan_result: a scan with headers.
        baseline: None if the cache was not recorded: then everything is new.
    """
    compared = baseline is not None
    baseline = baseline or Baseline(0, "", records_reads=False)
    lists: dict[str, list[Entry]] = {"new": [], "used": [], "unused": [], "unknown": []}
    since = [e for e in ledger.events() if e.at_ns >= baseline.started_ns]
    hit = {e.key for e in since if e.kind == HIT}
    recorded = hit | {e.key for e in since if e.kind == COMPILE}
    inventory = scan_result.inventory
    files = {f.info.name: f for f in inventory.entries}
    proofs = {
        e.key: _use_sources(files[e.file], inventory, baseline.entries.get(e.key))
        for e in scan_result.entries
    }
    witness = _best_source(scan_result.entries, baseline, proofs, recorded)
    for entry in scan_result.entries:
        before = baseline.entries.get(entry.key)
        legacy = files[entry.file].kind is FileKind.LEGACY_ENTRY
        if before is None and entry.created_ns < baseline.started_ns:
            # It was written before the job, so pull, import or copy brought it.
            lists["used" if entry.key in recorded else "unknown"].append(entry)
        elif before is None or (before.mtime_ns != entry.created_ns and not legacy):
            lists["new"].append(entry)
        elif entry.key in recorded or proofs[entry.key]:
            lists["used"].append(entry)
        else:
            lists["unused" if _would_record(witness, before) else "unknown"].append(entry)
    unrecorded = [e for e in lists["used"] if e.key not in recorded]
    saved_seconds = math.fsum(e.compile_seconds or 0.0 for e in unrecorded)
    if compared:
        # Uses that other caches recorded came with the entries that import brought meanwhile.
        imported_keys = {e.key for e in lists["unknown"] if e.key not in baseline.entries}
        elsewhere = sum_uses(e for e in ledger.events() if e.key in imported_keys)
        all_seconds = count_uses(ledger).saved_seconds or 0.0
        job_seconds = all_seconds - elsewhere.get("saved_seconds", 0.0) - baseline.saved_seconds
        saved_seconds += max(0.0, job_seconds)
    return Usage(
        **{name: tuple(entries) for name, entries in lists.items()},
        witness=witness if compared else UseSource.NONE,
        unrecorded=tuple(unrecorded),
        saved_seconds=saved_seconds,
        new_seconds=math.fsum(e.compile_seconds or 0.0 for e in lists["new"]),
        compared=compared,
        hits=sum(e.key in hit for e in lists["new"]),
    )


def _use_sources(
    file: EntryFile, inventory: Inventory, before: EntryBefore | None
) -> set[UseSource]:
    """Return the evidence of a use."""
    witnesses: set[UseSource] = set()
    if before is None:
        return witnesses
    stamp = dating_file(file, inventory)
    if stamp is not None and stamp.mtime_ns != before.stamp_ns:
        witnesses.add(UseSource.JAX)
    if file.info.atime_ns != before.atime_ns:
        witnesses.add(UseSource.FILE_SYSTEM)
    return witnesses


def _best_source(
    entries: Sequence[Entry],
    baseline: Baseline,
    proofs: dict[str, set[UseSource]],
    recorded: set[str],
) -> UseSource:
    """Return the evidence that would show every use."""
    if any(UseSource.JAX in witnesses for witnesses in proofs.values()):
        return UseSource.JAX  # this job's JAX had a cap, and then it stamps every read
    if baseline.records_reads:
        return UseSource.FILE_SYSTEM
    if recorded & {e.key for e in entries}:
        return UseSource.LEDGER
    return UseSource.NONE


def _would_record(witness: UseSource, before: EntryBefore) -> bool:
    if witness is UseSource.JAX:
        return before.stamp_ns is not None
    if witness is UseSource.FILE_SYSTEM:
        return before.fresh
    return False
