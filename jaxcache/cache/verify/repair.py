"""``verify --fix``: plan what to do about problems, then do it."""

import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from jaxcache.cache.entry_files import (
    ATIME_BYTES,
    atime_name,
    find,
    move_entry_out,
    remove_entry,
    write_atime,
)
from jaxcache.cache.ledger.record import REMOVED, Event
from jaxcache.cache.ledger.segments import Ledger
from jaxcache.cache.ledger.write import append
from jaxcache.cache.leftovers import is_staged, remove_leftover
from jaxcache.cache.scan import Progress
from jaxcache.cache.under_lock import hold_file_lock, run_under_lock
from jaxcache.cache.verify.quarantine import quarantine_directory
from jaxcache.cache.verify.run_checks import CORRUPT, INFORMATIONAL, Verification
from jaxcache.core.names import ATIME_SUFFIX, CACHE_SUFFIX
from jaxcache.model import FileInfo, Problem, plan_text, result_repr
from jaxcache.store.base import Store, StoreError, same_file
from jaxcache.units import format_count

if TYPE_CHECKING:
    from jaxcache.layouts.base import Layout

#: What is done about a problem; None where only a person can. Part of the JSON contract.
#:
#: * ``leave-young``: it may still be being written.
#: * ``leave-changed``: it changed after it was looked at.
#: * ``leave-failed``: the system refused.
RepairAction = Literal[
    "quarantine", "delete", "back-fill", "leave-young", "leave-changed", "leave-failed"
]


@dataclass(frozen=True, slots=True)
class RepairStep:
    """One file and what is to be done with it."""

    file: str
    action: RepairAction
    info: FileInfo
    stamp_ns: int = 0
    """The last use, for a back-filled ``-atime``."""
    temporary: bool = False
    """Whether a broken write left it, or one that is going on is making it."""
    key: str | None = None
    """The entry's key; None for a file that has none."""

    def __repr__(self) -> str:
        return f"<{self.action} {self.file!r}>"


@dataclass(frozen=True, slots=True)
class RepairPlan:
    """The steps of ``--fix``, at most one per file."""

    __repr__ = result_repr

    directory: str
    """The directory in quarantine for damaged entries."""
    steps: tuple[RepairStep, ...]
    young: frozenset[str]
    """Temporary files among these go only if their writer is known to be dead."""

    def __str__(self) -> str:
        return plan_text(f"would repair {format_count(len(self.steps), 'file')}", self.steps)


@dataclass(frozen=True, slots=True)
class Repair:
    """The action per file that was taken, or is planned."""

    __repr__ = result_repr

    dry_run: bool
    actions: dict[str, RepairAction]

    def action(self, problem: Problem) -> RepairAction | None:
        """Return the action for a problem."""
        return None if problem.kind in INFORMATIONAL else self.actions.get(problem.file)

    def unsolved(self, problems: Iterable[Problem]) -> int:
        """Count the problems that remain: their file is there, or its date is still missing."""
        return sum(
            not (self.action(p) in _GONE or (self.action(p) == "back-fill" and p.kind in _DATES))
            for p in problems
        )


_GONE = frozenset({"quarantine", "delete"})
_DATES = frozenset({"missing-atime", "bad-atime"})


def plan_repair(verification: Verification, *, now_ns: int, delete: bool = False) -> RepairPlan:
    """Plan what to do about the problems that were found.

    Bad entries go to quarantine, or away for good; orphans and abandoned temporary files go away;
    missing and unreadable ``-atime`` files are written anew. Files that no version of JAX or XLA
    makes are left alone, and so are owners and permissions.
    """
    steps: dict[str, RepairStep] = {}
    for problem in verification.problems:
        info = verification.files.get(problem.file)
        action = _choose_action(problem, delete)
        if info is None or action is None:
            continue
        # Whether a temporary file is abandoned, the store itself can tell.
        if problem.file in verification.young and problem.kind not in ("temp-file", *_DATES):
            action = "leave-young"
        before = steps.get(problem.file)
        if before is not None and before.action != "back-fill":
            continue
        entry = verification.entries.get(problem.file)
        stamp_ns = entry.last_used_ns if entry else info.mtime_ns
        temporary = problem.kind == "temp-file"
        steps[problem.file] = RepairStep(
            problem.file, action, info, stamp_ns, temporary, problem.key
        )
    return RepairPlan(quarantine_directory(now_ns), tuple(steps.values()), verification.young)


