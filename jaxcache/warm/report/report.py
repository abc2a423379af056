"""The report of a run: one outcome and one reason for every compile; equal ones share a row."""

import math
import os
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from heapq import nlargest
from pathlib import PurePath
from typing import Any, NamedTuple

from jaxcache.cache.explain.say import FIRST_TIME, NOT_KNOWN
from jaxcache.cache.explain.sides import is_helper
from jaxcache.cache.ledger.segments import hit_rate, is_miss
from jaxcache.core.compile_event import (
    PHASES,
    Argument,
    CompileFinished,
    CompileStep,
    Copies,
    FunctionCompiled,
    RunOutcome,
)
from jaxcache.errors import JaxcacheError, NoJaxError
from jaxcache.model import result_repr
from jaxcache.warm.programs import DIRECTORY
from jaxcache.warm.report.events import Configured, JaxLoaded, ProcessStarted

#: Reasons whose cause is in the cache.
FAULTS = ("cache-not-opened", "read-error", "write-error")
#: How causes of a miss begin that no other entry explains.
LOST = "its entry was removed or quarantined"
EVICTED = "JAX evicted its entry, because the cap is too small"
UNCOMPARED = (FIRST_TIME, LOST, EVICTED, NOT_KNOWN)


@dataclass(frozen=True, slots=True)
class Module:
    """Compile requests that were for the same module and ended the same way.

    Its fields are those of the JSON document; those that an event has too are those of the first.
    """

    module: str
    key: str | None
    outcome: RunOutcome
    reason: str
    detail: str | None
    compile_seconds: float | None
    """Mean seconds of compiling here; for a hit, those of when the entry was written."""
    retrieval_seconds: float | None
    saved_seconds: float
    """Compile seconds that hits have saved, less what retrieving them took."""
    trace_seconds: float | None
    lower_seconds: float | None
    size_bytes: int | None
    function: str | None
    file: str | None
    line: int | None
    arguments: tuple[Argument, ...]
    occurrences: int
    process: int
    counted: str | None
    cache_dir: str | None
    tuning: str | None
    cause: str | None
    """The cause of a miss: ``first time: …``, or the difference from the nearest known entry."""
    constant_bytes: int
    copies: Copies | None

    @property
    def is_helper(self) -> bool:
        """Whether it is an operation of JAX's own, and no function of the user's."""
        return is_helper(self.function, self.file)


@dataclass(frozen=True, slots=True)
class Function:
    """A function and how many signatures of it the run held in memory."""

    function: str
    kind: str
    file: str | None
    line: int | None
    signatures: int
    """Different shapes and dtypes of arguments."""
    compiles: int
    """Executables in memory, in the process that had the most: static arguments count here."""
    compile_seconds: float
    traces: int
    """How often JAX traced it for a compile, in the process that repeated the most."""
    repeated_seconds: float
    """Seconds of tracing, lowering, loading and compiling it there, without the longest time."""
    varies: tuple[str, ...]
    """Differences between the signatures, such as ``axis 1 of x (8, 16, 24)``."""
    retrace_reasons: tuple[str, ...] = ()
    """The different reasons for which it was traced again, in JAX's words; the first few."""


@dataclass(frozen=True, slots=True)
class FunctionSeconds:
    """The seconds that one function has taken in one phase."""

    function: str
    file: str | None
    line: int | None
    seconds: float
    """Of all its times in the phase together."""
    count: int = 1
    """How often it was in the phase."""


