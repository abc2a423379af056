"""What must hold after a fault: nothing lost, nothing torn, and the rest done by a second run."""

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.faults.commands import Row
from tools.faults.process import CompileFinished, later, run_cli
from tools.faults.world import State, look

#: Exit codes of the command line's contract, without those of signals and of mistakes.
_CODES = frozenset({0, 1, 2, 3, 10, 11, 12, 13, 130})


@dataclass(frozen=True, slots=True)
class Failure:
    """A promise that was not kept."""

    row: str
    fault: str
    broken: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """What a command does when nothing disturbs it."""

    row: Row
    before: State
    after: State
    done: CompileFinished
    again: CompileFinished
    """A second run after it."""


def after_fault(
    plan: Plan, done: CompileFinished, now: State, *, may_go: bool = False
) -> list[str]:
    """What must hold at once: nothing lost, nothing torn, and no success that is none.

    Args:
        may_go: other files may be gone than planned.
    """
    broken = [*whole(plan, now), *as_before_or(plan, now, may_go=may_go)]
    if done.code >= 0:
        broken += ended(done)
        if done.code == plan.done.code == 0 and not (plan.row.may_miss or may_go):
            broken += same("it exits 0 and", plan.after, now)
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
        broken += among([plan.before, plan.after], final, may_go=True)
    else:
        broken += same("run again,", plan.after, final)
    broken += _left_over(root, plan.before, final)
    return broken


def judge(plan: Plan, fault: str, broken: Sequence[str]) -> Failure | None:
    """The outcome of a trial; None where nothing was broken."""
    return Failure(plan.row.name, fault, tuple(broken)) if broken else None


def ended(done: CompileFinished) -> Iterator[str]:
    """It ends with a code of the contract, and with no mistake of ours."""
    mistakes = [done.stderr.find(sign) for sign in ("internal-error", "Traceback")]
    if done.code not in _CODES or max(mistakes) >= 0:
        start = max(0, max(mistakes) - 400)
        yield f"ended with {done.code}: {done.stderr[start : start + 1_200]}"


def whole(plan: Plan, now: State) -> Iterator[str]:
    """No entry is torn."""
    for name in now.torn:
        yield f"torn: {name}"


def as_before_or(plan: Plan, now: State, *, may_go: bool = False) -> Iterator[str]:
    """Each file is as it was or as planned; nothing is lost that the plan keeps; dates stay."""
    yield from among([plan.before, plan.after], now, may_go=may_go or bool(now.torn))
    if not may_go:
        for lost in (plan.before.payloads & plan.after.payloads) - now.payloads:
            yield f"payload {lost} is lost"
    for key in now.undated - plan.before.undated - plan.after.undated:
        yield f"{key} has no date"


def among(
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


def same(when: str, expected: State, now: State) -> Iterator[str]:
    """Each file is as expected."""
    for name in expected.files.keys() | now.files.keys():
        if expected.files.get(name) != now.files.get(name):
            yield f"{when} {name} is {now.files.get(name)}, not {expected.files.get(name)}"


def same_records(plan: Plan, now: State, *, may_be_as_before: bool) -> Iterator[str]:
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
