"""``verify --fix``: plan what to do about problems, then do it; and move back what is undamaged.

The quarantine is ``.jaxcache/quarantine/<when>/<file>``, where JAX does not look.
"""

import math
import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from jaxcache.cache import files as entry_files
from jaxcache.cache.ledger.record import REMOVED, Event
from jaxcache.cache.ledger.segments import Ledger
from jaxcache.cache.ledger.write import append
from jaxcache.cache.scan import NO_AIDS, UnknownFormats
from jaxcache.cache.selection import fits_key
from jaxcache.cache.verify.run_checks import CORRUPT, INFORMATIONAL, Verification
from jaxcache.core.names import ATIME_SUFFIX, CACHE_SUFFIX, QUARANTINE_DIR, quarantine_directory
from jaxcache.entry.names import FileKind, split_name
from jaxcache.errors import JaxcacheError
from jaxcache.layouts import Layout
from jaxcache.model import Depth, FileInfo, Problem, plan_text, result_repr
from jaxcache.options import VerifyOptions
from jaxcache.store import open_store
from jaxcache.store.base import Store, StoreError, same_file
from jaxcache.units import format_count


@dataclass(frozen=True, slots=True)
class QuarantinedEntry:
    """One entry in quarantine."""

    key: str
    file: str
    """Its name in the cache."""
    info: FileInfo
    atime: FileInfo | None


class LeftEntry(NamedTuple):
    """One entry that was left in quarantine."""

    entry: QuarantinedEntry
    reason: str


@dataclass(frozen=True, slots=True)
class Restoration:
    """The entries that were restored, and those that were not, with the reason."""

    __repr__ = result_repr

    cache_dir: str
    dry_run: bool
    restored: tuple[QuarantinedEntry, ...]
    left: tuple[LeftEntry, ...]


def list_quarantine(store: Store, key_of: Callable[[str], str | None]) -> list[QuarantinedEntry]:
    """List the entries in quarantine, the latest first.

    Args:
        key_of: of a file's name in the cache.
    """
    files = {i.name: i for i in store.walk(QUARANTINE_DIR) if i.type == "file"}
    entries = []
    for name in sorted(files, reverse=True):
        inside = name.removeprefix(f"{QUARANTINE_DIR}/")
        file = inside.partition("/")[2] or inside
        if key := key_of(file):
            entries.append(
                QuarantinedEntry(
                    key, file, files[name], files.get(entry_files.atime_name(name) or "")
                )
            )
    return entries


def restore(
    store: Store, layout: Layout, *, keys: Sequence[str] = (), dry_run: bool = False
) -> Restoration:
    """Move entries from quarantine back to where they were.

    A damaged entry stays in quarantine, and so does one that its compiler has written again.

    Raises:
        JaxcacheError: ``no-match`` where a KEY fits nothing in quarantine.
        LockedError
    """
    files = list_quarantine(store, layout.key_of)
    dated = any(split_name(i.name)[0] is FileKind.ATIME for i in store.list())
    for text in keys:
        if not any(fits_key(q.key, text) for q in files):
            raise JaxcacheError(
                f"nothing in quarantine matches {text!r}",
                code="no-match",
                hint="without KEY, every undamaged entry is restored",
            )
    wanted = [q for q in files if not keys or any(fits_key(q.key, text) for text in keys)]
    damage = _find_damage(store, layout, wanted)
    restored: list[QuarantinedEntry] = []
    unrestored: list[LeftEntry] = []

    def bring_back(item: QuarantinedEntry) -> None:
        try:
            present = store.info(item.file)
        except StoreError:
            pass
        else:
            if same_file(present, item.info):  # a restoration was killed between its two names
                if not dry_run:
                    store.delete(item.info.name)
                restored.append(item)
            else:
                unrestored.append(LeftEntry(item, "the cache has a newer one"))
            return
        if reason := damage.get(item.info.name):
            unrestored.append(LeftEntry(item, reason))
            return
        if any(other.file == item.file for other in restored):
            unrestored.append(LeftEntry(item, "a later one was restored"))
            return
        if not dry_run:
            try:
                used_ns = item.info.mtime_ns if dated else None
                entry_files.move_entry_in(
                    store, item.info.name, item.file, item.atime, used_ns=used_ns
                )
            except StoreError as error:
                unrestored.append(LeftEntry(item, error.reason))
                return
        restored.append(item)

    if dry_run:
        for item in wanted:
            bring_back(item)
    else:
        entry_files.run_under_lock(store, bring_back, wanted, file_lock=layout.removals.file_lock)
    return Restoration(store.url, dry_run, tuple(restored), tuple(unrestored))


