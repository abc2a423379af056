"""``run`` and ``warm`` for torch: every look into its two caches, graph breaks and recompiles."""

import contextlib
import math
import os
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from jaxcache.core.compile_event import RunEvent
from jaxcache.entry.names import TorchTier
from jaxcache.errors import JaxcacheError, NoJaxError, UsageError, reporting
from jaxcache.layouts.torch.check import record_new_code
from jaxcache.layouts.torch.names import directory_of
from jaxcache.options.run import RunOptions, WarmOptions
from jaxcache.store import open_store
from jaxcache.warm.child.child import find_python
from jaxcache.warm.child.launch import (
    Launch,
    RunCallbacks,
    RunResult,
    describe_failure,
    run_listening,
)
from jaxcache.warm.programs import WarmProgram, words_of
from jaxcache.warm.report import events
from jaxcache.warm.report.report import RunReport

LookupOutcome = Literal["hit", "miss", "bypassed", "off"]


@dataclass(frozen=True, slots=True)
class Lookup:
    """One look of torch's into one of its caches."""

    tier: TorchTier
    outcome: LookupOutcome
    """``off``: there was a graph, and torch did not look for it."""
    process: int
    reason: str | None = None
    """The cause of a bypass, in torch's words; for a miss, ``full_miss`` or ``guard_miss``."""
    key: str | None = None
    """As a listing shows it, with the tier in front; None where torch made none."""
    saved: bool = False
    """Whether it was written here."""
    function: str | None = None
    file: str | None = None
    line: int | None = None
    compile_id: str | None = None
    compile_seconds: float | None = None
    """Compile time, for a hit when it was written; an AOT graph's without its FX graphs'."""
    retrieval_seconds: float | None = None
    """Time to read an AOT graph that was hit and its FX graphs, and what that led to."""
    size_bytes: int | None = None

    @property
    def occurrences(self) -> int:
        """Always 1: every look has a row of its own."""
        return 1


@dataclass(frozen=True, slots=True)
class CompiledFrame:
    """One compile of a frame by torch, with its backward pass."""

    compile_id: str | None
    function: str | None
    file: str | None
    line: int | None
    compile_seconds: float
    """All of it: tracing, the backend, guards."""
    backend_seconds: float
    guards: tuple[str, ...]
    """For a recompile, the guard that failed of each compile before, in torch's words."""
    failure: str | None
    process: int


@dataclass(slots=True)
class TorchProcess:
    """One Python below the command, by what it has reported about itself."""

    process: int
    pid: int = 0
    executable: str = ""
    torch: str = ""
    """The version of its torch; empty where it has imported none."""
    rank: int | None = None
    """Its number in a distributed program."""
    cache_dir: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    counters: Mapping[str, int] = field(default_factory=dict)
    """Torch's own: ``torch._dynamo.utils.counters``."""


class TierSums(NamedTuple):
    """Counts of one cache, by the names of torch's counters."""

    hits: int
    misses: int
    guard_misses: int
    saved: int
    bypassed: int
    off: int


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class TorchReport(RunReport):
    """All that a run did with torch's caches."""

    modules: tuple[Lookup, ...]
    compiles: tuple[CompiledFrame, ...]
    graph_breaks: tuple[events.TorchBreak, ...]
    processes: tuple[TorchProcess, ...]

    unit = "graph"

    def _sum(self, tier: TorchTier) -> TierSums:
        mine = [g for g in self.modules if g.tier == tier]
        counts = Counter(g.outcome for g in mine)
        return TierSums(
            counts["hit"],
            counts["miss"],
            sum(g.reason == "guard_miss" for g in mine),
            sum(g.saved for g in mine),
            counts["bypassed"],
            counts["off"],
        )

    @property
    def aotautograd(self) -> TierSums:
        """The looks into the cache of AOT graphs."""
        return self._sum("aotautograd")

    @property
    def fxgraph(self) -> TierSums:
        """The looks into the cache of FX graphs."""
        return self._sum("fxgraph")

    @property
    def recompiles(self) -> int:
        """Compiles of a frame that had been compiled."""
        return sum(bool(c.guards) for c in self.compiles)

    @property
    def broken_graphs(self) -> int:
        """Graph breaks, as torch counts them."""
        return sum(p.counters.get("graph_break", 0) for p in self.processes)

    @property
    def compile_seconds(self) -> float:
        """Seconds spent compiling in this run."""
        return math.fsum(c.compile_seconds for c in self.compiles)


