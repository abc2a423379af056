"""Run trials and count: ``python -m faults [--sample N] [--only ROW] [KIND…]``."""

import argparse
import errno
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from faults import places, process, trials, world
from faults.commands import ROWS
from faults.intercept import why_not

KINDS = ("kill", "eio", "eacces", "full", "disk", "clock", "lock", "pair")


def main() -> int:
    """Run what the command line asks for; 1 if a promise was broken, 77 if nothing can be run."""
    asked = _parse()
    if reason := why_not():
        print(f"skipped: {reason}")
        return 77
    if "disk" in asked.kinds and (reason := places.why_no_mounts()):
        print(f"skipped disk: {reason}")
        asked.kinds.remove("disk")
    process.preload()
    folder = Path(tempfile.mkdtemp(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None))
    started, tried, failed = time.monotonic(), 0, 0
    try:
        world.build(folder / "jax")
        world.build_torch(folder / "torch")
        labs = {False: trials.Lab(folder / "jax"), True: trials.Lab(folder / "torch")}
        for outcome in _run(labs, asked):
            tried += 1
            if outcome:
                failed += 1
                print(f"FAILED {outcome.row}: {outcome.fault}", *outcome.broken[:6], sep="\n    ")
    finally:
        shutil.rmtree(folder)
    print(f"{tried} tried, {failed} failed, {time.monotonic() - started:.0f} s")
    return 1 if failed else 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=", ".join(KINDS))
    parser.add_argument("--only", action="append", help="rows whose names hold this")
    parser.add_argument("--sample", type=int, help="so many trials of each kind with each command")
    asked = parser.parse_args()
    asked.kinds = asked.kinds or list(KINDS)
    return asked


def _run(
    labs: dict[bool, trials.Lab], asked: argparse.Namespace
) -> Iterator[trials.Failure | None]:
    """Try each command in its world, whether that is one of torch or of JAX."""
    plans = [trials.plan(labs[row.torch], row) for row in ROWS]
    chosen = [p for p in plans if not asked.only or any(o in p.row.name for o in asked.only)]
    for number, plan in enumerate(chosen):
        for kind in asked.kinds:
            fellows = [p for p in plans if p.row.torch == plan.row.torch]
            lab = labs[plan.row.torch]
            outcomes = list(_try(lab, plan, kind, fellows, asked.sample, number))
            broken = sum(o is not None for o in outcomes)
            print(f"{plan.row.name}, {kind}: {len(outcomes)} tried, {broken} failed", flush=True)
            yield from outcomes


def _try(
    lab: trials.Lab,
    plan: trials.Plan,
    kind: str,
    plans: list[trials.Plan],
    sample: int | None,
    number: int,
) -> Iterator[trials.Failure | None]:
    """Every trial of one kind with one command, or ``sample`` of them, others for each command."""
    calls = range(1, len(plan.done.calls) + 1)
    if kind == "pair":
        for second in _pick(plans, sample, number):
            yield from trials.pairs(
                lab, plan, second, _pick(calls, min(sample or _STOPS, _STOPS), number)
            )
    elif kind == "disk":
        yield from places.full_disks(lab, plan, _pick(places.ROOMS, sample, number))
    elif kind == "lock":
        yield from places.stopped_holder(lab, plan)
    elif kind == "clock":
        yield from trials.clocks(lab, plan, _pick(list(trials.CLOCKS), sample, number))
    elif kind == "kill":
        yield from trials.kills(lab, plan, _pick(calls, sample, number))
    elif kind == "full":
        yield from trials.full_disks(lab, plan, _pick(calls, sample, number))
    else:
        code = {"eio": errno.EIO, "eacces": errno.EACCES}[kind]
        yield from trials.errors(lab, plan, code, _pick(calls, sample, number))


#: At how many calls of the first command of a pair the second comes in between.
_STOPS = 4
_T = TypeVar("_T")


def _pick(things: Sequence[_T], wanted: int | None, number: int) -> list[_T]:
    """So many of the things, evenly; which of them depends on the number."""
    if wanted is None or wanted >= len(things):
        return list(things)
    step = len(things) / wanted
    return [things[int((i + number * 0.618 % 1) * step)] for i in range(wanted)]


if __name__ == "__main__":
    sys.exit(main())
