"""Name the parts of a start that are worth shortening, from what a run has measured."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from jaxcache.cache.doctor.inputs import Finding
from jaxcache.units import format_count, format_duration, format_size
from jaxcache.warm.report import Function, Module, Report

#: A part of the start that takes less is not worth a change of the program.
_LEAST_SECONDS = 1.0
_LEAST_SHARE = 0.1
_REPEATED = ("slow-trace", "slow-compile")


@dataclass(frozen=True, slots=True)
class _PhaseAdvice:
    """The advice about one part of a start."""

    trap: str
    activity: str
    phases: tuple[str, ...]
    fix: str
    module_seconds: Callable[[Module], float] = lambda _: 0.0
    """The seconds that one compile of a module contributes, where they are measured."""


_ADVICE = (
    _PhaseAdvice(
        trap="slow-trace",
        activity="tracing and lowering",
        phases=("trace", "lower"),
        fix="write equal layers as jax.lax.scan instead of a Python loop, and trace fewer "
        "signatures; no cache of compiles shortens this part",
        module_seconds=lambda m: (m.trace_seconds or 0.0) + (m.lower_seconds or 0.0),
    ),
    _PhaseAdvice(
        trap="slow-load",
        activity="looking up and loading entries",
        phases=("load",),
        fix="keep the cache on a local disk, or copy it there before the start",
        module_seconds=lambda m: m.retrieval_seconds or 0.0,
    ),
    _PhaseAdvice(
        trap="slow-key",
        activity="making keys",
        phases=("key",),
        fix="pass large arrays as arguments instead of closing over them: a key hashes the whole "
        "module with its constants",
    ),
    _PhaseAdvice(
        trap="slow-backend",
        activity="starting the devices",
        phases=("backend",),
        fix="set JAX_PLATFORMS to the platforms that the program uses",
    ),
    _PhaseAdvice(
        trap="slow-compile",
        activity="compiling and writing entries",
        phases=("compile",),
        fix="fill the cache with jaxcache warm; jaxcache explain names why an entry missed",
        module_seconds=lambda m: 0.0 if m.outcome == "hit" else m.compile_seconds or 0.0,
    ),
)


def advise(report: Report) -> tuple[Finding, ...]:
    """Return advice on the start of a program, the part that costs the most seconds first.

    Only parts of a second and a tenth of the run or more are named.
    """
    least_seconds = max(_LEAST_SECONDS, _LEAST_SHARE * report.wall_seconds)
    repeated = [pair for pair in _retraced(report) if pair[0] >= least_seconds]
    # What a function repeats is part of these phases, and is the note that says more.
    repeated_seconds = dict.fromkeys(_REPEATED, math.fsum(seconds for seconds, _ in repeated))
    pairs = [*repeated, *(pair for pair in _phases(report) if pair[0] >= least_seconds)]
    pairs.sort(key=lambda pair: repeated_seconds.get(pair[1].trap, 0.0) - pair[0])
    return tuple(finding for _, finding in pairs)


def _phases(report: Report) -> Iterator[tuple[float, Finding]]:
    wall = format_duration(report.wall_seconds)
    for advice in _ADVICE:
        seconds = sum(report.phase_seconds.get(phase, 0.0) for phase in advice.phases)
        fact = f"{advice.activity} took {format_duration(seconds)} of {wall}"
        top = max(
            report.modules, key=lambda m: advice.module_seconds(m) * m.occurrences, default=None
        )
        if top and (share := advice.module_seconds(top) * top.occurrences):
            size = f" ({format_size(top.size_bytes)})" if top.size_bytes else ""
            fact += f", {top.module}{size} alone {format_duration(share)}"
        yield seconds, _advice(advice.trap, fact, seconds, advice.fix)


def _retraced(report: Report) -> Iterator[tuple[float, Finding]]:
    for function in report.functions:
        place = f" ({function.file}:{function.line})" if function.file else ""
        times = format_count(function.traces, "time")
        fact = f"{function.function}{place} was traced {times}, {_reason(function)}"
        fix = (
            "pad or bucket the arguments to few shapes"
            if function.varies
            else "make the jitted function once, outside the loop, and keep its static arguments"
        )
        seconds = function.repeated_seconds
        yield seconds, _advice("retraced", fact, seconds, fix)


def _reason(function: Function) -> str:
    if function.varies:
        signatures = format_count(function.signatures, "signature")
        return f"for {signatures}: {'; '.join(function.varies)} varies"
    return (
        "with arguments of the same shapes: the function object, a static argument or a setting "
        "of JAX was another one each time"
    )


def _advice(trap: str, fact: str, seconds: float, fix: str) -> Finding:
    cost = f"up to {format_duration(seconds)} at each start"
    return Finding(trap=trap, severity="note", seen=fact, cost=cost, fix=fix)
