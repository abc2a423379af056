"""Keep of a cache what the job used, if it compiled anything new.

The state before the job, its baseline, is in ``.jaxcache/ci.json`` until the job is over.
Three sources record uses, none of which is always present: the ledger, if a step ran under
``jaxcache run``, ``warm`` or the live layer; JAX's own dates of use, which it keeps under a size
cap; and the file system's access times, which ``ci restore`` has made sure will move at the first
read. Any of them proves a use. Only a source that would have recorded it proves that an entry was
*not* used. The ledger never does: a plain step of the same job leaves no record in it.

The target is a bundle, which appears whole, or a shared cache, which keeps a record of use.
"""

import hashlib
import json
import math
import os
import shlex
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from typing import Any, Literal, NamedTuple

from jaxcache.cache.files import EntryFile, Inventory, take_inventory
from jaxcache.cache.ledger.record import COMPILE, HIT, Event
from jaxcache.cache.ledger.segments import Ledger, count_uses
from jaxcache.cache.ledger.write import append, compact
from jaxcache.cache.move.bundle_file import is_bundle_name
from jaxcache.cache.move.execute import carry_out, events_of
from jaxcache.cache.move.export_plan import ExportPlan, plan_export
from jaxcache.cache.move.plan import MoveAction, Outcome, Plan
from jaxcache.cache.move.stores import make_source
from jaxcache.cache.move.sync import plan_copy
from jaxcache.cache.prune.execute import remove
from jaxcache.cache.prune.plan import plan_prune, weighs_seconds
from jaxcache.cache.prune.removable import removable_entries, total_bytes
from jaxcache.cache.scan import Scan, ScanAids, scan
from jaxcache.cache.untrusted_json import Many, ManyNamed, Seconds, build, parse_json
from jaxcache.core.eviction import choose_for_room
from jaxcache.core.ledger import COMPACT_ABOVE, sum_uses
from jaxcache.core.names import OWN_DIR
from jaxcache.entry.names import FileKind
from jaxcache.errors import ExitCode, JaxcacheError, UsageError
from jaxcache.model import Depth, Entry, FileInfo, Problem, Progress
from jaxcache.options import PruneOptions
from jaxcache.options.move import SaveIf, SaveOptions
from jaxcache.store import is_remote
from jaxcache.store.base import Store, StoreError
from jaxcache.store.location import VARIABLE
from jaxcache.units import NS_PER_SECOND, format_command, format_count

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
    directory = getattr(store, "path", None)
    if directory is None or not store.writable:
        return False
    try:
        # Not by a name, which another user may put a link or a FIFO under meanwhile.
        with tempfile.TemporaryFile(dir=directory, buffering=0) as file:
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


#: Why something is saved, or why not.
Why = Literal["new", "always", "first", "nothing-new", "not-wanted", "empty"]
#: Why an entry is left out.
DropReason = Literal["unused", "max-size", "cannot-hit"]
_SAVING: frozenset[Why] = frozenset({"new", "always", "first"})
_DIGITS = 12
THRESHOLD = "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"
#: As GitHub and GitLab call it.
_FINISHED = ("success",)
_UNFINISHED = ("failure", "failed", "cancelled", "canceled")
_LEFT_OUT = (MoveAction.STRAY, MoveAction.BLOCKED, MoveAction.DAMAGED, MoveAction.UNFINISHED)


class DroppedEntry(NamedTuple):
    """One entry that is not saved, or not kept."""

    key: str
    reason: DropReason


@dataclass(frozen=True, slots=True)
class SavePlan:
    """The plan of a save."""

    cache_dir: str
    target: str
    usage: Usage
    kept: tuple[Entry, ...]
    dropped: tuple[DroppedEntry, ...]
    """The entries that the target does not get."""
    export: ExportPlan
    why: Why
    source: str
    """The source that the job was restored from; empty if from nothing."""
    finished: bool = True
    """Whether the job came to its end; what another one did not use, it may not have got to."""
    skips_quick: bool = False
    """Whether JAX seems to write only what compiles for longer than its own threshold of 1 s."""
    prefix: str | None = None
    """Of the key that the saved cache has for the CI system."""

    @property
    def saves(self) -> bool:
        """Return whether anything is to be written."""
        return self.why in _SAVING

    @property
    def digest(self) -> str:
        """Over the keys that are kept: the same content has the same name."""
        keys = "\n".join(sorted(e.key for e in self.kept))
        return hashlib.sha256(keys.encode("utf-8", "surrogateescape")).hexdigest()[:_DIGITS]

    @property
    def key(self) -> str | None:
        """The key; None without a prefix."""
        return None if self.prefix is None else f"{self.prefix}-{self.digest}"