#: ``warm`` turns both caches on.
_LIFTED = {"TORCHINDUCTOR_FX_GRAPH_CACHE": "1", "TORCHINDUCTOR_AUTOGRAD_CACHE": "1"}
_DISABLING = ("TORCHINDUCTOR_FORCE_DISABLE_CACHES", "TORCH_COMPILE_FORCE_DISABLE_CACHES")
_COUNTERS: dict[TorchTier, str] = {"aotautograd": "autograd_cache", "fxgraph": "fxgraph_cache"}


def run_command(
    command: Sequence[str], options: RunOptions, callbacks: RunCallbacks | None = None
) -> TorchReport:
    """Run any command line with torch's cache directory set and nothing else changed.

    Raises:
        UsageError: the command cannot be run.
    """
    return _run(Launch(tuple(command), _environment(options)), options, callbacks)


def warm_program(
    program: WarmProgram, options: WarmOptions, callbacks: RunCallbacks | None = None
) -> TorchReport:
    """Run a script with both caches of torch on.

    Raises:
        UsageError: no such script, no such Python, or a function.
        NoJaxError: that Python has no torch.
    """
    if program.call:
        raise UsageError("functions (MODULE:FUNCTION) are for JAX's cache")
    python = find_python(options.python, script=program.script, package="torch")
    env = {**_LIFTED, **_environment(options)}
    launch = Launch((python, *words_of(program)), env, needs=("torch",), unset=_DISABLING)
    return _run(launch, options, callbacks)


def _environment(options: RunOptions) -> dict[str, str]:
    return {"TORCHINDUCTOR_CACHE_DIR": options.cache_dir, "JAXCACHE_LISTEN_TO": "torch"}


def _run(launch: Launch, options: RunOptions, callbacks: RunCallbacks | None) -> TorchReport:
    if "://" in options.cache_dir:
        raise UsageError("torch writes into a directory, not into a bucket", code="not-a-directory")
    recorder = TorchReportBuilder(options.cache_dir)
    started_ns = time.time_ns()
    ended = run_listening(
        [launch],
        on_start=callbacks.on_start if callbacks else None,
        on_event=recorder.add,
        stdout_to_stderr=options.stdout_to_stderr,
        timeout_seconds=options.timeout_seconds,
    )
    for notice in recorder.notices:
        if notice.event == "no-module":
            raise NoJaxError(
                f"{notice.executable} has no torch",
                code="no-torch",
                hint="name a Python that has torch with --python",
            )
    with reporting(ended.exit_code):
        if recorder.compiled:
            for directory in {d for p in recorder.processes.values() if (d := p.cache_dir)}:
                with contextlib.suppress(JaxcacheError):
                    # Where the program failed, older code may be the reason.
                    sound = ended.exit_code == 0
                    record_new_code(open_store(directory), started_ns, unrecorded=sound)
        return recorder.report(ended)


CompileId = tuple[int, str | None]
"""A process and torch's id of a compile in it."""


