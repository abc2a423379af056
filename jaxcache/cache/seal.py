"""``seal``: rewrite entries so that JAX itself, unmodified, detects corruption in them.

The payload stays the same byte for byte. A killed ``seal`` leaves each entry old or new, both of
them valid; the next ``seal`` continues where it stopped.
"""

import contextlib
import hashlib
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from jaxcache import model
from jaxcache.cache.files import LOCK_TIMEOUT_SECONDS, EntryFile, find, remove_leftovers
from jaxcache.cache.ledger.record import SEALED, Event, LedgerRecord
from jaxcache.cache.ledger.segments import Ledger
from jaxcache.cache.ledger.write import append
from jaxcache.cache.scan import Scan, scan
from jaxcache.cache.selection import Selection
from jaxcache.cache.verify.check import (
    MAX_DECODED_BYTES,
    check_payload,
    digest_mismatch,
    recorded_digest,
)
from jaxcache.core.names import HEADER_BYTES
from jaxcache.entry import codec
from jaxcache.entry.summary import Entry
from jaxcache.options import SealOptions
from jaxcache.store.base import ChangedError, MissingError, NewFile, Store, StoreError, same_file
from jaxcache.store.concurrency import ByteBudget
from jaxcache.units import format_count, format_size

#: Why an entry is left as it is.
#:
#: * ``sealed``: it is sealed already, and compressed at this level where one is given.
#: * ``no-gain``: sealed already, and no smaller at this level.
#: * ``unknown-format``: a newer JAX may have written it.
#: * ``too-large``: its payload is above what one worker may hold.
#: * ``gone``: another process removed or replaced it.
#: * ``young``: JAX seems to be writing it.
SealReason = Literal["sealed", "no-gain", "too-large", "gone", "young", "unknown-format"]
#: What all workers together may hold; the largest payload that is sealed takes all of it.
_MEMORY_BYTES = 4 << 30
#: Knowledge is written to the ledger every so many entries.
_LEDGER_EVERY = 256
#: In the ledger: the level that an entry was last compressed at.
LEVEL_FACT = "seal_level"


class SkippedEntry(NamedTuple):
    """One entry that is left as it is."""

    entry: Entry
    reason: SealReason


class SealFailure(NamedTuple):
    """One entry that could not be written, and is as it was."""

    entry: Entry
    reason: str
    """The system's."""


@dataclass(frozen=True, slots=True)
class SealPlan:
    """The entries to be rewritten."""

    __repr__ = model.result_repr

    cache_dir: str
    level: int | None
    """The compression level of ``--recompress``; None adds checksums only."""
    todo: tuple[Entry, ...]
    skipped: tuple[SkippedEntry, ...]
    scan: Scan

    @property
    def summary(self) -> str:
        """One line on what would be sealed."""
        size = format_size(sum(e.size_bytes for e in self.todo))
        at = "" if self.level is None else f", compressing at level {self.level}"
        return f"would seal {format_count(len(self.todo), 'entry')} of {size}{at}"

    def __str__(self) -> str:
        return model.plan_text(self.summary, self.todo)


@dataclass(frozen=True, slots=True)
class SealedEntry:
    """One entry that was rewritten."""

    entry: Entry
    size_bytes_after: int | None
    """None in a plan."""


@dataclass(frozen=True, slots=True)
class SealResult:
    """The outcome of a plan."""

    __repr__ = model.result_repr

    sealed: tuple[SealedEntry, ...]
    skipped: tuple[SkippedEntry, ...]
    problems: tuple[model.Problem, ...]
    """Entries that are not sound, which sealing would only cement; they are as they were."""
    failed: tuple[SealFailure, ...] = ()

    @property
    def saved_bytes(self) -> int:
        """Bytes saved over all entries; negative where checksums cost more."""
        return sum(s.entry.size_bytes - (s.size_bytes_after or 0) for s in self.sealed)


def plan_seal(store: Store, options: SealOptions | None = None) -> SealPlan:
    """Plan which entries to seal.

    zstd entries without a checksum are (zlib has Adler-32). With a level, sealed ones too, except
    where the ledger knows that they were compressed at this level before.

    Raises:
        NoCacheError
        JaxcacheError: a KEY fits nothing, or more than it may.
    """
    options = options or SealOptions()
    selection = Selection.parse(options.keys, options.filters)
    scan_result = scan(store, depth=max(selection.depth, model.Depth.OPENED))
    ledger = scan_result.ledger or Ledger()
    todo: list[Entry] = []
    skipped: list[SkippedEntry] = []
    for entry in selection.pick(scan_result.entries, time.time_ns()):
        if "unknown-format" in entry.problems:
            skipped.append(SkippedEntry(entry, "unknown-format"))
        elif (
            not entry.sealed
            or _wants_level(entry, ledger.record(entry.key), options.recompress)
            or _is_cut(store, entry)
        ):
            todo.append(entry)
        else:
            skipped.append(SkippedEntry(entry, "sealed"))
    todo.sort(key=lambda e: -e.size_bytes)  # the longest first, so that no worker ends alone
    return SealPlan(store.url, options.recompress, tuple(todo), tuple(skipped), scan_result)


def _is_cut(store: Store, entry: Entry) -> bool:
    """Return whether an entry ends elsewhere than its start says, which spoils its checksum."""
    if store.remote:  # a request for each block
        return False
    try:
        with store.open(entry.file) as file:
            codec.check_frame(file, entry.size_bytes)
    except (codec.CodecError, StoreError):
        return True
    return False