def _find_damage(store: Store, layout: Layout, items: Sequence[QuarantinedEntry]) -> dict[str, str]:
    """Check entries in quarantine; the damage of each damaged one, by its name there.

    A directory of quarantine has its entries under the names that they have in a cache.
    """
    # Code of torch is recorded after its grace: never, because a check changes nothing here.
    options = VerifyOptions(level="full", grace_seconds=math.inf)
    names = {item.info.name for item in items}
    damage: dict[str, str] = {}
    for directory in {i.info.name.removesuffix(f"/{i.file}") for i in items}:
        inner = open_store(f"{store.url}/{directory}")
        scan = layout.scans.scan(inner, NO_AIDS, Depth.LISTED, deep=False)
        chosen = {e.file for e in scan.entries if f"{directory}/{e.file}" in names}
        files = layout.checks.files_to_check(inner, scan, chosen, options)
        for name, checked in layout.checks.check(inner, scan, files, options):
            for problem in UnknownFormats(inner).rename(checked.problems):
                if problem.kind in CORRUPT or problem.kind == "unreadable":
                    damage[f"{directory}/{name}"] = f"{problem.kind}: {problem.detail}"
    return damage


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

    def as_outcome(self, *, dry_run: bool) -> "Repair":
        """Return the plan as an outcome in which nothing went otherwise."""
        return Repair(dry_run, {step.file: step.action for step in self.steps})

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


def plan_repair(verification: Verification, *, now_ns: int, delete: bool) -> RepairPlan:
    """Plan what to do about the problems that were found.

    Damaged entries are moved to quarantine, or deleted; orphans and abandoned temporary files are
    deleted; missing and unreadable ``-atime`` files are rewritten. Files that no version of JAX or
    XLA makes are left alone, and so are owners and permissions.
    """
    steps: dict[str, RepairStep] = {}
    for problem in verification.problems:
        info = verification.files.get(problem.file)
        action = _choose_action(problem, delete)
        if info is None or action is None:
            continue
        # The store itself checks whether a temporary file is abandoned.
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


def execute_repair(store: Store, layout: Layout, plan: RepairPlan) -> Repair:
    """Carry out a plan, looking at each file again before it is touched.

    Raises:
        LockedError: the lock was not obtained; what was done until then stays done.
    """
    began_ns = time.time_ns()  # before anything can be compiled again
    actions: dict[str, RepairAction] = {}
    failed: set[str] = set()

    def run(step: RepairStep) -> None:
        if _stem(step) in failed:  # by what it leaves, the next run finds what belongs together
            actions[step.file] = "leave-failed"
            return
        try:
            with entry_files.hold_file_lock(store, step.file, layout.removals.file_lock) as held:
                young_one = step.file in plan.young
                actions[step.file] = (
                    _execute(store, plan.directory, step, young_one) if held else "leave-young"
                )
        except StoreError:
            actions[step.file] = "leave-failed"
            failed.add(_stem(step))

    steps = plan.steps
    if rank := layout.removals.removal_rank:
        # Remove the source of a kernel first: torch writes a missing source again, and the next run
        # suspects a source only if its kernel is damaged.
        first: dict[str, int] = {}
        for step in steps:
            own = rank(step.file)
            first[_stem(step)] = min(own, first.get(_stem(step), own))
        steps = tuple(
            sorted(steps, key=lambda s: (first[_stem(s)], _stem(s), -rank(s.file), s.file))
        )
    entry_files.run_under_lock(store, run, steps, file_lock=layout.removals.file_lock)
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
    now = entry_files.find(store, step.file)
    if now is None or not same_file(now, step.info):
        return "leave-changed"
    if step.action == "quarantine":
        entry_files.move_entry_out(store, step.file, directory)
    elif step.action == "back-fill":
        stamp = entry_files.atime_name(step.file)
        stamp_info = entry_files.find(store, stamp) if stamp else None
        if (
            stamp_info is None or stamp_info.size_bytes != entry_files.ATIME_BYTES
        ):  # else JAX was faster
            entry_files.write_atime(store, step.file, step.stamp_ns, replace=True)
    elif step.file.endswith(CACHE_SUFFIX):
        if not entry_files.remove_entry(store, step.info):
            return "leave-changed"
    elif step.file.endswith(ATIME_SUFFIX) and entry_files.find(
        store, step.file.removesuffix(ATIME_SUFFIX) + CACHE_SUFFIX
    ):
        return "leave-changed"  # no orphan any more
    elif not (step.temporary and entry_files.remove_leftover(store, step.file)):
        if step.temporary and (young or entry_files.is_staged(step.file)):
            return "leave-young"
        store.delete(step.file, expected=step.info)
    return step.action
