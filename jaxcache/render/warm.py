"""A run's report as a view, and how the run ended."""

import math
import os
import re
import shlex
import signal
from collections import Counter
from collections.abc import Iterator, Sequence
from operator import itemgetter
from typing import Any

from jaxcache.cache.explain.sides import RUN_OUTCOMES, file_name
from jaxcache.core.compile_event import PHASES
from jaxcache.options.run import EXCEPTED, Assertions
from jaxcache.render.columns import SHOWN_HASH_DIGITS, size_column, text_column
from jaxcache.render.view import Block, Column, Line, Table, View, fields_of
from jaxcache.units import cell_len, format_command, format_compile, format_count, format_duration
from jaxcache.warm.report.report import FAULTS, UNCOMPARED, Module, Report, RunReport

#: An outcome's colour: green if the cache served; others if time was lost, and why matters.
_STYLES = {
    "hit": "green",
    "skipped": "yellow",
    "uncacheable": "yellow",
    "no-directory": "yellow",
    "refused": "red",
    "error": "red",
}

#: So much of WHY is seen at 80 columns; longer reasons are cut on most screens.
_WHY_CHARACTERS = 34
_PLACE = re.compile(r"\.py:\d+")

#: Reasons of compiles that ``--check`` compared with their entries.
COMPARED = ("verified", "same-hlo", "not-deterministic")
#: Reasons that a table shows in place of the outcome, because they are more specific.
_OWN_NAMES = ("interrupted", "no-directory", *COMPARED)
#: WHY of a compile whose cause nothing has recorded.
_UNKNOWN_CAUSES = {"compiled-ahead": "compiled by --jobs just before"}


def report_view(
    report: Report, *, unfolded: bool = False, more: str = " (--all lists them)"
) -> View:
    """Return the view of ``warm`` and ``run``.

    Args:
        unfolded: list JAX's own operations one by one, too.
        more: how to see those that are in one line.
    """
    document = fields_of(report) | {"cache_dir": report.cache_dir or None}
    keys = dict.fromkeys(m.key for m in report.modules)
    return View(document, keys=keys, records=report.modules, page=_page(report, unfolded, more))


def _page(report: Report, unfolded: bool, more: str) -> Iterator[Block]:
    shown, folded = ([*report.modules], []) if unfolded else _fold(report)
    yield headline(report)
    if shown:
        order = {outcome: rank for rank, outcome in enumerate(reversed(RUN_OUTCOMES))}
        shown.sort(key=lambda m: (order[m.outcome], -(m.compile_seconds or 0.0)))
        yield Table(_columns(report, shown), shown)
    if folded:
        yield _folded_line(folded, more)
    yield from _explain_line(shown, report.cache_dir)
    yield from _faults(report.modules, report.cache_dir)
    written = report.lasting
    if saving := math.fsum((m.compile_seconds or 0.0) * m.occurrences for m in written):
        count = format_count(sum(m.occurrences for m in written), "entry")
        more_than_now = " more" if report.saved_seconds > 0 else ""
        seconds = format_duration(saving)
        yield f"{count} written: the next run saves up to {seconds}{more_than_now}"
    if report.phase_seconds:
        yield phases_line(report)
        yield from _longest_line(report)
    yield from end_notes(report)


def _explain_line(modules: Sequence[Module], cache_dir: str | None) -> Iterator[Block]:
    """Yield the command that explains in full why the most expensive function was compiled."""
    own = (m for m in modules if m.outcome == "written" and not m.is_helper)
    explained = [m for m in own if m.cause and not m.cause.startswith(UNCOMPARED)]
    if any(len(m.cause or "") > _WHY_CHARACTERS for m in explained):
        longest = max(explained, key=lambda m: m.compile_seconds or 0.0)
        key = longest.key or longest.module
        place = f" -C {shlex.quote(cache_dir)}" if cache_dir else ""
        start = shlex.quote(key[: len(longest.module) + 1 + SHOWN_HASH_DIGITS])
        yield Line(f"jaxcache explain{place} {start}", "in full: ", whole=True)


def headline(report: Report) -> str:
    """Return the line that people paste: ``4 of 6 hits · 0.7 s compiling · 1.6 s saved``."""
    if not report.compile_requests:
        return "no compiles"
    compared = {r: sum(m.occurrences for m in report.modules if m.reason == r) for r in COMPARED}
    if any(compared.values()):
        counts = ", ".join(f"{count} {reason}" for reason, count in compared.items() if count)
        compiling = format_duration(report.compile_seconds)
        return f"{counts} of {report.compile_requests} compiles · {compiling} compiling"
    refused = f"{report.refused} refused · " if report.refused else ""
    return (
        f"{report.hits} of {report.compile_requests - report.refused} hits{_from_tiers(report)} · "
        f"{refused}"
        f"{format_duration(report.compile_seconds)} compiling · "
        f"{_saved(report)}"
    )


def _from_tiers(report: Report) -> str:
    """Return how many entries came from the tiers of the live layer, and how many went to them."""
    parts = []
    for name, text in (("hits_tier", "from a tier"), ("uploaded", "sent to a tier")):
        if count := int(sum(p.counters.get(name, 0) for p in report.processes)):
            parts.append(f", {count} {text}")
    return "".join(parts)