def _choose_action(problem: Problem, delete: bool) -> RepairAction | None:
    if problem.kind in CORRUPT:
        return "delete" if delete else "quarantine"
    if problem.kind in ("orphan-atime", "temp-file"):
        return "delete"
    return "back-fill" if problem.kind in _DATES else None


def show_repair(plan: RepairPlan, *, dry_run: bool) -> Repair:
    """The plan as an outcome in which nothing went otherwise."""
    return Repair(dry_run, {s.file: s.action for s in plan.steps})


def execute_repair(
    store: Store,
    layout: "Layout",
    plan: RepairPlan,
    *,
    progress: Progress | None = None,
) -> Repair:
    """Carry out a plan, looking at each file again before it is touched.

    Raises:
        LockedError: the lock was not obtained; what was done until then stays done.
    """
    began_ns = time.time_ns()  # before anything can be compiled anew
    actions: dict[str, RepairAction] = {}
    failed: set[str] = set()

    def run(step: RepairStep) -> None:
        if _stem(step) in failed:  # by what it leaves, the next run finds what belongs together
            actions[step.file] = "leave-failed"
            return
        try:
            with hold_file_lock(store, step.file, layout.removals.file_lock) as held:
                young_one = step.file in plan.young
                actions[step.file] = (
                    _execute(store, plan.directory, step, young_one) if held else "leave-young"
                )
        except StoreError:
            actions[step.file] = "leave-failed"
            failed.add(_stem(step))

    steps = plan.steps
    if rank := layout.removals.removal_rank:
        # Of a kernel and its source the source goes first: torch writes it anew where it is
        # missing, and only beside a damaged kernel does the next run suspect it.
        first: dict[str, int] = {}
        for step in steps:
            own = rank(step.file)
            first[_stem(step)] = min(own, first.get(_stem(step), own))
        steps = tuple(
            sorted(steps, key=lambda s: (first[_stem(s)], _stem(s), -rank(s.file), s.file))
        )
    run_under_lock(store, run, steps, file_lock=layout.removals.file_lock, progress=progress)
    gone = (s for s in steps if actions[s.file] in _GONE and not s.temporary)
    ledger = Ledger.load(store)
    records = (r for s in gone if (r := ledger.record(s.key or s.file)) and r.payload_sha256)
    append(store, [Event(record.key, REMOVED, began_ns) for record in records])
    return Repair(False, actions)


def _stem(step: RepairStep) -> str:
    """The name that a kernel and its source share."""
    return os.path.splitext(step.file)[0]


def _execute(store: Store, directory: str, step: RepairStep, young: bool) -> RepairAction:
    if step.action.startswith("leave-"):
        return step.action
    now = find(store, step.file)
    if now is None or not same_file(now, step.info):
        return "leave-changed"
    if step.action == "quarantine":
        move_entry_out(store, step.file, directory)
    elif step.action == "back-fill":
        stamp = atime_name(step.file)
        stamp_info = find(store, stamp) if stamp else None
        if stamp_info is None or stamp_info.size_bytes != ATIME_BYTES:  # else JAX was faster
            write_atime(store, step.file, step.stamp_ns, replace=True)
    elif step.file.endswith(CACHE_SUFFIX):
        if not remove_entry(store, step.info):
            return "leave-changed"
    elif step.file.endswith(ATIME_SUFFIX) and find(
        store, step.file.removesuffix(ATIME_SUFFIX) + CACHE_SUFFIX
    ):
        return "leave-changed"  # no orphan any more
    elif not (step.temporary and remove_leftover(store, step.file)):
        if step.temporary and (young or is_staged(step.file)):
            return "leave-young"
        store.delete(step.file, expected=step.info)
    return step.action
