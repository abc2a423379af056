"""Name the parts of a start that are worth shortening, from what a run has measured."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from jaxcache.cache.doctor.inputs import LEAST_SIZE, Finding
from jaxcache.cache.explain.sides import is_helper
from jaxcache.core.machine import read_release
from jaxcache.core.system import available_cores
from jaxcache.entry.names import key_of
from jaxcache.units import format_count, format_duration, format_size
from jaxcache.warm.report.notes import describe_shortage, fix_of
from jaxcache.warm.report.report import FAULTS, Function, FunctionSeconds, Report
from jaxcache.warm.report.second_run import CapShortage

#: A part of the start that takes less is not worth a change of the program.
_LEAST_SECONDS = 1.0
_LEAST_SHARE = 0.1
#: JAX from this release on loads entries ahead (``live/load_seam.py``).
_PRELOADS = (0, 8, 0)
_NO_CACHE = "no cache of compiles shortens this part: JAX calls your functions to make the programs"
_LOCAL = "a directory on a local disk loads faster than a network mount"
#: The parts that functions which are traced again, and unrolled loops, are in.
_REPEATED = ("slow-trace", "slow-compile")


@dataclass(frozen=True, slots=True)
class _PhaseAdvice:
    """The advice about one part of a start."""

    trap: str
    activity: str
    phases: tuple[str, ...]
    fix: str
    """What to do in every run; empty where that depends on the run."""


_ADVICE = (
    _PhaseAdvice("slow-trace", "tracing and lowering", ("trace", "lower"), _NO_CACHE),
    _PhaseAdvice("slow-load", "looking up and loading entries", ("load",), ""),
    _PhaseAdvice(
        "slow-key",
        "making keys",
        ("key",),
        "pass large arrays as arguments instead of closing over them: a key hashes the whole "
        "module with its constants",
    ),
    _PhaseAdvice(
        "slow-backend",
        "starting the devices",
        ("backend",),
        "set JAX_PLATFORMS to the platforms that the program uses",
    ),
    _PhaseAdvice(
        "slow-compile",
        "compiling and writing entries",
        ("compile",),
        "fill the cache with jaxcache warm; jaxcache explain names why an entry missed",
    ),
)


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
    losses = [*map(_cap_loss, report.shortages)]
    reasons = Counter[str]()
    for m in report.modules:
        reasons[m.reason] += m.occurrences
    if report.modules and not any(m.outcome in ("hit", "written") for m in report.modules):
        losses += [loss for reason, loss in _LOSSES.items() if reasons[reason]]
    losses = [loss for loss in losses if loss.trap not in problems]
    faults = [m for m in report.modules if m.reason in FAULTS]
    if faults and not (problems or losses):
        first = faults[0]
        fact = f"{first.reason} of {format_count(sum(reasons[r] for r in FAULTS), 'compile')}"
        cost = "JAX goes on without the cache: these compile in every run"
        fix = "mend what the message names"
        losses.append(
            Finding("cache-errors", "problem", f"{fact}: {first.detail or ''}", cost, fix)
        )
    return tuple(losses)


def _cap_loss(shortage: CapShortage) -> Finding:
    """Return what JAX's cap costs a program."""
    cost = "JAX evicts entries before another run reads them, and that run compiles again"
    return Finding("cap-too-small", "problem", describe_shortage(shortage), cost, fix_of(shortage))


_NEVER_WRITTEN = "nothing of this program is written, and every run compiles it"
#: The problem of a program all of whose compiles end for such a reason.
_LOSSES = {
    "compile-time": Finding(
        "threshold",
        "problem",
        "every compile of the program was faster than the threshold",
        _NEVER_WRITTEN,
        "export JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS=0",
    ),
    "size": Finding(
        "entry-size",
        "problem",
        f"every entry of the program is smaller than {LEAST_SIZE}",
        _NEVER_WRITTEN,
        f"export {LEAST_SIZE.upper()}=0",
    ),
}


def _phases(report: Report) -> Iterator[tuple[float, Finding]]:
    wall = format_duration(report.wall_seconds)
    for advice in _ADVICE:
        seconds = sum(report.phase_seconds.get(phase, 0.0) for phase in advice.phases)
        fact = f"{advice.activity} took {format_duration(seconds)} of {wall}"
        if (top := _longest(report, advice.phases)) and top.seconds >= _LEAST_SHARE * seconds:
            size = _size(report, top, advice.trap)
            place = _name(top.function, top.file, top.line)
            fact += f", {place}{size} alone {format_duration(top.seconds)}"
        fix = advice.fix or _load_faster(report)
        if advice.trap in ("slow-trace", "slow-load"):
            fix = "; ".join(filter(None, (fix, *_smaller(report)))) or _LOCAL
        finding = _advice(advice.trap, fact, seconds, fix)
        if advice.trap == "slow-compile" and _has_written_most(report):
            cost = f"up to {format_duration(seconds)} at this start: the next one finds the entries"
            finding = replace(finding, cost=cost, fix="before the first start: jaxcache warm")
        yield seconds, finding


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
        fact = f"{place} was traced {times}, {_reason(function)}"
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
    if function.retrace_reasons:
        return f"JAX's reason: {function.retrace_reasons[0]}"
    return (
        "with arguments of the same shapes: the function object, a static argument or a setting "
        "of JAX changed each time"
    )


def _unrolled(report: Report) -> Iterator[tuple[float, Finding]]:
    advice: dict[tuple[str, str | None], tuple[float, Finding]] = {}
    for m in sorted(report.modules, key=lambda m: m.trace_seconds or 0.0):
        if (copies := m.copies) is None:
            continue
        traced = ((m.trace_seconds or 0.0) + (m.lower_seconds or 0.0)) * m.occurrences
        seconds = traced * copies.share * (1 - 1 / copies.count)
        place = f", such as {copies.file}:{copies.line}" if copies.file else ""
        fact = (
            f"{_name(m.function or m.module, m.file, m.line)} has {copies.count} copies of the "
            f"same lines{place}, {copies.share:.0%} of its operations; tracing and "
            f"lowering it took {format_duration(traced)}"
        )
        fix = "write the equal layers as jax.lax.scan instead of a Python loop"
        advice[place, m.function] = seconds, _advice("unrolled", fact, seconds, fix)
    yield from advice.values()


def _name(function: str, file: "str | None", line: "int | None") -> str:
    return f"{function} ({file}:{line})" if file else function


def _advice(trap: str, fact: str, seconds: float, fix: str) -> Finding:
    cost = f"up to {format_duration(seconds)} at each start"
    return Finding(trap=trap, severity="note", seen=fact, cost=cost, fix=fix)