def phases_line(report: Report) -> str:
    """Return where the time went: ``5.3 s = 1.1 import · 0.3 trace · 0.4 load · 3.5 running``."""
    wall = report.wall_seconds
    digits = 0 if wall >= 100 else 1 if wall >= 2 else 2 if wall >= 0.2 else 3
    seconds = {**report.phase_seconds, "running": report.phases.other_seconds}
    named = ((name, f"{seconds.get(name, 0.0):.{digits}f}") for name in (*PHASES, "running"))
    parts = (f"{text} {_phase_title(report, name)}" for name, text in named if float(text))
    hidden = f"{report.hidden_seconds:.{digits}f}"
    ahead = f"; {hidden} s of loads ahead of their requests" if float(hidden) else ""
    return f"{wall:.{digits}f} s = {' · '.join(parts)}{ahead}"


def _phase_title(report: Report, phase: str) -> str:
    """Return what a phase is called; more than the compile times of the table, if it wrote."""
    return "compile and write" if phase == "compile" and report.written else phase


def _longest_line(report: Report) -> Iterator[str]:
    """Yield what took most of the long phases: ``longest: 2 compiles of step took 3.1 s``."""
    least_seconds = max(1.0, 0.1 * report.wall_seconds)
    tops = ((phase, report.longest.get(phase, ())[:1]) for phase in PHASES)
    long = [
        f"{format_count(top.count, 'lowering' if phase == 'lower' else phase)} of {top.function}"
        f"{', with writing,' if phase == 'compile' and report.written else ''}"
        f" took {format_duration(top.seconds)}"
        for phase, (top, *_) in filter(itemgetter(1), tops)
        if top.seconds >= least_seconds
    ]
    if long:
        yield f"longest: {' · '.join(long)}"


def _saved(report: Report) -> str:
    """Return what the hits have saved; plain JAX's entries hold whole seconds, mostly 0."""
    seconds = [m.compile_seconds for m in report.modules if m.outcome == "hit"]
    if not seconds or any(seconds) or report.saved_seconds > 0:
        return f"{format_duration(max(0.0, report.saved_seconds))} saved"
    if None in seconds:
        return "saved time unknown"
    return f"saved less than 1 s{' per hit' if report.hits > 1 else ''} (JAX stores whole seconds)"


def _fold(report: Report) -> tuple[list[Module], list[Module]]:
    """Divide the rows into those that are shown and those of JAX's own operations.

    Where the program has functions of its own, their rows suffice.
    """
    has_own = any(not m.is_helper for m in report.modules)
    is_off = all(m.reason == "no-directory" for m in report.modules)

    def is_folded(m: Module) -> bool:
        if not has_own:
            return m.is_helper and m.outcome == "hit"
        is_usual = m.outcome in ("hit", "written", "skipped") or m.reason in FAULTS
        return m.is_helper and (is_usual or is_off)

    shown = [m for m in report.modules if not is_folded(m)]
    return shown, [m for m in report.modules if is_folded(m)]


def _folded_line(modules: Sequence[Module], more: str) -> str:
    counts = Counter[str]()
    for m in modules:
        counts[_outcome(m)] += m.occurrences
    reasons = ", ".join(sorted({m.reason for m in modules if m.outcome == "skipped"}))
    each = ", ".join(
        (format_count(counts[o], o) if o in ("hit", "error") else f"{counts[o]} {o}")
        + (f" ({reasons})" if o == "skipped" else "")
        for o in (*RUN_OUTCOMES, *_OWN_NAMES)
        if counts[o]
    )
    seconds = ""
    compiled = [m for m in modules if m.outcome != "hit" and m.compile_seconds]
    if compiled:
        total = math.fsum((m.compile_seconds or 0.0) * m.occurrences for m in compiled)
        longest = max(compiled, key=lambda m: m.compile_seconds or 0.0)
        longest_seconds = format_duration(longest.compile_seconds or 0.0)
        seconds = f" in {format_duration(total)}, the longest {longest.module} {longest_seconds}"
    return f"and {format_count(counts.total(), 'helper')} of JAX: {each}{seconds}{more}"


def _columns(report: Report, shown: Sequence[Module]) -> list[Column]:
    pids = {p.process: str(p.pid) for p in report.processes}
    several = len({m.process for m in report.modules}) > 1
    first = text_column("PROCESS", lambda m: pids.get(m.process), right=True)
    return [
        *([first] if several else []),
        text_column("MODULE", _name, elastic=True, least=16),
        text_column("SOURCE", _source, elastic=True),
        text_column("OUTCOME", _outcome, styles=_STYLES),
        text_column("COMPILE", _compile, right=True),
        size_column(lambda m: m.size_bytes)._replace(spare=True),
        text_column("WHY", _why, elastic=True, cut="end", least=max(map(_point_end, shown))),
    ]


