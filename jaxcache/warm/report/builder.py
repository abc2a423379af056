"""Fold the events of a run into a report: one outcome and one reason for every compile.

They are also Chrome trace events, which Perfetto and chrome://tracing open: "Trace Event Format",
complete events (``ph`` ``X``) with microseconds, one process per Python, one thread per thread
that compiled.
"""

import bisect
import errno
import math
import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from jaxcache.core.compile_event import CompileFinished, FunctionCompiled, RunEvent, Timeline
from jaxcache.warm.child.launch import RunResult, describe_failure
from jaxcache.warm.report import events as run_events
from jaxcache.warm.report import notes
from jaxcache.warm.report.report import Process, Report, find_longest, fold_functions, fold_modules

#: Names this process among those that compile in themselves.
_STARTED = time.time()

#: The reason of a compile that a worker of ``--jobs`` made before the program ran.
COMPILED_AHEAD = "compiled-ahead"


@dataclass(slots=True)
class ReportBuilder:
    """The fold of a run's events; report, recipe and ledger are made from those that arrived."""

    cache_dir: str = ""
    """The cache that the run is expected to use; empty if only the program can set it."""
    asked: Mapping[str, float] = field(default_factory=dict)
    """Thresholds that the environment of the program sets, by JAX's name of the setting."""
    modules: list[CompileFinished] = field(default_factory=list)
    processes: dict[int, Process] = field(default_factory=dict)
    hardware: dict[tuple[int, int | None], run_events.Hardware] = field(default_factory=dict)
    recorded: dict[tuple[int, int], run_events.CompileStarted] = field(default_factory=dict)
    """Requests that a recipe can be made of."""
    running: dict[tuple[int, int], run_events.CompileStarted] = field(default_factory=dict)
    colocated: list[FunctionCompiled] = field(default_factory=list)
    notices: list[run_events.Message] = field(default_factory=list)
    passed: list[run_events.GuardPassed] = field(default_factory=list)
    """The steps that guards let pass."""
    phases: list[run_events.PhasesMeasured] = field(default_factory=list)
    began_at: float = 0.0
    """Time before it belongs to no phase; seconds since the epoch."""
    sketches: dict[tuple[int, int], str] = field(default_factory=dict)
    """Sketches by process and number of the request."""
    ahead: dict[str, float | None] = field(default_factory=dict)
    """Keys that were compiled for this run before it began, with their compile seconds."""
    learnt: int = 0
    """The number of ``modules`` that the ledger has."""
    learnt_sketches: set[tuple[int, int]] = field(default_factory=set)
    """The sketches that the ledger has."""
    fetched: set[str] = field(default_factory=set)
    """Keys that the live layer has fetched from tiers."""
    unreported: list[str] = field(default_factory=list)
    """Entries written during the run that no process reported."""
    full: set[str] = field(default_factory=set)
    """Directories whose ledger cannot be written because their disk is full."""

    def add(self, event: RunEvent) -> None:
        """Take one event."""
        process = self.processes.setdefault(event.process, Process(event.process))
        match event:
            case CompileFinished():
                self.modules.append(self._as_compiled(event))
                self.running.pop((event.process, event.number), None)
                process.counters = event.counters
                process.process_id = event.process_id
            case run_events.PhasesMeasured():
                self.phases.append(event)
            case run_events.EntryFetched():
                self.fetched.add(event.key)
            case run_events.GuardPassed():
                self.passed.append(event)
            case run_events.SketchSent():
                self.sketches[event.process, event.number] = event.sketch
            case FunctionCompiled():
                self.colocated.append(event)
            case run_events.CompileStarted():
                self.running[event.process, event.number] = event
                if event.recorded:
                    self.recorded[event.process, event.number] = event
            case run_events.Hardware():
                self.hardware[event.process, event.backend] = event
            case run_events.Message():
                self.notices.append(event)
            case run_events.ProcessStarted():
                process.started = event
            case run_events.JaxLoaded():
                process.loaded = event
            case run_events.Configured():
                process.configured = event
            case run_events.ProcessExited():
                process.counters = event.counters

    def sketch_of(self, done: CompileFinished) -> str | None:
        """Return the sketch of a compile; None where it has none, or not yet."""
        return done.sketch or self.sketches.get((done.process, done.number))

    def run_of(self, process: int) -> str:
        """Return a name of one process that no other process has."""
        started = self.processes[process].started
        pid = started.pid or os.getpid()
        return f"{pid}-{started.at or _STARTED:.3f}"

    def _as_compiled(self, event: CompileFinished) -> CompileFinished:
        """Count the first hit of a key that was compiled ahead as the miss that it was."""
        if event.outcome != "hit" or event.key not in self.ahead:
            return event
        seconds = self.ahead.pop(event.key)
        spans = dict(event.spans)
        spans.pop("retrieve", None)
        if seconds is not None:
            spans["compile"] = (event.at, seconds)
        return replace(
            event, outcome="written", reason=COMPILED_AHEAD, spans=spans, stored_seconds=None
        )

    def heard(self, *kinds: str) -> list[run_events.Message]:
        """Return the sentences of some kinds."""
        return [notice for notice in self.notices if notice.event in kinds]

    def origin(self, process: int, backend: int | None) -> dict[str, Any]:
        """Return the jax and the hardware of a compile, by the names of recipes and the ledger."""
        loaded = self.processes[process].loaded
        hardware = self.hardware.get((process, backend))
        names = ("platform", "platform_version", "device_kind", "topology_fingerprint")
        counts = ("device_count", "process_count")
        return {
            "jax_version": loaded.jax,
            "jaxlib_version": loaded.jaxlib,
            "jaxlib_digest": loaded.jaxlib_digest,
            "key_settings": loaded.key_settings,
            **{name: getattr(hardware, name, None) for name in (*names, *counts)},
        }

    def report(self, ended: RunResult, recorded_seconds: Mapping[str, float]) -> Report:
        """Make the report of a run that has ended.

        Args:
            recorded_seconds: exact compile seconds by key, where JAX keeps whole seconds only.
        """
        recorded_seconds = self._with_own(recorded_seconds)
        processes = tuple(replace(p) for p in self.processes.values() if p.jax)
        functions = tuple(fold_functions([*self.modules, *self.colocated]))
        cut = map(_interrupted, self.running.values()) if ended.interrupted else ()
        settings = {number: process.settings for number, process in self.processes.items()}
        shortages = notes.find_shortages(self.modules, settings)
        return Report(
            cache_dir=self.used_directory,
            modules=tuple(fold_modules([*self.modules, *cut], recorded_seconds)),
            functions=functions,
            processes=processes,
            notes=tuple(
                dict.fromkeys(
                    [
                        *self._notes(processes, ended),
                        *map(notes.cap_note, shortages),
                        *notes.recompile_notes(functions),
                    ]
                )
            ),
            shortages=shortages,
            passing=notes.find_passing(self.modules, settings, shortages),
            script_exit_code=ended.exit_code,
            timed_out=ended.timed_out,
            interrupted=ended.interrupted,
            unobserved=tuple(self._unobserved(processes, ended)),
            denied=frozenset(e.reason for e in self.modules if e.errno == errno.EACCES),
            wall_seconds=ended.wall_seconds,
            phase_seconds=self._phase_seconds(ended),
            longest=find_longest(self.modules),
            saved_seconds=saved_in_series(span for _, *span in self._savings(recorded_seconds)),
        )

    def _phase_seconds(self, ended: RunResult) -> dict[str, float]:
        """Return the seconds of each phase, with the compile in which a signal ended the program.

        A process that is killed sends no end of it.
        """
        timeline = self.draw_timeline(self.phases)
        if ended.exit_code < 0:
            for compile_ in self.running.values():
                timeline.add("compile", compile_.at, ended.ended_at)
        return timeline.seconds()

    def draw_timeline(self, measured: Iterable[run_events.PhasesMeasured]) -> Timeline:
        """Return the phases of some processes as one timeline."""
        timeline = Timeline(self.began_at)
        for start, end, phase in (span for event in measured for span in event.spans):
            timeline.add(phase, start, end)
        return timeline

    @property
    def directories(self) -> set[str]:
        """The local directories that JAX had open."""
        return {e.local_directory for e in self.modules if e.local_directory}

    @property
    def used_directory(self) -> str:
        """The cache that most compiles used; the expected one where JAX opened none."""
        if "://" in self.cache_dir:
            return self.cache_dir
        opened = [
            e
            for e in self.modules
            if e.cache_dir and ("://" in e.cache_dir or os.path.isdir(e.cache_dir))
        ]
        served = [e for e in opened if e.outcome in ("hit", "written")]
        counts = Counter(str(e.cache_dir) for e in served or opened)
        return max(counts, key=lambda path: counts[path], default=self.cache_dir)

    def saved_by_hit(
        self, recorded_seconds: Mapping[str, float]
    ) -> list[tuple[CompileFinished, float]]:
        """Return every hit with its part of the seconds that all together have saved."""
        savings = list(self._savings(self._with_own(recorded_seconds)))
        total = saved_in_series(span for _, *span in savings)
        alone = math.fsum(max(0.0, saved) for *_, saved in savings)
        return [(e, total * max(0.0, saved) / alone) for e, *_, saved in savings if alone > 0]

    def _with_own(self, recorded_seconds: Mapping[str, float]) -> dict[str, float]:
        """Add the compile seconds of what this run has written, which a later hit of it saves."""
        written = (e for e in self.modules if e.outcome == "written" and "compile" in e.spans)
        return {**recorded_seconds, **{e.key: e.spans["compile"][1] for e in written if e.key}}

    def _savings(
        self, recorded_seconds: Mapping[str, float]
    ) -> Iterable[tuple[CompileFinished, float, float, float]]:
        """Yield every hit with its start, its end and its saved seconds; tracing belongs to it."""
        ended: dict[tuple[int, int], float] = {}
        for e in self.modules:
            thread = e.process, e.thread
            began = min([e.at, *(start for start, _ in e.spans.values())])
            start = max(began, ended.get(thread, began))
            ended[thread] = end = e.at + e.seconds
            compiling = recorded_seconds.get(e.key or "", e.stored_seconds)
            if e.outcome == "hit" and compiling is not None:
                yield e, start, end, compiling - (e.seconds_of("retrieve") or 0.0)

    def _notes(self, processes: Iterable[Process], ended: RunResult) -> Iterable[str]:
        for process in processes:
            used = self._used(process)
            yield from notes.settings_notes(process, self.cache_dir, self.asked, used)
        yield from notes.per_process_key_notes(self.modules)
        yield from notes.below_threshold_notes(self.modules)
        yield from notes.target_notes(self.modules)
        guarded = {notice.process: notice.at for notice in self.heard("guarded")}
        began_at = ended.ended_at - ended.wall_seconds
        yield from notes.guard_notes(self.passed, guarded, began_at, self.modules)
        yield from (notice.detail for notice in self.heard("jax-failed", "remark"))
        yield from self._unobserved(processes, ended)

    def _used(self, process: Process) -> Counter[str]:
        """Directories that a process had open, by the compiles they were open for."""
        mine = (e for e in self.modules if e.process == process.process)
        return Counter(e.cache_dir for e in mine if e.cache_dir)

    def _unobserved(self, processes: Iterable[Process], ended: RunResult) -> Iterable[str]:
        """Say why there may be compiles that are not among ``modules``."""
        for event in self.running.values():
            if not ended.interrupted:
                yield f"{event.module} was still compiling when its process ended"
        trouble = self.heard("trouble", "unobserved")
        yield from dict.fromkeys(notice.detail for notice in trouble)
        if count := len(self.unreported):
            yield (
                f"{count} {'entry was' if count == 1 else 'entries were'} written that no process "
                f"reported, such as {self.unreported[0]}: another program wrote them, or one of "
                "this run did and its Python ignores PYTHONPATH (-E, -I, env -i, a launcher that "
                "sets its own), where installing jaxcache beside its jax helps unless the "
                "environment is emptied, too"
            )
        if any(processes) or trouble or ended.interrupted:
            return
        if ended.exit_code and not ended.timed_out:
            yield describe_failure("jax")
        else:
            yield (
                "no use of jax was seen. Does the program's Python have jax? If it runs with -E, "
                "-I or env -i, install jaxcache beside its jax."
            )