@dataclass(slots=True)
class Process:
    """One Python that imported jax, by what it has reported about itself."""

    process: int
    process_id: int = 0
    """Its number in a distributed program; 0 where it is alone."""
    counters: Mapping[str, float] = field(default_factory=dict)
    """JAX's own counts, from its monitoring events, and those of the live layer about loads ahead
    and tiers."""
    started: ProcessStarted = field(default_factory=lambda: ProcessStarted(pid=0))
    loaded: JaxLoaded = field(default_factory=JaxLoaded)
    configured: Configured = field(default_factory=Configured)
    """Its last settings."""

    @property
    def pid(self) -> int:
        """Its process id; 0 if it was not reported."""
        return self.started.pid

    @property
    def executable(self) -> str:
        """Its Python; empty if it was not reported."""
        return self.started.executable

    @property
    def script(self) -> str | None:
        """The first word of its command line."""
        return self.started.argv[0] or None if self.started.argv else None

    @property
    def jax(self) -> str | None:
        """The version of its jax; None if it has imported none."""
        return self.loaded.jax

    @property
    def jaxlib(self) -> str | None:
        """The version of its jaxlib."""
        return self.loaded.jaxlib

    @property
    def settings(self) -> Mapping[str, Any]:
        """The settings of its cache; empty if they were not reported."""
        return self.configured.settings

    @property
    def cache_dir(self) -> str | None:
        """The cache directory that it has open, or would have opened; absolute, or a URL."""
        return self.configured.opened_directory or self.configured.next_directory

    @property
    def moved_from(self) -> str | None:
        """The directory that a relative setting named before the program changed its own."""
        setting = self.configured.opened_setting or str(self.settings.get(DIRECTORY) or "")
        if not (self.pid and self.cache_dir and setting) or "://" in setting:
            return None
        first = os.path.abspath(os.path.join(self.started.cwd, setting))
        return None if first == self.cache_dir else first

    @property
    def ignored_directory(self) -> str | None:
        """The directory that the program set after JAX had opened another one, which JAX keeps."""
        opened = self.configured.opened_setting
        setting = str(self.settings.get(DIRECTORY) or "")
        if opened is None or not setting or "://" in setting:
            return None
        return None if PurePath(setting) == PurePath(opened) else setting


@dataclass(frozen=True, slots=True)
class Phases:
    """The parts of a run's time; they add up to ``wall_seconds``.

    Each instant counts once: for the innermost of nested phases, and for one of the threads and
    processes that are busy at the same time.
    """

    import_seconds: float
    """Importing jax."""
    backend_seconds: float
    """Starting the devices."""
    trace_seconds: float
    lower_seconds: float
    key_seconds: float
    load_seconds: float
    """Looking up and retrieving entries."""
    compile_seconds: float
    """Compiling and writing entries."""
    other_seconds: float
    """All the rest: running the program, its other imports, the start of Python."""


