"""Faults, and what must hold after each of them."""

import contextlib
import errno
import functools
import itertools
import json
import os
import signal
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from faults.commands import Row
from faults.intercept import Call, Decide, Verdict, go_on
from faults.process import DAY_NS, Clock, CompileFinished, later, run_cli, start_cli
from faults.world import State, copy_of, look

#: Exit codes of the command line's contract, without those of signals and of mistakes.
_CODES = frozenset({0, 1, 2, 3, 10, 11, 12, 13, 130})
#: Calls that take room on the disk.
_TAKES_ROOM = frozenset(
    {
        "write",
        "pwrite64",
        "writev",
        "open",
        "openat",
        "mkdir",
        "mkdirat",
        "link",
        "linkat",
        "fallocate",
        "ftruncate",
        "copy_file_range",
        "sendfile",
    }
)


@dataclass(frozen=True, slots=True)
class Failure:
    """A promise that was not kept."""

    row: str
    fault: str
    broken: tuple[str, ...]


@dataclass
class Lab:
    """A world as a template, and where copies of it live."""

    template: Path
    _count: int = 0

    @functools.cached_property
    def before(self) -> State:
        """How a world is at first."""
        return look(self.template)

    def fresh(self) -> contextlib.AbstractContextManager[Path]:
        """A copy."""
        self._count += 1
        return copy_of(self.template, str(self._count))


@dataclass(frozen=True, slots=True)
class Plan:
    """What a command does when nothing disturbs it."""

    row: Row
    before: State
    after: State
    done: CompileFinished
    again: CompileFinished
    """A second run after it."""


def plan(lab: Lab, row: Row) -> Plan:
    """Run a command undisturbed, twice."""
    with lab.fresh() as root:
        done = run_cli(root, row.argv)
        after = look(root)
        again = run_cli(root, row.argv, clock=later(1))
    return Plan(row, lab.before, after, done, again)


def kills(lab: Lab, plan: Plan, numbers: Iterable[int]) -> Iterator[Failure | None]:
    """Kill at one call after the other; then run it again."""
    for number in numbers:
        yield _one(lab, plan, f"killed at call {number}", _at(number, Verdict.KILL))


def interrupts(lab: Lab, plan: Plan, numbers: Iterable[int]) -> Iterator[Failure | None]:
    """Interrupt at one call after the other; then run it again."""
    for number in numbers:
        yield _one(lab, plan, f"interrupted at call {number}", _at(number, Verdict.INTERRUPT))


def errors(lab: Lab, plan: Plan, code: int, numbers: Iterable[int]) -> Iterator[Failure | None]:
    """Let one call after the other fail."""
    for number in numbers:
        fault = f"{errno.errorcode[code]} at call {number}"
        yield _one(lab, plan, fault, _at(number, code))


def unreadable(lab: Lab, plan: Plan, numbers: Iterable[int]) -> Iterator[Failure | None]:
    """Let one call after the other fail that reads a file of the world."""
    for number in numbers:
        with lab.fresh() as root:
            done = run_cli(root, plan.row.argv, _at(number, errno.EIO, reads=True))
            now = look(root)
            if done.code:  # so a new bundle may lack what could not be read
                now = replace(now, files=now.files | _bundles(plan.after))
            broken = after_fault(plan, done, now, may_go=plan.row.frees_less)
            broken += afterwards(root, plan)
            yield judge(plan, f"EIO at read {number}", broken)


def _bundles(state: State) -> dict[str, str]:
    return {name: said for name, said in state.files.items() if name.endswith(".jxb")}


#: What ends a program from without: a terminal, a scheduler, the kernel.
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)


def signals(lab: Lab, plan: Plan, count: int) -> Iterator[Failure | None]:
    """Send signals at instants that are spread over the time that an undisturbed run takes."""
    for number in range(count):
        seconds = plan.done.seconds * (number + 0.5) / count
        chosen = SIGNALS[number % len(SIGNALS)]
        yield _one(lab, plan, f"{chosen.name} after {seconds:.3f} s", signal_at=(seconds, chosen))