def saved_in_series(hits: Iterable[Sequence[float]]) -> float:
    """The most that a series of hits, one after another, has saved.

    Threads that hit at the same time would have compiled at the same time, too.

    Args:
        hits: start, end and saved seconds of each.
    """
    ends = [-math.inf]
    best = [0.0]
    for start, end, saved in sorted(hits, key=lambda hit: hit[1]):
        before = best[bisect.bisect_right(ends, start) - 1]
        ends.append(end)
        best.append(max(best[-1], before + saved))
    return best[-1]


def _interrupted(begun: run_events.CompileStarted) -> CompileFinished:
    """The row of a compile that its process never ended, because a signal ended the process."""
    shared = {f.name for f in fields(begun)} & {f.name for f in fields(CompileFinished)}
    values = {name: getattr(begun, name) for name in shared}
    detail = "a signal came while it compiled or loaded"
    return CompileFinished(**values, outcome="skipped", reason="interrupted", detail=detail)


#: The fields of an event that a span shows.
_ARGS = ("key", "outcome", "reason", "function", "file", "line", "retrace")


def trace_document(recorded: ReportBuilder) -> dict[str, Any]:
    """Make the document; times count from the first thing that happened.

    The phases of a process are thread 0 of it.
    """
    events = [*_phases(recorded), *_steps(recorded)]
    origin = min((event["ts"] for event in events), default=0.0)
    return {
        "displayTimeUnit": "ms",
        "traceEvents": [
            *_names(recorded.processes.values()),
            *({**event, "ts": round(event["ts"] - origin, 3)} for event in events),
        ],
    }