class CapShortage(NamedTuple):
    """A directory whose cap is below what one run needs."""

    cache_dir: str
    cap_bytes: int
    entries: int
    """Entries that the run read, wrote, or made and could not write."""
    needed_bytes: int
    """Their size."""
    absent: tuple[str, ...] = ()
    """Modules whose entries were not there when the run had ended: JAX evicted them, or did not
    write them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReport:
    """What a run did with the caches of its compiler; what one of them lacks is empty."""

    __repr__ = result_repr

    cache_dir: str
    modules: tuple[Any, ...]
    processes: tuple[Any, ...]
    notes: tuple[str, ...]
    """Sentences for the reader: another directory used, thresholds changed, trouble."""
    script_exit_code: int
    timed_out: bool
    interrupted: bool
    wall_seconds: float
    saved_seconds: float = 0.0
    """Compile seconds saved by hits, net of retrieval; hits of threads and processes at the same
    time count once, by the most that a series of hits, one after another, has saved."""
    unobserved: tuple[str, ...] = ()
    """Why compiles may be missing here, one sentence each; empty where all were observed."""
    denied: frozenset[str] = frozenset()
    """Reasons of compiles whose entry this user may not read or write."""
    unused_tiers: tuple[str, ...] = ()
    """Requested tiers that a process could not open, with the reason of each."""
    recorded: int | None = None
    """Modules in the recipe; None if no recipe was requested."""
    passing: frozenset[str] = frozenset()
    """Keys that are known to miss in a second run."""
    waiting: Mapping[str, int] = field(default_factory=dict)
    """Entries that wait for their upload to the bucket ``cache_dir``, by local directory."""
    guard: str | None = None
    """The requested guard, as ``ON:ACTION`` or ``ON:ACTION:SECONDS``."""
    is_guarded: bool = False
    """Whether the guard was up in one of the processes."""
    trace: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """Chrome trace events of everything that was compiled or retrieved."""

    unit = "compile"
    """What one row of :attr:`modules` is about."""

    def count(self, outcome: Any) -> int:
        """Compile requests that ended so."""
        return sum(m.occurrences for m in self.modules if m.outcome == outcome)

    @property
    def uncacheable(self) -> int:
        """Compiles that cannot be cached, or not as their compiler is set."""
        return sum(map(self.count, ("uncacheable", "bypassed", "off")))


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Report(RunReport):
    """All that a run did with the cache."""

    modules: tuple[Module, ...]
    functions: tuple[Function, ...]
    processes: tuple[Process, ...]
    shortages: tuple[CapShortage, ...] = ()
    """Directories whose cap is below what the run needs."""
    phase_seconds: Mapping[str, float] = field(default_factory=dict)
    """Seconds of each phase that was measured; empty where no jax was observed."""
    longest: Mapping[str, tuple[FunctionSeconds, ...]] = field(default_factory=dict)
    """The functions that took most of a phase, at most three, the longest first.

    A trace contains those of the functions that it calls.
    """

    @property
    def phases(self) -> Phases:
        """The parts of ``wall_seconds``."""
        measured = {f"{name}_seconds": self.phase_seconds.get(name, 0.0) for name in PHASES}
        other_seconds = self.wall_seconds - math.fsum(measured.values())
        return Phases(**measured, other_seconds=max(0.0, other_seconds))

    @property
    def hidden_seconds(self) -> float:
        """The time of loads for which no program waited: the live layer had loaded ahead."""
        return math.fsum(p.counters.get("preload_hidden_seconds", 0.0) for p in self.processes)

    @property
    def compile_requests(self) -> int:
        """All compile requests."""
        return sum(m.occurrences for m in self.modules)

    @property
    def hits(self) -> int:
        """Compile requests that the cache served."""
        return self.count("hit")

    @property
    def misses(self) -> int:
        """Compile requests with a key that the cache did not serve."""
        missed = (m for m in self.modules if is_miss(m.outcome, m.reason, m.key))
        return sum(m.occurrences for m in missed)

    @property
    def hit_rate(self) -> float | None:
        """Hits over hits and misses; None without any."""
        return hit_rate(self.hits, self.misses)

    @property
    def written(self) -> int:
        """Compiles whose entries are new."""
        return self.count("written")

    @property
    def lasting(self) -> tuple[Module, ...]:
        """The modules that were written, without those known to miss in a second run."""
        written = (m for m in self.modules if m.outcome == "written")
        return tuple(m for m in written if m.key not in self.passing)

    @property
    def skipped(self) -> int:
        """Compiles that were not written, by a threshold or because they need not be."""
        return self.count("skipped")

    @property
    def refused(self) -> int:
        """Compiles that a guard of the program refused."""
        return self.count("refused")

    @property
    def errors(self) -> int:
        """Compiles with an error of the compiler or of the cache."""
        return self.count("error")

    @property
    def retrieval_seconds(self) -> float:
        """Seconds spent retrieving entries."""
        return math.fsum((m.retrieval_seconds or 0.0) * m.occurrences for m in self.modules)

    @property
    def compile_seconds(self) -> float:
        """Seconds spent compiling in this run."""
        spent = (m for m in self.modules if m.outcome != "hit")
        return math.fsum((m.compile_seconds or 0.0) * m.occurrences for m in spent)


_NO_COMPILE = "the program failed before its first compile; its own output says why"


def require_observed(report: RunReport, library: str) -> None:
    """Refuse to explain a run of which nothing was observed, or that failed before any compile.

    Raises:
        JaxcacheError: ``program-failed``.
        NoJaxError: ``unknown-jax`` or ``unknown-torch``.
    """
    if report.modules:
        return
    if code := report.script_exit_code:
        how = f"exit code {code}" if code > 0 else f"signal {-code}"
        why = next(iter(report.unobserved), _NO_COMPILE)
        raise JaxcacheError(f"{how}: {why}", code="program-failed")
    if report.unobserved:
        raise NoJaxError(report.unobserved[0], code=f"unknown-{library}")


def fold_modules(
    events: Iterable[CompileFinished], recorded_seconds: Mapping[str, float]
) -> Iterable[Module]:
    """Yield a row for the compiles that are alike.

    Args:
        recorded_seconds: exact compile seconds by key.
    """
    groups: defaultdict[tuple[object, ...], list[CompileFinished]] = defaultdict(list)
    for e in events:
        alike = (e.process, e.module, e.key, e.outcome, e.reason, e.counted, e.cache_dir)
        groups[alike].append(e)
    for same in groups.values():
        first = same[0]
        is_hit = first.outcome == "hit"
        compile_seconds = _mean(same, "compile")
        if is_hit:
            compile_seconds = recorded_seconds.get(first.key or "", first.stored_seconds)
        retrieval_seconds = _mean(same, "retrieve")
        saved_seconds = 0.0
        if is_hit and compile_seconds is not None:
            saved_seconds = (compile_seconds - (retrieval_seconds or 0.0)) * len(same)
        yield Module(
            **{name: getattr(first, name) for name in _OF_FIRST},
            compile_seconds=compile_seconds,
            retrieval_seconds=retrieval_seconds,
            saved_seconds=saved_seconds,
            trace_seconds=_mean(same, "trace"),
            lower_seconds=_mean(same, "lower"),
            occurrences=len(same),
            cause=None,
        )


_OF_FIRST = {f.name for f in fields(Module)} & {f.name for f in fields(CompileFinished)}


def fold_functions(events: Iterable[FunctionCompiled]) -> Iterable[Function]:
    """Yield a row for each function, over all its signatures."""
    groups: defaultdict[tuple[str, str | None, int | None], list[FunctionCompiled]] = defaultdict(
        list
    )
    for e in events:
        if e.function:
            groups[e.function, e.file, e.line].append(e)
    for (function, file, line), same in groups.items():
        signatures = list(dict.fromkeys(e.arguments for e in same))
        by_process: defaultdict[int, list[FunctionCompiled]] = defaultdict(list)
        for e in same:
            by_process[e.process].append(e)
        # Work that processes do at the same time is not a repetition.
        repeated = max(by_process.values(), key=_repeated_seconds)
        reasons = (e.retrace for e in same if isinstance(e, CompileFinished) and e.retrace)
        yield Function(
            function=function,
            kind=same[0].kind or "jit",
            file=file,
            line=line,
            signatures=len(signatures),
            compiles=max(map(len, by_process.values())),
            compile_seconds=sum(e.seconds_of("compile") or 0.0 for e in same),
            traces=sum("trace" in e.spans for e in repeated),
            repeated_seconds=_repeated_seconds(repeated),
            varies=tuple(_describe_variation(signatures)),
            retrace_reasons=tuple(dict.fromkeys(reasons))[:_SHOWN_VALUES],
        )


def find_longest(events: Iterable[CompileFinished]) -> dict[str, tuple[FunctionSeconds, ...]]:
    """Return the functions that took most of each phase."""
    places: defaultdict[str, defaultdict[tuple[str, str | None, int | None], list[float]]]
    places = defaultdict(lambda: defaultdict(list))
    for e in events:
        seconds: defaultdict[str, float] = defaultdict(float)
        for step, span in e.spans.items():
            seconds[_PHASES.get(step, step)] += span[1]
        for phase, spent in seconds.items():
            places[phase][e.function or e.module, e.file, e.line].append(spent)
    return {
        phase: tuple(
            FunctionSeconds(*place, sum(spent), len(spent))
            for place, spent in nlargest(3, times.items(), key=lambda item: sum(item[1]))
        )
        for phase, times in places.items()
    }


#: The phase of a start that a step belongs to, where it has another name.
_PHASES = {"retrieve": "load", "write": "compile"}


def _repeated_seconds(events: list[FunctionCompiled]) -> float:
    """Return the seconds from a trace until the function can run, without the longest time."""
    starts = (math.fsum(seconds for _, seconds in e.spans.values()) for e in events)
    return math.fsum(sorted(starts)[:-1])


def _describe_variation(signatures: list[tuple[Argument, ...]]) -> Iterable[str]:
    """Say which arguments, axes or dtypes differ between the signatures of one function."""
    if len(signatures) < 2:
        return
    if len({len(s) for s in signatures}) > 1:
        yield f"the number of arguments ({_values(len(s) for s in signatures)})"
        return
    for position, arguments in enumerate(zip(*signatures, strict=True)):
        name = arguments[0].name or f"argument {position}"
        if len({a.dtype for a in arguments}) > 1:
            yield f"dtype of {name} ({_values(a.dtype for a in arguments)})"
        if len({len(a.shape) for a in arguments}) > 1:
            yield f"rank of {name} ({_values(len(a.shape) for a in arguments)})"
            continue
        for axis, lengths in enumerate(zip(*(a.shape for a in arguments), strict=True)):
            if len(set(lengths)) > 1:
                yield f"axis {axis} of {name} ({_values(lengths)})"


def _values(values: Iterable[Any]) -> str:
    texts = list(dict.fromkeys(str(v) for v in values))
    return ", ".join(texts[:_SHOWN_VALUES]) + (", …" if len(texts) > _SHOWN_VALUES else "")


_SHOWN_VALUES = 6


def _mean(events: Iterable[CompileFinished], step: CompileStep) -> float | None:
    """Return the mean length of a step in those events that have it."""
    seconds = [e.spans[step][1] for e in events if step in e.spans]
    return sum(seconds) / len(seconds) if seconds else None
