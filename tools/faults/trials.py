"""Faults of a command: kills, failing calls, full disks, wrong clocks, other commands."""

import contextlib
import errno
import functools
import hashlib
import itertools
import signal
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tools.faults.commands import Row
from tools.faults.intercept import Call, Decide, Verdict, go_on
from tools.faults.process import DAY_NS, Clock, later, run_cli, start_cli
from tools.faults.promises import (
    Failure,
    Plan,
    after_fault,
    afterwards,
    among,
    as_before_or,
    ended,
    judge,
    same,
    same_records,
    whole,
)
from tools.faults.world import State, copy_of, look

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
            planned = _dated_by_files(plan, now)
            if done.code:  # so a new bundle may lack what could not be read
                now = replace(now, files=now.files | _bundles(plan.after))
            broken = after_fault(planned, done, now, may_go=plan.row.frees_less)
            broken += afterwards(root, planned)
            yield judge(plan, f"EIO at read {number}", broken)


def _dated_by_files(plan: Plan, now: State) -> Plan:
    """Return a plan in which new entries may have the date of their file as that of their use.

    The last use of an entry is in the ledger. Where the ledger cannot be read, no use is known, and
    what is left is the time of the file: such an entry is taken for older than it is, and no date
    that was there before changes.
    """
    dates: dict[str, str] = {}
    for name in plan.after.files.keys() - plan.before.files.keys():
        entry = now.files.get(name.removesuffix("-atime") + "-cache", "")
        *_, time_ns = entry.rpartition(", of ")
        if name.endswith("-atime") and time_ns:
            digest = hashlib.sha256(int(time_ns).to_bytes(8, "little")).hexdigest()
            if now.files.get(name, "").startswith(f"{digest[:16]}, 8 bytes, "):
                dates[name] = now.files[name]
    return replace(plan, after=replace(plan.after, files=plan.after.files | dates))


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
            broken = [*whole(plan, now), *ended(done)]
            broken += as_before_or(plan, now, may_go=True)
            if not plan.row.timely and done.code == plan.done.code:
                broken += same("in that time", plan.after, now)
                broken += same_records(plan, now, may_be_as_before=is_far_off)
            broken += ended(run_cli(root, plan.row.argv, clock=later(2)))
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
            broken = [*whole(first, now), *ended(done), *ended(other)]
            known = [lab.before, first.after, second.after, *orders]
            may_go = first.row.chooses or second.row.chooses
            between = among(known, now, may_go=may_go, beside=True)
            broken += (b for b in between if ".jxb" not in b)  # a bundle may be of any moment
            left = now.leftovers - lab.before.leftovers
            broken += [f"left {name}" for name in left if not name.endswith("-atime")]
            for row in (first.row, second.row):
                broken += ended(run_cli(root, row.argv, clock=later(2)))
            broken += whole(first, look(root))
            yield judge(first, f"stopped at call {number} for {second.row.name}", broken)


def _in_order(lab: Lab, first: Plan, second: Plan) -> State:
    with lab.fresh() as root:
        run_cli(root, first.row.argv)
        run_cli(root, second.row.argv)
        return look(root)


def _at(number: int, verdict: Verdict | int, *, reads: bool = False) -> Decide:
    return lambda call: verdict if (call.number, call.reads) == (number, reads) else Verdict.GO_ON