def _point_end(module: Module) -> int:
    """Return how much of WHY must be seen: up to the line that was edited, if one was."""
    why = _why(module)
    place = _PLACE.search(why)
    return place.end() + 1 if place else min(cell_len(why), _WHY_CHARACTERS)


def _outcome(module: Module) -> str:
    return module.reason if module.reason in _OWN_NAMES else module.outcome


def _compile(module: Module) -> str:
    """Return the compile time; without digits that JAX did not store."""
    seconds = module.compile_seconds
    if seconds is None:
        return ""
    if module.outcome == "hit" and seconds.is_integer() and 1 <= seconds < 60:
        return f"{seconds:.0f} s"
    return format_compile(seconds)


def _name(module: Module) -> str:
    return module.module + (f" ×{module.occurrences}" if module.occurrences > 1 else "")


def _source(module: Module) -> str | None:
    if module.file is None or module.is_helper:
        return None
    name = file_name(module.file)
    return name if module.line is None else f"{name}:{module.line}"


def _why(module: Module) -> str:
    if module.outcome == "hit" and module.retrieval_seconds is None:
        return "already loaded"
    if module.outcome == "hit":
        return f"retrieved in {format_duration(module.retrieval_seconds or 0)}"
    if module.reason == "no-directory":
        why = "no cache directory"
    elif module.reason == "replaced":
        why = module.detail or module.reason
    elif module.outcome == "written" or module.reason == "no-write":
        why = (
            "untuned: compiled without the GPU"
            if module.tuning == "untuned"
            else module.cause or _UNKNOWN_CAUSES.get(module.reason, "unknown")
        )
    elif module.detail and module.reason not in FAULTS:
        why = module.detail if module.reason in COMPARED else f"{module.reason}: {module.detail}"
    else:
        why = module.reason
    return " ".join(why.split())


def _faults(modules: Sequence[Module], cache_dir: str | None) -> Iterator[str]:
    """Yield each failure of the cache once and in full; many compiles share one."""
    faults: dict[str, Counter[str]] = {}
    for m in modules:
        if m.detail and m.reason in FAULTS:
            messages = faults.setdefault(m.reason, Counter())
            messages[" ".join(m.detail.split())] += m.occurrences
    for reason, messages in faults.items():
        ((message, _),) = messages.most_common(1)
        others = (
            f" (and {format_count(len(messages) - 1, 'other message')}: --json)"
            if len(messages) > 1
            else ""
        )
        yield f"{reason} ({format_count(messages.total(), 'compile')}): {message}{others}"
    if faults:
        doctor = format_command("doctor", cache_dir) if cache_dir else "jaxcache doctor"
        yield f"to find the cause and the cure: {doctor}"


#: Signals that machine code which is damaged can end in.
_CRASHES = (signal.SIGSEGV, signal.SIGILL, signal.SIGBUS, signal.SIGABRT, signal.SIGFPE)


def end_notes(report: RunReport) -> Iterator[str]:
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


def _interrupted_crash(report: RunReport) -> str:
    """Say that a program crashed after an interrupt, and whether it was compiling then."""
    crash = f"interrupted; the program then crashed with signal {-report.script_exit_code}"
    if any(m.reason == "interrupted" for m in report.modules):
        crash += ": the interrupt came while JAX compiled or loaded, where it may crash without "
        crash += "jaxcache, too"
    return crash


def failed_assertions(
    report: RunReport, wanted: Assertions, *, check: bool, fills: bool = False
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
        if denied := report.denied:
            place = report.cache_dir or ""
            verb = "write to" if denied == {"write-error"} and os.access(place, os.R_OK) else "use"
            yield f"{lost} not cached, because this user may not {verb} {place}"
        elif all(m.reason == "read-error" for m in errors):
            verify = format_command("verify --fix", report.cache_dir or "")
            yield f"JAX could not read the entry of {lost}; where one is damaged: {verify}"
        else:
            yield f"{lost} not cached, because JAX could not write {report.cache_dir}"
    waiting = sum(report.waiting.values())
    if fills and waiting:
        yield f"{format_count(waiting, 'entry')} did not reach {report.cache_dir}"
    limit = wanted.fail_on_miss
    if report.unobserved and (wanted.strict or check or limit is not None):
        yield f"not every compile could be observed: {report.unobserved[0]}"
    if guard := report.guard:
        refused = sum(m.occurrences for m in report.modules if m.outcome == "refused")
        if not report.is_guarded:
            yield f"--guard {guard} had no effect: it {_why_unarmed(guard, report.wall_seconds)}"
        elif refused:
            yield f"the guard refused {format_count(refused, 'compile')}"
    for tier in report.unused_tiers:
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


def _written_now(report: RunReport, misses: Sequence[Any]) -> str:
    """Say that a retry would pass, because the run that fails has filled the cache."""
    lasting = (m for m in misses if m.outcome == "written" and m.key not in report.passing)
    written = sum(m.occurrences for m in lasting)
    if not written:
        return ""
    is_all = written == sum(m.occurrences for m in misses)
    cached = "All is cached now, so" if is_all else f"{written} of them are cached now, which"
    return f". {cached} the next run with this cache hits; with --no-write it would fail again."