def full_disks(lab: Lab, plan: Plan, numbers: Iterable[int]) -> Iterator[Failure | None]:
    """Let every call from one on fail that takes room."""
    for number in numbers:

        def decide(call: Call, number: int = number) -> Verdict | int:
            full = call.name in _TAKES_ROOM and call.number >= number
            return errno.ENOSPC if full else Verdict.GO_ON

        yield _one(lab, plan, f"disk full from call {number}", decide)


def _jumping(direction: int) -> Clock:
    steps = itertools.count()
    base = later(0)
    return lambda: base() + direction * next(steps) * 30 * DAY_NS


#: Other times, and times that jump while a command runs.
CLOCKS: dict[str, Clock] = {
    "in 1970": lambda: 0,
    "before 1970": lambda: -DAY_NS,
    "in 2262": lambda: 2**63 - 1,
    "in 9999": lambda: 253_402_300_799 * 10**9,
    "in 12000": lambda: 320_000_000_000 * 10**9,
    "ten years ago": later(-87_600),
    "an hour ago": later(-1),
    "in ten years": later(87_600),
    "with jumps forth": _jumping(1),
    "with jumps back": _jumping(-1),
}


def clocks(lab: Lab, plan: Plan, names: Iterable[str]) -> Iterator[Failure | None]:
    """Run it while the clock shows something else."""
    for name in names:
        with lab.fresh() as root:
            done = run_cli(root, plan.row.argv, clock=CLOCKS[name])
            now = look(root)
            is_far_off = name != "an hour ago"
            if is_far_off:
                now = _dated_as_planned(plan, now)
            # What is old and what is young depends on the time: only wholeness does not.
            broken = [*_whole(plan, now), *_ended(done)]
            broken += _as_before_or(plan, now, may_go=True)
            if not plan.row.timely and done.code == plan.done.code:
                broken += _same("in that time", plan.after, now)
                broken += _same_records(plan, now, may_be_as_before=is_far_off)
            broken += _ended(run_cli(root, plan.row.argv, clock=later(2)))
            yield judge(plan, name, broken)


def _dated_as_planned(plan: Plan, now: State) -> State:
    """Take the planned dates for those that entries get: what they are depends on the time."""
    dates = {
        name: plan.after.files[name]
        for name, text in now.files.items()
        if name.endswith("-atime") and ", 8 bytes, " in text and name in plan.after.files
    }
    return replace(now, files=now.files | dates)


def _one(
    lab: Lab,
    plan: Plan,
    fault: str,
    decide: Decide = go_on,
    *,
    signal_at: tuple[float, int] | None = None,
) -> Failure | None:
    with lab.fresh() as root:
        done = run_cli(root, plan.row.argv, decide, signal_at=signal_at)
        broken = after_fault(plan, done, look(root))
        broken += afterwards(root, plan)
        return judge(plan, fault, broken)


def after_fault(
    plan: Plan, done: CompileFinished, now: State, *, may_go: bool = False
) -> list[str]:
    """What must hold at once: nothing lost, nothing torn, and no success that is none.

    Args:
        may_go: other files may be gone than planned.
    """
    broken = [*_whole(plan, now), *_as_before_or(plan, now, may_go=may_go)]
    if done.code >= 0:
        broken += _ended(done)
        if done.code == plan.done.code == 0 and not (plan.row.may_miss or may_go):
            broken += _same("it exits 0 and", plan.after, now)
        broken += _counted(plan, done)
    return broken


def _counted(plan: Plan, done: CompileFinished) -> Iterator[str]:
    """A move accounts for every file, also where it ends early."""
    expected = _offered(plan.done.stdout)
    counted = _offered(done.stdout)
    if expected and counted and expected[-1] not in counted:
        yield f"it accounts for {counted[-1]} files of {expected[-1]}: {done.stdout[:2000]}"