def parse_job_status(text: str) -> bool:
    """Return whether a job finished, by the CI system's name of its state or an exit status.

    Raises:
        UsageError: ``bad-job-status``.
    """
    word = text.lower()
    if word in _FINISHED or word in _UNFINISHED:
        return word in _FINISHED
    if word.isdecimal():
        return not word.strip("0")
    raise UsageError(
        f"{text!r} is not a status of a job",
        code="bad-job-status",
        hint=f"one of {', '.join((*_FINISHED, *_UNFINISHED))}, or an exit status",
    )


def plan_save(
    store: Store,
    target: str,
    options: SaveOptions,
    *,
    baseline: Baseline | None,
    target_exists: bool,
    environment: Mapping[str, str],
    now_ns: int,
    progress: Progress | None,
) -> SavePlan:
    """Decide what to keep and whether to save it.

    Args:
        baseline: the cache before the job; None if it was not recorded.
        target_exists: whether there is anything to be replaced.
        options: a bundle keeps the entries that fit into its size, as stored in the cache. Entries
            that the job did not use stay if they were used within the time, or if the job failed.
        environment: of the job.
    """
    finished = parse_job_status(options.job_status)
    scan_result = scan(store, ScanAids(progress=progress, unfilled=True), deep=True)
    ledger = scan_result.ledger or Ledger()
    usage = classify_usage(scan_result, ledger, baseline)
    max_size_bytes = options.max_size_bytes if is_bundle_name(target) else None
    dropped: dict[str, DropReason] = {}
    # A job that neither used nor compiled anything ran no JAX: it shows nothing about use.
    for entry in usage.unused if finished and (usage.used or usage.new) else ():
        if (now_ns - entry.last_used_ns) / NS_PER_SECOND > (options.unused_for_seconds or 0.0):
            dropped[entry.file] = "unused"
    for file in _over(scan_result, ledger, dropped.__contains__, max_size_bytes, now_ns):
        dropped[file] = "max-size"
    kept = tuple(e for e in scan_result.entries if e.file not in dropped)
    return SavePlan(
        cache_dir=store.url,
        target=target,
        usage=usage,
        kept=kept,
        dropped=tuple(
            DroppedEntry(e.key, dropped[e.file]) for e in scan_result.entries if e.file in dropped
        ),
        export=plan_export(
            store, only=lambda e: e.file not in dropped, scan_result=scan_result, now_ns=now_ns
        ),
        why=_why(options.save_if, usage, kept, target_exists=target_exists),
        source=baseline.source if baseline else "",
        finished=finished,
        prefix=options.key,
        skips_quick=THRESHOLD not in environment
        and bool(scan_result.entries or environment.get(VARIABLE))
        and all(e.compile_seconds is None or e.compile_seconds >= 1.0 for e in scan_result.entries),
    )


def check_newer(plan: SavePlan, baseline: Baseline, held: Iterable[str]) -> SavePlan:
    """Check that a save drops nothing that the target has gained since the job was restored.

    Args:
        held: the keys of the entries that the target holds now.

    Returns:
        The plan, which also drops what ``ci restore`` left there, because it cannot hit here.

    Raises:
        JaxcacheError: ``newer-target``.
    """
    expected = {e.key for e in plan.usage.entries} | baseline.entries.keys()
    absent = {key for key in held if key not in expected}
    unusable = absent.intersection(baseline.unusable_keys)
    if lost := sorted(absent - unusable):
        file = "COPY.jxb" if is_remote(plan.target) else shlex.quote(plan.target)
        command = format_command(f"import {file}", plan.cache_dir)
        raise JaxcacheError(
            f"{plan.target} has gained {format_count(len(lost), 'entry')} since ci restore, which "
            f"saving would drop: {lost[0]}{' and others' if lost[1:] else ''}",
            code="newer-target",
            hint=f"bring them here with: {command}, and save again; or save to a directory or a "
            "bucket, where parallel jobs add up",
            exit_code=ExitCode.PARTIAL,
        )
    unusable_entries = (DroppedEntry(key, "cannot-hit") for key in sorted(unusable))
    return replace(plan, dropped=(*plan.dropped, *unusable_entries))


def _why(save_if: SaveIf, usage: Usage, kept: Sequence[Entry], *, target_exists: bool) -> Why:
    if save_if == "false":
        return "not-wanted"
    if not kept:
        return "empty"
    if save_if == "always":
        return "always"
    if usage.new:
        return "new"
    return "nothing-new" if target_exists else "first"