def _names(processes: Iterable[Process]) -> Iterator[dict[str, Any]]:
    for process in processes:
        if process.jax:
            argv = " ".join(process.started.argv)
            yield {
                "ph": "M",
                "name": "process_name",
                "pid": process.process,
                "args": {"name": f"{argv or 'python'} (pid {process.pid})"},
            }


def _phases(recorded: ReportBuilder) -> Iterator[dict[str, Any]]:
    for number in recorded.processes:
        timeline = recorded.draw_timeline(e for e in recorded.phases if e.process == number)
        for start, end, phase in timeline.spans:
            yield {**_complete(phase, phase, start, end - start), "pid": number, "tid": 0}


def _steps(recorded: ReportBuilder) -> Iterator[dict[str, Any]]:
    for event in recorded.modules:
        for step, span in event.spans.items():
            if step != "key":
                yield {
                    **_complete(f"{step} {event.module}", step, *span),
                    "pid": event.process,
                    "tid": event.thread,
                    "args": {n: getattr(event, n) for n in _ARGS},
                }


def _complete(name: str, category: str, start: float, seconds: float) -> dict[str, Any]:
    microseconds = {"ts": start * 1e6, "dur": round(max(0.0, seconds) * 1e6, 3)}
    return {"ph": "X", "name": name, "cat": category, **microseconds}