#: What each document of a move says of the files that the source offers: numbers, and lists.
_OFFERED = (
    ("found", "left_out"),
    ("carried", "present", "no_room", "gone", "unfinished", "untrusted", "left_out", "failed"),
    ("entries", "side_files", "left_out"),
    ("written", "left_out", "failed", "pruned"),
    ("entries", "left_out"),
)


def _offered(document_text: str) -> range | None:
    """Return how many files the document of a move accounts for; None of any other text.

    Entries that ``ci restore`` could not read are not among those that it calls found, and those
    that it could not write are; it lists both as failed.
    """
    try:
        document = json.loads(document_text)
    except ValueError:
        return None
    if document.get("trouble"):  # the source could not be listed
        return None
    fields = next((f for f in _OFFERED if document.keys() >= set(f)), ())
    if "new_seconds" in document:  # of what it writes, `ci save` counts the entries alone
        for field in ("failed", "left_out"):
            document[field] = [t for t in document[field] if "/" not in t.partition(": ")[0]]
    total = sum(_count(document[field]) for field in fields)
    failed = _count(document["failed"]) if "found" in fields else 0
    return range(total, total + failed + 1)


def _count(value: Any) -> int:
    """Return a number, or that of the files in a list; a date belongs to its entry."""
    if not isinstance(value, list):
        return int(value)
    names = [one if isinstance(one, str) else one.get("file", "") for one in value]
    return sum(not name.partition(": ")[0].endswith("-atime") for name in names)


def afterwards(root: Path, plan: Plan) -> list[str]:
    """What must hold later: a second run does the rest, and nothing is left for ever."""
    again = run_cli(root, plan.row.argv, clock=later(2))
    broken = []
    codes = (plan.done.code, plan.again.code)
    if plan.row.chooses:
        codes = (*codes, 0)  # it may choose none of the damaged entries
    if again.code not in codes:
        broken.append(f"run again it exits with {again.code}: {again.stderr[-300:]}")
    final = look(root)
    if plan.row.chooses:
        broken += _among([plan.before, plan.after], final, may_go=True)
    else:
        broken += _same("run again,", plan.after, final)
    broken += _left_over(root, plan.before, final)
    return broken


def pairs(lab: Lab, first: Plan, second: Plan, numbers: Sequence[int]) -> Iterator[Failure | None]:
    """Stop one command at a call, run the other, and let the first go on."""
    orders = [_in_order(lab, *both) for both in ((first, second), (second, first))]
    for number in numbers:
        with lab.fresh() as root:
            stopped = start_cli(root, first.row.argv, _at(number, Verdict.WAIT))
            done = stopped.run()
            other = run_cli(root, second.row.argv)
            if done is None:
                stopped.process.release()
                done = stopped.run()
                assert done is not None
            now = look(root)
            broken = [*_whole(first, now), *_ended(done), *_ended(other)]
            known = [lab.before, first.after, second.after, *orders]
            may_go = first.row.chooses or second.row.chooses
            between = _among(known, now, may_go=may_go, beside=True)
            broken += (b for b in between if ".jxb" not in b)  # a bundle may be of any moment
            left = now.leftovers - lab.before.leftovers
            broken += [f"left {name}" for name in left if not name.endswith("-atime")]
            for row in (first.row, second.row):
                broken += _ended(run_cli(root, row.argv, clock=later(2)))
            broken += _whole(first, look(root))
            yield judge(first, f"stopped at call {number} for {second.row.name}", broken)


def _in_order(lab: Lab, first: Plan, second: Plan) -> State:
    with lab.fresh() as root:
        run_cli(root, first.row.argv)
        run_cli(root, second.row.argv)
        return look(root)


def _at(number: int, verdict: Verdict | int, *, reads: bool = False) -> Decide:
    return lambda call: verdict if (call.number, call.reads) == (number, reads) else Verdict.GO_ON


def judge(plan: Plan, fault: str, broken: Sequence[str]) -> Failure | None:
    """The outcome of a trial; None where nothing was broken."""
    return Failure(plan.row.name, fault, tuple(broken)) if broken else None


