"""The report of a run: one outcome and one reason for every compile."""

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from jaxcache.cache.explain.sides import is_helper
from jaxcache.cache.ledger.uses import hit_rate, is_miss
from jaxcache.core.compile_event import Argument, Copies, RunOutcome
from jaxcache.core.timeline import PHASES
from jaxcache.errors import JaxcacheError, NoJaxError
from jaxcache.model import result_repr
from jaxcache.warm.environment import DIRECTORY
from jaxcache.warm.report.events import Configured, JaxLoaded, ProcessStarted
from jaxcache.warm.report.second_run import CapShortage

if TYPE_CHECKING:
    from jaxcache.warm.torch.report import TorchReport

#: Reasons whose cause is in the cache.
FAULTS = ("cache-not-opened", "read-error", "write-error")
#: Causes of a miss that no other entry explains.
FIRST_TIME = "first time"
UNKNOWN_CHANGE = "not known: the earlier program was not recorded; runs under jaxcache are"
LOST = "its entry was removed or quarantined"
EVICTED = "JAX evicted its entry, because the cap is too small"
VARYING = "another key than in an equal run before"
UNCOMPARED = (FIRST_TIME, LOST, EVICTED, UNKNOWN_CHANGE, VARYING)


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
    """The cause of a miss: ``first time``, or the difference from the nearest known entry."""
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


def divide_into_phases(seconds_by_phase: Mapping[str, float], wall_seconds: float) -> Phases:
    """Return the phases of a run whose time is known."""
    measured = {f"{name}_seconds": seconds_by_phase.get(name, 0.0) for name in PHASES}
    return Phases(**measured, other_seconds=max(0.0, wall_seconds - math.fsum(measured.values())))


@dataclass(frozen=True, slots=True)
class Report:
    """All that a run did with the cache."""

    __repr__ = result_repr

    cache_dir: str
    modules: tuple[Module, ...]
    functions: tuple[Function, ...]
    processes: tuple[Process, ...]
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
    shortages: tuple[CapShortage, ...] = ()
    """Directories whose cap is below what the run needs."""
    passing: frozenset[str] = frozenset()
    """Keys that are known to miss in a second run."""
    waiting: Mapping[str, int] = field(default_factory=dict)
    """Entries that wait for their upload to the bucket ``cache_dir``, by local directory."""
    phase_seconds: Mapping[str, float] = field(default_factory=dict)
    """Seconds of each phase that was measured; empty where no jax was observed."""
    longest: Mapping[str, tuple[FunctionSeconds, ...]] = field(default_factory=dict)
    """The functions that took most of a phase, at most three, the longest first.

    A trace contains those of the functions that it calls.
    """
    guard: str | None = None
    """The requested guard, as ``ON:ACTION`` or ``ON:ACTION:SECONDS``."""
    is_guarded: bool = False
    """Whether the guard was up in one of the processes."""
    trace: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """Chrome trace events of everything that was compiled or retrieved."""

    unit = "compile"

    @property
    def phases(self) -> Phases:
        """The parts of ``wall_seconds``."""
        return divide_into_phases(self.phase_seconds, self.wall_seconds)

    @property
    def hidden_seconds(self) -> float:
        """The time of loads for which no program waited: the live layer had loaded ahead."""
        return math.fsum(p.counters.get("preload_hidden_seconds", 0.0) for p in self.processes)

    def count(self, outcome: RunOutcome) -> int:
        """Compile requests that ended so."""
        return sum(m.occurrences for m in self.modules if m.outcome == outcome)

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
    def uncacheable(self) -> int:
        """Compiles that JAX cannot cache, or not as it is set."""
        return self.count("uncacheable")

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


def describe_failure(library: str) -> str:
    """Explain why nothing was observed of a program that failed."""
    return f"the program failed before any use of {library} was seen; its own output says why"


def require_observed(report: "Report | TorchReport", library: str) -> None:
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
