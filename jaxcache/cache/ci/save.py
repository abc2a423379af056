"""Keep of a cache what the job used, if it compiled anything new.

The target is a bundle, which appears whole, or a shared cache, which keeps a record of use.
"""

import hashlib
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

from jaxcache.cache.ci.usage import Baseline, Usage, classify_usage
from jaxcache.cache.ledger.record import HIT, Event
from jaxcache.cache.ledger.segments import Ledger
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
from jaxcache.core.eviction import choose_for_room
from jaxcache.core.ledger import COMPACT_ABOVE
from jaxcache.entry.summary import Entry
from jaxcache.errors import ExitCode, JaxcacheError, UsageError
from jaxcache.model import Depth, Problem
from jaxcache.options import PruneOptions
from jaxcache.options.move import SaveIf, SaveOptions
from jaxcache.store import is_remote
from jaxcache.store.base import Store
from jaxcache.store.location import VARIABLE
from jaxcache.units import NS_PER_SECOND, format_command, format_count

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
    scan_result = scan(store, ScanAids(unfilled=True), deep=True)
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
        done = carry_out(source, target, saving, signers=signers, now_ns=now_ns)
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