def _ended(done: CompileFinished) -> Iterator[str]:
    mistake = "internal-error" in done.stderr or "Traceback" in done.stderr
    if done.code not in _CODES or mistake:
        yield f"ended with {done.code}: {done.stderr[-400:]}"


def _whole(plan: Plan, now: State) -> Iterator[str]:
    for name in now.torn:
        yield f"torn: {name}"


def _as_before_or(plan: Plan, now: State, *, may_go: bool = False) -> Iterator[str]:
    """Each file is as it was or as planned; nothing is lost that the plan keeps; dates stay."""
    yield from _among([plan.before, plan.after], now, may_go=may_go or bool(now.torn))
    if not may_go:
        for lost in (plan.before.payloads & plan.after.payloads) - now.payloads:
            yield f"payload {lost} is lost"
    for key in now.undated - plan.before.undated - plan.after.undated:
        yield f"{key} has no date"


def _among(
    known: Sequence[State], now: State, *, may_go: bool = False, beside: bool = False
) -> Iterator[str]:
    """Each file and each fact is as one of the known states has it.

    Args:
        may_go: or it is gone, or came from another cache of the world, as that has it in any of
            them: a push beside an import carries what the import has brought. Entries arrive with
            a checksum.
        beside: two commands ran. Both may have brought the same uses, neither knowing of the other,
            and a file that one replaced after the other's listing may have the time listed.
    """
    for name in {n for state in (*known, now) for n in state.files}:
        allowed = {state.files.get(name) for state in known}
        if may_go:
            end = f"/{os.path.basename(name)}"
            allowed |= {
                None,
                *(s for state in known for n, s in state.files.items() if n.endswith(end)),
                *(s for state in known for n, s in state.sealed.items() if n.endswith(end)),
            }
        if beside:
            dated = [state.partition(", of ") for state in allowed if state]
            allowed |= {content + of + time for content, of, _ in dated for *_, time in dated}
        if now.files.get(name) not in allowed:
            yield f"{name} is {now.files.get(name)}, not one of {allowed}"
    most = 2 if beside else 1
    for key in {k for state in (*known, now) for k in state.records}:
        said = [state.records[key] for state in known if key in state.records]
        if may_go:
            end = key.partition("/")[2]
            said += [r for state in known for k, r in state.records.items() if k.endswith(end)]
        seen = now.records.get(key)
        bound = most * max(map(int, said), default=0) if key.endswith(": hits") else -1
        counted = seen is not None and bound >= 0 and 0 <= int(seen) <= bound
        if seen not in (None, *said) and not counted:
            yield f"the ledger says of {key} {seen}, not one of {said}"


def _same(when: str, expected: State, now: State) -> Iterator[str]:
    for name in expected.files.keys() | now.files.keys():
        if expected.files.get(name) != now.files.get(name):
            yield f"{when} {name} is {now.files.get(name)}, not {expected.files.get(name)}"


def _same_records(plan: Plan, now: State, *, may_be_as_before: bool) -> Iterator[str]:
    """Yield the facts of the ledger that the command has not recorded.

    Args:
        may_be_as_before: the clock is far off, and dates more than a day ahead count for nothing:
            neither what was imported while it was behind, nor what was recorded while it was ahead.
    """
    for key in plan.before.records.keys() | plan.after.records.keys() | now.records.keys():
        allowed = {plan.after.records.get(key)}
        if may_be_as_before:
            before = plan.before.records.get(key)
            allowed.add(before)
            # An entry has no hits where only its arrival or its checksum is recorded.
            allowed.add("0" if before is None and key.endswith(": hits") else before)
        if now.records.get(key) not in allowed:
            yield f"the ledger says of {key}: {now.records.get(key)}"


def _left_over(root: Path, before: State, now: State) -> Iterator[str]:
    """Nothing stays that the documented means do not remove."""
    if not now.leftovers - before.leftovers:
        return
    for cache in ("cache", "other", "new"):
        if os.path.isdir(root / cache):
            run_cli(root, ["verify", "-C", cache, "--fix"], clock=later(3))
    for name in look(root).leftovers - before.leftovers:
        yield f"left for ever: {name}"