def _over(
    scan_result: Scan,
    ledger: Ledger,
    gone: Callable[[str], bool],
    max_size_bytes: int | None,
    now_ns: int,
) -> list[str]:
    """Files that must go to meet the bound."""
    if max_size_bytes is None:
        return []
    items = removable_entries(scan_result, now_ns=now_ns, grace_seconds=0, lookup=ledger.record)
    remaining = [i for i in items if not gone(i.removal.file.name)]
    excess = sum(i.removal.size_bytes for i in remaining) - max_size_bytes
    free = [i.candidate for i in remaining if not i.protected]
    return [c.name for c in choose_for_room(free, excess, "cost", now_ns)]


@dataclass(frozen=True, slots=True)
class SaveResult:
    """The result of executing a plan."""

    plan: SavePlan
    written: int = 0
    """Entries in the bundle, or new in the shared cache."""
    size_bytes: int = 0
    """The size of the bundle, or of the files written into the shared cache."""
    left_out: tuple[Problem, ...] = ()
    pruned: int = 0
    """Entries that the shared cache gave up for its bounds."""
    failed: tuple[str, ...] = ()
    dry_run: bool = False

    @property
    def saved(self) -> bool:
        """Whether anything was written."""
        return self.plan.saves and not self.dry_run

    @property
    def complete(self) -> bool:
        """Whether everything was saved that was to be."""
        return not (self.left_out or self.failed)


def save_result(plan: SavePlan, done: Outcome) -> SaveResult:
    """Sum up a move into a shared cache, or a dry run."""
    left_out = tuple(step.problem for step in done.of(*_LEFT_OUT))
    failed = tuple(f"{s.name}: {s.detail}" for s in done.of(MoveAction.FAILED, MoveAction.UNTRIED))
    if done.dry_run:
        return SaveResult(plan, left_out=left_out, failed=failed, dry_run=True)
    entries = sum(step.key is not None for step in done.written)
    return SaveResult(plan, entries, done.written_bytes, left_out, failed=failed)


def check_save(
    store: Store, target: Store | None, plan: SavePlan, options: SaveOptions
) -> SaveResult:
    """Read and check what a save would write, and write nothing.

    Args:
        target: the shared cache; None for a bundle, or where its directory does not exist.
    """
    if not plan.saves:
        return SaveResult(plan, dry_run=True)
    allow_large = options.allow_large or is_bundle_name(plan.target)
    saving = _plan(store, target, plan, allow_large=allow_large)
    source = make_source(store, saving)
    now_ns = plan.export.now_ns
    return save_result(plan, carry_out(source, target, saving, now_ns=now_ns, dry_run=True))


def _plan(store: Store, target: Store | None, plan: SavePlan, *, allow_large: bool) -> Plan:
    """Compare what is saved with the names in the shared cache."""
    compared = plan_copy(
        store,
        plan.export,
        target,
        cache_dir=target.url if target else plan.target,
        on_conflict=None,
        allow_large=allow_large or (target is not None and target.remote),
        origins=False,
    )
    return replace(compared, runs=True)


def save_shared(
    store: Store,
    target: Store,
    plan: SavePlan,
    options: SaveOptions,
    *,
    signers: Sequence[Any],
    now_ns: int,
    progress: Progress | None,
) -> SaveResult:
    """Add to a cache that other jobs share; what they put there stays unless a bound takes it.

    Uses are recorded there in any case: by them the bounds judge.

    Raises:
        NoCacheError: it cannot be reached.
        JaxcacheError: ``bound-out-of-reach``; LockedError
    """
    saved = SaveResult(plan)
    learnt = [Event(e.key, HIT, now_ns) for e in plan.usage.used]
    if plan.saves:
        saving = _plan(store, target, plan, allow_large=options.allow_large)
        source = make_source(store, saving)
        done = carry_out(source, target, saving, signers=signers, now_ns=now_ns, progress=progress)
        learnt += events_of(done.written, {}, Ledger())
        saved = save_result(plan, done)
    append(target, learnt)
    if len(Ledger.load(target).segments) > COMPACT_ABOVE:
        compact(target)
    bounds = options.pruning
    if bounds is None or not _binds(target, bounds):
        return saved
    scan_result = scan(
        target, depth=Depth.OPENED if weighs_seconds(bounds) else Depth.DATED, deep=True
    )
    pruning = plan_prune(scan_result, bounds, cache_dir=target.url, now_ns=now_ns)
    return replace(saved, pruned=len(remove(target, pruning.removals).removed))


def _binds(target: Store, bounds: PruneOptions) -> bool:
    """Return whether there is anything to prune, by names alone: a value costs a request."""
    if bounds.by_age or bounds.max_size_bytes is None:
        return True
    return total_bytes(scan(target, depth=Depth.LISTED, deep=True)) > bounds.max_size_bytes
