"""Name the parts of a start that are worth shortening, from what a run has measured."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from jaxcache.cache.doctor.inputs import Finding, make_finding, read_rules
from jaxcache.cache.explain.sides import is_helper
from jaxcache.core.machine import read_release
from jaxcache.core.system import available_cores
from jaxcache.entry.names import key_of
from jaxcache.units import format_count, format_duration, format_size
from jaxcache.warm.report.notes import describe_shortage, fix_of
from jaxcache.warm.report.report import FAULTS, FunctionSeconds, Report

#: A part of the start that takes less is not worth a change of the program.
_LEAST_SECONDS = 1.0
_LEAST_SHARE = 0.1
#: JAX from this release on loads entries ahead (``live/adapter.py``).
_PRELOADS = (0, 8, 0)
_LOCAL = "a directory on a local disk loads faster than a network mount"
#: The parts that functions which are traced again, and unrolled loops, are in.
_REPEATED = ("slow-trace", "slow-compile")


#: The phases of each part of a start.
_PARTS = {
    "slow-trace": ("trace", "lower"),
    "slow-load": ("load",),
    "slow-key": ("key",),
    "slow-backend": ("backend",),
    "slow-compile": ("compile",),
}


def advise(report: Report) -> tuple[Finding, ...]:
    """Return advice on the start of a program, the part that costs the most seconds first.

    Only parts of a second and a tenth of the run or more are named.
    """
    least_seconds = max(_LEAST_SECONDS, _LEAST_SHARE * report.wall_seconds)
    causes = [*_retraced(report), *_unrolled(report)]
    causes = [pair for pair in causes if pair[0] >= least_seconds]
    causes.sort(key=lambda pair: -pair[0])
    phases = [pair for pair in _phases(report) if pair[0] >= least_seconds]
    # Repeated work is part of these phases, and comes before them, because it is more specific.
    whole = max((seconds for seconds, f in phases if f.trap in _REPEATED), default=0.0)
    pairs = [*((max(seconds, whole), finding) for seconds, finding in causes), *phases]
    pairs.sort(key=lambda pair: -pair[0])
    return tuple(finding for _, finding in pairs)


def judge_run(report: Report, findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Return the findings about a cache and its settings, corrected by what a program did with it.

    What the program reads or writes under another path of the cache, it does in each run.
    """
    served = {e.key for e in report.modules if e.outcome in ("hit", "written")}
    kept = [
        f
        for f in findings
        if f.trap != "cache-dir-in-key" or not served.issuperset(map(key_of, f.files))
    ]
    return *find_losses(report, kept), *kept, *advise(report)


def find_losses(report: Report, findings: Sequence[Finding] = ()) -> tuple[Finding, ...]:
    """Return the problems for which a second run of a program would not hit.

    Args:
        findings: of the cache and its settings; they explain why JAX fails, if it does.
    """
    problems = {f.trap for f in findings if f.severity == "problem"}
    losses = [
        _finding("cap-too-small", shortage=describe_shortage(s), setting=fix_of(s))
        for s in report.shortages
    ]
    reasons = Counter[str]()
    for m in report.modules:
        reasons[m.reason] += m.occurrences
    if report.modules and not any(m.outcome in ("hit", "written") for m in report.modules):
        losses += [_finding(rule) for reason, rule in _LOSSES.items() if reasons[reason]]
    losses = [loss for loss in losses if loss.trap not in problems]
    faults = [m for m in report.modules if m.reason in FAULTS]
    if faults and not (problems or losses):
        first = faults[0]
        compiles = format_count(sum(reasons[r] for r in FAULTS), "compile")
        detail = first.detail or ""
        losses.append(
            _finding("cache-errors", reason=first.reason, compiles=compiles, detail=detail)
        )
    return tuple(losses)


#: The problem of a program all of whose compiles end for such a reason.
_LOSSES = {"compile-time": "threshold", "size": "entry-size"}


def _phases(report: Report) -> Iterator[tuple[float, Finding]]:
    wall = format_duration(report.wall_seconds)
    for part, phases in _PARTS.items():
        seconds = sum(report.phase_seconds.get(phase, 0.0) for phase in phases)
        longest = ""
        if (top := _longest(report, phases)) and top.seconds >= _LEAST_SHARE * seconds:
            size = _size(report, top, part)
            place = _name(top.function, top.file, top.line)
            longest = f", {place}{size} alone {format_duration(top.seconds)}"
        is_first = part == "slow-compile" and _has_written_most(report)
        smaller = list(_smaller(report))
        yield _advice(
            "slow-first-compile" if is_first else part,
            seconds,
            wall=wall,
            longest=longest,
            smaller="".join(f"; {step}" for step in smaller),
            faster="; ".join(filter(None, (_load_faster(report), *smaller))) or _LOCAL,
        )