@dataclass(slots=True)
class TorchReportBuilder:
    """The fold of a run's events."""

    cache_dir: str
    processes: dict[int, TorchProcess] = field(default_factory=dict)
    graphs: list[events.TorchGraph] = field(default_factory=list)
    saved: defaultdict[tuple[int, str], list[int]] = field(
        default_factory=lambda: defaultdict(list)
    )
    """The sizes of what a process wrote under a key."""
    compiled: dict[CompileId, list[events.TorchCompiled]] = field(default_factory=dict)
    """The compiles that ended; of what a kill interrupted, or no frame led to, there are none."""
    breaks: list[events.TorchBreak] = field(default_factory=list)
    guards: dict[CompileId, tuple[str, ...]] = field(default_factory=dict)
    notices: list[events.Message] = field(default_factory=list)

    def add(self, event: RunEvent) -> None:
        """Take one event."""
        process = self.processes.setdefault(event.process, TorchProcess(event.process))
        if isinstance(event, events.TorchEvent | events.TorchExited):
            process.counters = event.counters
        match event:
            case events.ProcessStarted():
                process.pid = event.pid
                process.executable = event.executable
            case events.TorchLoaded():
                process.torch = event.version
                process.rank = event.rank
                process.cache_dir = event.directory
                process.settings = event.settings
            case events.TorchGraph():
                self.graphs.append(event)
            case events.TorchSaved():
                self.saved[event.process, event.key].append(event.size_bytes)
            case events.TorchCompiled():
                self.compiled.setdefault((event.process, event.compile_id), []).append(event)
            case events.TorchBreak():
                self.breaks.append(event)
            case events.TorchRecompile():
                self.guards[event.process, event.compile_id] = event.guards
            case events.Message():
                self.notices.append(event)

    def report(self, ended: RunResult) -> TorchReport:
        """Make the report of a run that has ended."""
        by_compile: defaultdict[CompileId, list[events.TorchGraph]] = defaultdict(list)
        for graph in self.graphs:
            by_compile[graph.process, graph.compile_id].append(graph)
        compiles = dict.fromkeys([*by_compile, *self.compiled])
        written = self._written()
        graphs = [g for c in compiles for g in self._graphs(c, by_compile[c], written)]
        unobserved = tuple(dict.fromkeys(self._unobserved(graphs, ended)))
        return TorchReport(
            cache_dir=self.cache_dir,
            modules=tuple(graphs),
            compiles=tuple(self._compiles()),
            graph_breaks=tuple(self.breaks),
            processes=tuple(self.processes[p] for p in sorted({p for p, _ in compiles})),
            notes=tuple(dict.fromkeys([*self._notes(graphs), *unobserved])),
            script_exit_code=ended.exit_code,
            timed_out=ended.timed_out,
            interrupted=ended.interrupted,
            wall_seconds=ended.wall_seconds,
            saved_seconds=math.fsum(
                (g.compile_seconds or 0.0) - (g.retrieval_seconds or 0.0)
                for g in graphs
                if g.outcome == "hit"
            ),
            unobserved=unobserved,
            trace=self._trace(),
        )

    def _written(self) -> dict[int, int]:
        """The bytes that were written after a miss, by the identity of its event.

        A compile that torch restarts has several misses of one key, and writes after the last.
        """
        sizes = {key: list(names) for key, names in self.saved.items()}
        misses = (g for g in reversed(self.graphs) if g.outcome == "miss")
        keys = ((id(g), sizes.get((g.process, g.key or ""))) for g in misses)
        return {number: names.pop() for number, names in keys if names}

    def _graphs(
        self, compile_: CompileId, looks: Sequence[events.TorchGraph], written: Mapping[int, int]
    ) -> Iterator[Lookup]:
        """The rows of one compile: its looks, and those that torch did not make."""
        process, number = compile_
        parts = self.compiled.get(compile_, [])
        frame = next((p for p in parts if p.direction == "forward"), None)
        place = _place(frame)
        backend = _backend_seconds(parts)
        inner = [g for g in looks if g.tier == "fxgraph"]
        for look in looks:
            is_hit = look.outcome == "hit"
            is_aot = look.tier == "aotautograd"
            seconds = look.stored_seconds if is_hit else look.seconds
            if is_aot:
                took = "stored_seconds" if is_hit else "seconds"
                seconds = seconds if is_hit else backend
                within = sum(getattr(g, took) or 0.0 for g in inner)
                seconds = None if seconds is None else max(0.0, seconds - within)
            elif look.outcome == "bypass":
                seconds = math.fsum(p.inductor_seconds or 0.0 for p in parts)
            size_bytes = self._size(look) if is_hit else written.get(id(look))
            yield Lookup(
                tier=look.tier,
                key=f"{look.tier}-{look.key}" if look.key else None,
                outcome="bypassed" if look.outcome == "bypass" else look.outcome,
                reason=look.reason or look.status if not is_hit else None,
                saved=id(look) in written,
                **place,
                compile_id=number,
                compile_seconds=seconds,
                retrieval_seconds=frame.backend_seconds if is_hit and is_aot and frame else None,
                size_bytes=size_bytes,
                process=process,
            )
        if frame and frame.inductor_seconds and not frame.failure:
            for tier, reason in self._off(process).items():
                if all(look.tier != tier for look in looks):
                    yield Lookup(
                        tier=tier,
                        outcome="off",
                        reason=reason,
                        **place,
                        compile_id=number,
                        process=process,
                    )

    def _off(self, process: int) -> dict[TorchTier, str]:
        """Return the caches that a process does not use, with the setting that disables each."""
        settings = self.processes[process].settings
        if settings.get("force_disable_caches"):
            return dict.fromkeys(_COUNTERS, "force_disable_caches")
        off = (item for item in _SWITCHES.items() if settings.get(item[1]) is False)
        return {tier: f"{name} = False" for tier, name in off}

    def _size(self, look: events.TorchGraph) -> int | None:
        """Bytes of what was hit; None where several files share its key, with other guards."""
        path = self.processes[look.process].cache_dir or self.cache_dir
        try:
            with os.scandir(os.path.join(path, directory_of(look.tier, look.key or ""))) as files:
                sizes = [file.stat().st_size for file in files]
        except OSError:
            return None
        return sizes[0] if len(sizes) == 1 else None

    def _compiles(self) -> Iterator[CompiledFrame]:
        for (process, number), parts in self.compiled.items():
            first = next((p for p in parts if p.direction == "forward"), parts[0])
            yield CompiledFrame(
                compile_id=number,
                **_place(first),
                compile_seconds=math.fsum(p.seconds or 0.0 for p in parts),
                backend_seconds=_backend_seconds(parts),
                guards=self.guards.get((process, number), ()),
                failure=next((p.failure for p in parts if p.failure), None),
                process=process,
            )

    def _notes(self, graphs: Iterable[Lookup]) -> Iterator[str]:
        for process in sorted({g.process for g in graphs}):
            used = self.processes[process].cache_dir
            if used and os.path.abspath(used) != self.cache_dir:
                yield f"the program used {used}, not {self.cache_dir}"
        for reason in dict.fromkeys(str(g.reason) for g in graphs if g.outcome == "off"):
            yield f"a cache of torch is off: {reason}"

    def _unobserved(self, graphs: Sequence[Lookup], ended: RunResult) -> Iterator[str]:
        """Say why there may be looks that have no row."""
        trouble = [s for s in self.notices if s.event in ("trouble", "unobserved", "jax-failed")]
        yield from (notice.detail for notice in trouble)
        for number, process in self.processes.items():
            for tier, name in _COUNTERS.items():
                mine = [g for g in graphs if (g.process, g.tier) == (number, tier)]
                for outcome, end in _ENDS.items():
                    rows = sum(g.outcome == outcome for g in mine)
                    if (counted := process.counters.get(f"{name}_{end}", 0)) > rows:
                        yield f"torch counts {counted} of {name}_{end}, and {rows} were observed"
        if not (trouble or any(p.torch for p in self.processes.values())):
            unseen = (
                "no torch activity was observed: the program does not import it, or its Python "
                "ignores PYTHONPATH (-E, -I, env -i, a launcher that sets its own)"
            )
            yield describe_failure("torch") if ended.exit_code and not ended.timed_out else unseen

    def _trace(self) -> dict[str, Any]:
        """Chrome trace events: a span per compile, its backend, and an instant per look."""
        parts = [p for parts in self.compiled.values() for p in parts if p.seconds is not None]
        began = {id(p): p.began_at or p.at - (p.seconds or 0.0) for p in parts}
        origin = min([*began.values(), *(g.at for g in self.graphs)], default=0.0)
        spans = [
            {
                "ph": "X",
                "name": f"{p.function} {p.compile_id}",
                "cat": p.direction,
                "ts": round((began[id(p)] - origin) * 1e6, 3),
                "dur": round((p.seconds or 0.0) * 1e6, 3),
                "pid": p.process,
                "tid": 0,
                "args": {"file": p.file, "line": p.line, "backend_seconds": p.backend_seconds},
            }
            for p in parts
        ]
        looks = [
            {
                "ph": "i",
                "s": "t",
                "name": f"{g.tier} {g.outcome}",
                "ts": round((g.at - origin) * 1e6, 3),
                "pid": g.process,
                "tid": 0,
                "args": {"key": g.key, "reason": g.reason, "compile_id": g.compile_id},
            }
            for g in self.graphs
        ]
        return {"displayTimeUnit": "ms", "traceEvents": spans + looks}


def _place(frame: events.TorchCompiled | None) -> dict[str, Any]:
    """Function, file and line; a module of torch's own is compiled through ``inner``."""
    if frame is None:
        return {"function": None, "file": None, "line": None}
    names = [frame.owner, None if frame.owner and frame.function == "inner" else frame.function]
    function = ".".join(filter(None, names)) or None
    return {"function": function, "file": frame.file, "line": frame.line}


def _backend_seconds(parts: Iterable[events.TorchCompiled]) -> float:
    """Seconds in the backend; all of a backward pass that is compiled by itself."""
    return math.fsum(
        (p.seconds if p.direction == "backward" else p.backend_seconds) or 0.0 for p in parts
    )


#: The settings of :mod:`torch._functorch.config` and ``torch._inductor.config``.
_SWITCHES: dict[TorchTier, str] = {
    "aotautograd": "enable_autograd_cache",
    "fxgraph": "fx_graph_cache",
}
_ENDS: dict[LookupOutcome, str] = {"hit": "hit", "miss": "miss", "bypassed": "bypass"}
