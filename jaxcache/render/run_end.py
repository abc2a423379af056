"""How a run ended, and which of its assertions failed, in sentences."""

import math
import os
import signal
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from jaxcache.options.run import EXCEPTED, Assertions
from jaxcache.units import format_command, format_count, format_duration
from jaxcache.warm.report.report import FAULTS

if TYPE_CHECKING:
    from jaxcache.warm.report.report import Module, Report
    from jaxcache.warm.torch.report import Lookup, TorchReport

#: Reasons of compiles that ``--check`` compared with their entries.
COMPARED = ("verified", "same-hlo", "not-deterministic")
#: Signals that machine code which is damaged can end in.
_CRASHES = (signal.SIGSEGV, signal.SIGILL, signal.SIGBUS, signal.SIGABRT, signal.SIGFPE)


def end_notes(report: "Report | TorchReport") -> Iterator[str]:
    """Yield the notes of a run, and how it ended."""
    for note in report.notes:
        yield f"note: {note}"
    if report.timed_out:
        yield "note: stopped because the time was up"
    crashed = -report.script_exit_code in _CRASHES
    if report.interrupted and crashed:
        yield f"note: {_interrupted_crash(report)}"
        return
    if report.interrupted:
        ending = "" if report.script_exit_code else "; the program went on, and exited with 0"
        yield f"note: interrupted{ending}"
    if report.script_exit_code < 0:
        yield f"note: the program was ended by signal {-report.script_exit_code}"
        if crashed and any(m.outcome == "hit" for m in report.modules):
            yield (
                "note: if it runs with JAX_ENABLE_COMPILATION_CACHE=0, an entry that it loaded may "
                "be damaged: remove those of its modules with jaxcache rm"
            )
    elif report.script_exit_code:
        yield f"note: the program ended with exit code {report.script_exit_code}"


def _interrupted_crash(report: "Report | TorchReport") -> str:
    """Say that a program crashed after an interrupt, and whether it was compiling then."""
    crash = f"interrupted; the program then crashed with signal {-report.script_exit_code}"
    if any(m.reason == "interrupted" for m in report.modules):
        crash += ": the interrupt came while JAX compiled or loaded, where it may crash without "
        crash += "jaxcache, too"
    return crash


def failed_assertions(
    report: "Report | TorchReport", wanted: Assertions, *, check: bool, fills: bool = False
) -> Iterator[str]:
    """Say which assertions failed, one sentence each.

    Args:
        check: whether the executables were to be compared with their entries.
        fills: whether the purpose was to fill a cache.
    """
    if fills and report.modules and all(m.reason == "no-directory" for m in report.modules):
        yield "nothing was cached, because JAX has no cache directory"
    is_any_cached = any(m.outcome in ("hit", "written") for m in report.modules)
    if not is_any_cached and any(m.reason == "cache-not-opened" for m in report.modules):
        yield f"nothing was cached, because JAX could not open {report.cache_dir}"
    elif fills and (errors := [m for m in report.modules if m.reason in FAULTS]):
        lost = format_count(sum(m.occurrences for m in errors), "compile")
        if denied := getattr(report, "denied", ()):
            place = report.cache_dir or ""
            verb = "write to" if denied == {"write-error"} and os.access(place, os.R_OK) else "use"
            yield f"{lost} not cached, because this user may not {verb} {place}"
        elif all(m.reason == "read-error" for m in errors):
            verify = format_command("verify --fix", report.cache_dir or "")
            yield f"JAX could not read the entry of {lost}; where one is damaged: {verify}"
        else:
            yield f"{lost} not cached, because JAX could not write {report.cache_dir}"
    waiting = sum(getattr(report, "waiting", {}).values())
    if fills and waiting:
        yield f"{format_count(waiting, 'entry')} did not reach {report.cache_dir}"
    limit = wanted.fail_on_miss
    if report.unobserved and (wanted.strict or check or limit is not None):
        yield f"not every compile could be observed: {report.unobserved[0]}"
    if guard := getattr(report, "guard", None):
        refused = sum(m.occurrences for m in report.modules if m.outcome == "refused")
        if not getattr(report, "is_guarded", False):
            yield f"--guard {guard} had no effect: it {_why_unarmed(guard, report.wall_seconds)}"
        elif refused:
            yield f"the guard refused {format_count(refused, 'compile')}"
    for tier in getattr(report, "unused_tiers", ()):
        yield f"a process could not use {tier}"
    if report.recorded == 0:
        yield "nothing was recorded"
    allowed = {reason for name in wanted.excepted for reason in EXCEPTED[name]}
    misses = [
        m
        for m in report.modules
        if m.outcome != "hit" and m.reason not in COMPARED and m.reason not in allowed
    ]
    missed = sum(m.occurrences for m in misses)
    seconds = math.fsum((m.compile_seconds or 0.0) * m.occurrences for m in misses)
    if isinstance(limit, int) and missed > limit:
        quick = sum(m.occurrences for m in misses if m.reason == "compile-time")
        yield f"{format_count(missed, report.unit)} missed" + (
            f"; {quick} are under JAX's threshold for writing (--except skipped allows them)"
            if quick
            else _written_now(report, misses)
        )
    if isinstance(limit, float) and seconds > limit:
        yield f"compiles of {format_duration(seconds)} missed" + _written_now(report, misses)
    if wanted.strict and (count := report.uncacheable):
        yield f"{format_count(count, report.unit)} cannot be cached"
    reasons = [m.reason for m in report.modules for _ in range(m.occurrences)]
    if check and (count := reasons.count("not-deterministic")):
        yield f"{format_count(count, 'executable')} not the same as in the cache"
    if check and not {*COMPARED} & {*reasons}:
        yield (
            "nothing was verified: no compile had an entry to be compared with, "
            "or JAX is older than 0.9.1"
            if reasons
            else "nothing was verified: no compile was observed"
        )


def _why_unarmed(guard: str, wall_seconds: float) -> str:
    """Say what a guard waited for in vain."""
    on, _, words = guard.partition(":")
    action, _, seconds = words.partition(":")
    if seconds:
        return (
            f"waits {seconds} s after the import of jax, and the program ended "
            f"{format_duration(wall_seconds)} after its start"
        )
    return (
        f"waits for the program to call jaxcache.warmed_up(), which needs jaxcache "
        f"in the Python that has jax; --guard {on}:{action or 'raise'}:SECONDS needs no call"
    )


def _written_now(report: "Report | TorchReport", misses: "Sequence[Module | Lookup]") -> str:
    """Say that a retry would pass, because the run that fails has filled the cache."""
    passing = getattr(report, "passing", ())
    written = sum(m.occurrences for m in misses if m.outcome == "written" and m.key not in passing)
    if not written:
        return ""
    is_all = written == sum(m.occurrences for m in misses)
    cached = "They are cached now, so" if is_all else f"{written} of them are cached now, which"
    return f". {cached} the next run hits; with --no-write it would fail again."