def _longest(report: Report, phases: Sequence[str]) -> FunctionSeconds | None:
    """Return the function that took most of some phases, with its seconds in all."""
    sums: defaultdict[tuple[str, str | None, int | None], float] = defaultdict(float)
    for top in (top for phase in phases for top in report.longest.get(phase, ())):
        sums[top.function, top.file, top.line] += top.seconds
    place = max(sums, key=sums.__getitem__, default=None)
    return place and FunctionSeconds(*place, sums[place])


def _has_written_most(report: Report) -> bool:
    """Whether most of the compile time went into entries that the next start finds."""
    seconds = math.fsum((m.compile_seconds or 0.0) * m.occurrences for m in report.lasting)
    return seconds * 2 > report.compile_seconds


def _load_faster(report: Report) -> str:
    """Return how to load entries ahead while the program traces, or what that takes; else ""."""
    versions = [p.jax for p in report.processes if p.jax]
    if report.hidden_seconds:
        return ""
    if any(read_release(version) < _PRELOADS for version in versions):
        return "JAX 0.8 or later can load entries ahead"
    if available_cores() < 2:
        return "with two cores, the live layer can load entries ahead"
    return "on CPU, jaxcache run --live -- CMD loads entries ahead from the second start on"


def _smaller(report: Report) -> Iterator[str]:
    """Yield how to reduce what is traced and loaded, if the program repeats something."""
    if any(m.copies for m in report.modules):
        yield "write equal layers as jax.lax.scan"
    if any(f.varies and not is_helper(f.function, f.file) for f in report.functions):
        yield "call with fewer shapes"


def _size(report: Report, top: FunctionSeconds, trap: str) -> str:
    """Return the size that makes an entry slow to load, or a module slow to hash."""
    name = {"slow-load": "size_bytes", "slow-key": "constant_bytes"}.get(trap)
    place = (top.file, top.line)
    alike = (m for m in report.modules if (m.file, m.line) == place)
    named = (m for m in alike if top.function in (m.function, m.module))
    size = max((getattr(m, name) or 0 for m in named), default=0) if name else 0
    if not size:
        return ""
    return f" ({format_size(size)}{' of constants' if trap == 'slow-key' else ''})"


def _retraced(report: Report) -> Iterator[tuple[float, Finding]]:
    # Nobody can change those of JAX itself, such as `_normal`.
    for function in (f for f in report.functions if not is_helper(f.function, f.file)):
        place = _name(function.function, function.file, function.line)
        times = format_count(function.traces, "time")
        seconds = function.repeated_seconds
        if function.varies:
            signatures = format_count(function.signatures, "signature")
            varies = "; ".join(function.varies)
            yield _advice(
                "retraced-shapes",
                seconds,
                place=place,
                times=times,
                signatures=signatures,
                varies=varies,
            )
            continue
        reason = (
            "with arguments of the same shapes: the function object, a static argument or a "
            "setting of JAX changed each time"
        )
        if function.retrace_reasons:
            reason = f"JAX's reason: {function.retrace_reasons[0]}"
        yield _advice("retraced", seconds, place=place, times=times, reason=reason)


def _unrolled(report: Report) -> Iterator[tuple[float, Finding]]:
    advice: dict[tuple[str, str | None], tuple[float, Finding]] = {}
    for m in sorted(report.modules, key=lambda m: m.trace_seconds or 0.0):
        if (copies := m.copies) is None:
            continue
        traced = ((m.trace_seconds or 0.0) + (m.lower_seconds or 0.0)) * m.occurrences
        seconds = traced * copies.share * (1 - 1 / copies.count)
        where = f", such as {copies.file}:{copies.line}" if copies.file else ""
        advice[where, m.function] = _advice(
            "unrolled",
            seconds,
            place=_name(m.function or m.module, m.file, m.line),
            copies=copies,
            where=where,
            traced=format_duration(traced),
        )
    yield from advice.values()


def _name(function: str, file: "str | None", line: "int | None") -> str:
    return f"{function} ({file}:{line})" if file else function


def _advice(rule: str, seconds: float, **values: Any) -> tuple[float, Finding]:
    return seconds, _finding(rule, seconds=format_duration(seconds), **values)


def _finding(rule: str, **values: Any) -> Finding:
    return make_finding(read_rules(__file__), rule, **values)