def _wants_level(entry: Entry, record: LedgerRecord | None, level: int | None) -> bool:
    """Return whether a sealed entry is to be compressed again."""
    if level is None or record is None or record.file_mtime_ns != entry.created_ns:
        return level is not None
    used_level = record.extra.get(LEVEL_FACT)
    return not isinstance(used_level, int) or used_level < level


def execute_seal(store: Store, plan: SealPlan, *, jobs: int, now_ns: int) -> SealResult:
    """Carry out a plan on ``jobs`` threads.

    Raises:
        LockedError: JAX's lock was not obtained; what was sealed until then stays sealed.
    """
    remove_leftovers(store)
    worker = _Worker(store, plan, now_ns)
    outcomes: list[_Outcome] = []
    try:
        with ThreadPoolExecutor(jobs) as pool:
            running = [pool.submit(worker.seal, entry) for entry in plan.todo]
            try:
                for future in running:
                    outcomes.append(future.result())
                    model.report_progress(len(outcomes), len(running))
            finally:
                worker.stopped = True
                pool.shutdown(cancel_futures=True)
    finally:
        worker.write_ledger()
    return SealResult(
        tuple(o for o in outcomes if isinstance(o, SealedEntry)),
        (*plan.skipped, *(o for o in outcomes if isinstance(o, SkippedEntry))),
        tuple(problem for o in outcomes if isinstance(o, list) for problem in o),
        tuple(o for o in outcomes if isinstance(o, SealFailure)),
    )


#: What became of one entry; a list where it is not sound.
_Outcome = SealedEntry | SkippedEntry | SealFailure | list[model.Problem]


class _Worker:
    """State that the threads share."""

    def __init__(self, store: Store, plan: SealPlan, now_ns: int) -> None:
        self._store = store
        self._level = plan.level
        self._now_ns = now_ns
        self._files = {f.info.name: f for f in plan.scan.inventory.entries}
        self._ledger = Ledger.load(store)
        self._budget = ByteBudget(_MEMORY_BYTES)
        self._swaps = threading.Lock()
        self._lock = threading.Lock()
        self._events: list[Event] = []
        self.stopped = False

    def seal(self, entry: Entry) -> _Outcome:
        """Seal one entry, or return why not."""
        if self.stopped:
            return []
        # The content, a copy where it is decoded, the old frame and the new.
        held = 2 * ((entry.payload_bytes or 8 * entry.size_bytes) + entry.size_bytes)
        with self._budget.take(held):
            try:
                return self._seal(entry, self._files[entry.file])
            except codec.CodecError as error:
                age_ns = abs(self._now_ns - entry.created_ns)
                if error.kind in model.CUT_SHORT and age_ns < model.GRACE_NS:
                    return SkippedEntry(entry, "young")
                problem = model.Problem(entry.file, error.kind, error.detail, entry.key)
            except (ChangedError, MissingError):
                return SkippedEntry(entry, "gone")
            except StoreError as error:
                problem = model.Problem(entry.file, "unreadable", error.reason, entry.key)
            return self._report(entry, problem)

    def _seal(self, entry: Entry, file: EntryFile) -> _Outcome:
        if entry.size_bytes > MAX_DECODED_BYTES or (entry.payload_bytes or 0) > MAX_DECODED_BYTES:
            return SkippedEntry(entry, "too-large")
        frame = self._store.read(entry.file, limit=entry.size_bytes)
        content = codec.decompress_whole(frame, limit=MAX_DECODED_BYTES)
        if content is None:
            return SkippedEntry(entry, "too-large")
        payload = memoryview(content)[HEADER_BYTES:]
        digest = hashlib.sha256(payload).hexdigest()
        record = self._ledger.record(entry.key)
        recorded = recorded_digest(file, record)
        if recorded not in (None, digest):
            return self._report(entry, digest_mismatch(file, digest, str(recorded)))
        if recorded is None and (problems := list(check_payload(file, payload))):
            return self._report(entry, *problems)
        new = codec.seal_frame(frame, content, self._level)
        facts: dict[str, Any] = {"payload_sha256": digest, "file_mtime_ns": file.info.mtime_ns}
        if self._level is not None:
            facts[LEVEL_FACT] = self._level
        event = Event(entry.key, SEALED, self._now_ns, facts)
        if entry.sealed and len(new) >= len(frame):
            self._learn(event)
            return SkippedEntry(entry, "no-gain")
        if self._level is not None:  # else its blocks are those that were just decompressed
            codec.decompress_whole(new, limit=len(content))
        try:
            self._store.rewrite(NewFile(entry.file, [new]), file.info, self._hold())
        except (ChangedError, MissingError):
            raise
        except StoreError as error:
            return SealFailure(entry, error.reason)
        self._learn(event)
        return SealedEntry(entry, len(new))

    @contextlib.contextmanager
    def _hold(self) -> Iterator[None]:
        """JAX's lock for one swap, of which one thread holds it at a time."""
        with self._swaps, self._store.lock(timeout_seconds=LOCK_TIMEOUT_SECONDS):
            yield

    def _report(self, entry: Entry, *problems: model.Problem) -> _Outcome:
        """Return what is wrong with an entry, unless it was replaced after the plan was made."""
        with contextlib.suppress(StoreError):
            now = find(self._store, entry.file)
            if now is None or not same_file(now, self._files[entry.file].info):
                return SkippedEntry(entry, "gone")
        return list(problems)

    def _learn(self, event: Event) -> None:
        with self._lock:
            self._events.append(event)
            full = len(self._events) >= _LEDGER_EVERY
        if full:
            self.write_ledger()

    def write_ledger(self) -> None:
        """Keep what was learnt so far."""
        with self._lock:
            events = self._events
            self._events = []
        append(self._store, events)
