"""Run trials and count: ``python -m tools.faults [--sample N] [--only ROW] [KIND…]``."""

import argparse
import errno
import functools
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from tools.faults import places, process, trials, world
from tools.faults.commands import ROWS, Row
from tools.faults.intercept import why_not
from tools.faults.promises import Failure, Plan

KINDS = (
    *("kill", "interrupt", "signal", "eio", "eacces", "full", "read", "disk"),
    *("clock", "lock", "pair"),
)


def main() -> int:
    """Run what the command line asks for; 1 if a promise was broken, 77 if nothing can be run."""
    asked = _parse()
    if reason := why_not():
        print(f"skipped: {reason}")
        return 77
    started = time.monotonic()
    if asked.part is None and asked.jobs > 1:
        tried, failed = _run_parts(asked.jobs)
    else:
        tried, failed = _run(asked)
    seconds = f", {time.monotonic() - started:.0f} s" if asked.part is None else ""
    print(f"{tried} tried, {failed} failed{seconds}")
    return 1 if failed else 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="faults", description=__doc__)
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=", ".join(KINDS))
    parser.add_argument("--only", action="append", help="rows whose names hold this")
    parser.add_argument(
        "--sample",
        type=int,
        help="so many trials of a kind with a command; without KIND, each "
        "command gets kills and two of the other kinds",
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes")
    parser.add_argument("--part", type=int, help=argparse.SUPPRESS)
    return parser.parse_args()


def _run_parts(jobs: int) -> tuple[int, int]:
    """Share the rows out among processes; pass on what they print and sum up."""
    command = [sys.executable, "-m", "tools.faults", *sys.argv[1:], "--jobs", str(jobs)]
    totals: list[tuple[int, int]] = []

    def follow(part: int) -> None:
        with subprocess.Popen(
            [*command, "--part", str(part)], stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout
            last = ""
            for last in process.stdout:
                if not last[:1].isdigit():
                    print(last, end="", flush=True)
        numbers = [int(word) for word in last.split() if word.isdigit()]
        totals.append((numbers[0], numbers[1]) if len(numbers) == 2 else (0, 1))

    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(follow, range(jobs)))
    return sum(t for t, _ in totals), sum(f for _, f in totals)


def _run(asked: argparse.Namespace) -> tuple[int, int]:
    if (not asked.kinds or "disk" in asked.kinds) and (reason := places.why_no_mounts()):
        print(f"skipped disk: {reason}")
        asked.kinds = [k for k in asked.kinds or KINDS if k != "disk"]
    process.preload()
    directory = Path(tempfile.mkdtemp(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None))
    tried = failed = 0
    try:
        world.build(directory / "jax")
        world.build_torch(directory / "torch")
        labs = {False: trials.Lab(directory / "jax"), True: trials.Lab(directory / "torch")}
        for outcome in _outcomes(labs, asked):
            tried += 1
            if outcome:
                failed += 1
                lines = f"FAILED {outcome.row}: {outcome.fault}", *outcome.broken[:6]
                print(*lines, sep="\n    ", flush=True)
    finally:
        shutil.rmtree(directory)
    return tried, failed


def _outcomes(labs: dict[bool, trials.Lab], asked: argparse.Namespace) -> Iterator[Failure | None]:
    """Try each command in its world, whether that is one of torch or of JAX."""
    plan_of = functools.cache(lambda row: trials.plan(labs[row.torch], row))
    rows = [r for r in ROWS if not asked.only or any(o in r.name for o in asked.only)]
    for number, row in enumerate(rows):
        if asked.part is not None and number % asked.jobs != asked.part:
            continue
        for kind in asked.kinds or _kinds(asked.sample, number):
            outcomes = list(_try(labs[row.torch], row, kind, plan_of, asked.sample, number))
            broken = sum(o is not None for o in outcomes)
            print(f"{row.name}, {kind}: {len(outcomes)} tried, {broken} failed", flush=True)
            yield from outcomes


def _kinds(sample: int | None, number: int) -> Sequence[str]:
    others = KINDS[1:]
    if sample is None:
        return KINDS
    return "kill", others[2 * number % len(others)], others[(2 * number + 1) % len(others)]


def _try(
    lab: trials.Lab,
    row: Row,
    kind: str,
    plan_of: Callable[[Row], Plan],
    sample: int | None,
    number: int,
) -> Iterator[Failure | None]:
    """Every trial of one kind with one command, or ``sample`` of them, others for each command."""
    plan = plan_of(row)
    calls = range(1, len(plan.done.calls) + 1)
    if kind == "pair":
        for second in _pick([r for r in ROWS if r.torch == row.torch], sample, number):
            at = _pick(calls, sample or _STOPS, number)
            yield from trials.pairs(lab, plan, plan_of(second), at)
    elif kind == "disk":
        yield from places.full_disks(lab, plan, _pick(places.ROOMS, sample, number))
    elif kind == "lock":
        if not row.torch:  # whose caches have no such lock
            yield from places.stopped_holder(lab, plan)
    elif kind == "clock":
        yield from trials.clocks(lab, plan, _pick(list(trials.CLOCKS), sample, number))
    elif kind == "signal":
        yield from trials.signals(lab, plan, sample or _INSTANTS)
    elif kind == "read":
        reads = range(1, plan.done.reads + 1)
        yield from trials.unreadable(lab, plan, _pick(reads, sample, number))
    elif kind in ("kill", "interrupt"):
        tries = trials.kills if kind == "kill" else trials.interrupts
        yield from tries(lab, plan, _pick(calls, sample, number))
    else:  # each call meets one of the three
        calls = calls[_ERRORS.index(kind) :: len(_ERRORS)]
        at = _pick(calls, sample, number)
        if kind == "full":
            yield from trials.full_disks(lab, plan, at)
        else:
            yield from trials.errors(lab, plan, _ERRNO[kind], at)


_ERRORS = ("eio", "eacces", "full")
_ERRNO = {"eio": errno.EIO, "eacces": errno.EACCES}
#: At how many instants a command gets a signal.
_INSTANTS = 30
#: At how many calls of the first command of a pair the second comes in between.
_STOPS = 2
_T = TypeVar("_T")


def _pick(things: Sequence[_T], wanted: int | None, number: int) -> list[_T]:
    """So many of the things, evenly; which of them depends on the number."""
    if wanted is None or wanted >= len(things):
        return list(things)
    step = len(things) / wanted
    return [things[int((i + number * 0.618 % 1) * step)] for i in range(wanted)]


if __name__ == "__main__":
    sys.exit(main())
