"""``warm`` and ``run``: a program with the cache on, and an account of every compile."""

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace

from jaxcache.cache.leftovers import scratch_directory
from jaxcache.entry.releases import CACHE_PATH
from jaxcache.errors import JaxcacheError, NoJaxError, UsageError
from jaxcache.options.run import CompileOptions, RunOptions, WarmOptions
from jaxcache.store import is_remote
from jaxcache.units import format_count, format_duration, no_jax_hint
from jaxcache.warm.child.child import free_port
from jaxcache.warm.child.interpreter import describe_no_jax, find_python
from jaxcache.warm.child.launch import Launch, RunResult, run_listening
from jaxcache.warm.compiling.plan import CompileReport
from jaxcache.warm.crosshost.cross_target import CrossTarget, TargetOutput, open_spool, read_cross
from jaxcache.warm.environment import PORTABLE_NOTE, effective_thresholds, run_environment
from jaxcache.warm.programs import WarmProgram, words_of
from jaxcache.warm.report.builder import ReportBuilder
from jaxcache.warm.report.causes import find_causes, is_new, path_note
from jaxcache.warm.report.events import RunEvent
from jaxcache.warm.report.ledger_updates import (
    count_pending_uploads,
    record_in_ledger,
    record_savings,
    recorded_seconds,
)
from jaxcache.warm.report.notes import DIRECTORY, bucket_notes
from jaxcache.warm.report.recording import open_recording
from jaxcache.warm.report.report import Report
from jaxcache.warm.report.trace import trace_document
from jaxcache.warm.report.unobserved import unreported_entries


@dataclass(frozen=True, slots=True)
class RunCallbacks:
    """Functions to call while it runs."""

    on_event: Callable[[RunEvent], None] | None = None
    on_tick: Callable[[], None] | None = None
    on_known: Callable[[Mapping[str, float]], None] | None = None
    """Told, from another thread, the compile seconds by key that earlier runs took."""


def warm_programs(
    programs: Sequence[WarmProgram], options: WarmOptions, callbacks: RunCallbacks | None = None
) -> Report:
    """Run scripts and functions, and cache every compile that can be cached.

    With ``jobs`` a script that is alone is run twice, and compiled in between by that many workers.

    Raises:
        UsageError: no such script, no such Python, or options that do not go together.
        NoJaxError: that Python has no jax.
    """
    cross = read_cross(options)
    launches = [launch for program in programs for launch in _launches(program, options, cross)]
    alone = len(programs) == 1 and not (programs[0].listed or programs[0].call)
    if options.jobs == 1 or not alone or cross or options.collect is not None:
        return _run(launches, options, cross, callbacks or RunCallbacks())
    started = time.monotonic()
    try:
        notes, ahead, stopped = _compile_ahead(launches, options)
    except JaxcacheError as error:
        if error.code != "io-error":
            raise
        notes = [f"nothing was compiled ahead: {error.message}"]
        ahead = {}
        stopped = None
    if stopped is not None:
        return stopped
    report = _run(launches, options, cross, callbacks or RunCallbacks(), ahead)
    notes = list(dict.fromkeys([*notes, *report.notes]))
    wall_seconds = time.monotonic() - started
    ahead_seconds = wall_seconds - report.wall_seconds
    phases = {**report.phase_seconds}
    phases["compile"] = phases.get("compile", 0.0) + ahead_seconds
    return replace(report, notes=tuple(notes), wall_seconds=wall_seconds, phase_seconds=phases)


def _compile_ahead(
    launches: Sequence[Launch], options: WarmOptions
) -> tuple[list[str], dict[str, float | None], Report | None]:
    """Collect the modules of a program, and compile them in several workers at once.

    Returns:
        Notes; the seconds of each compile by its key; and the report of the collecting run, where
        that was interrupted.
    """
    from jaxcache.warm.compiling.run import compile_recipe

    with scratch_directory("ahead") as directory:
        recipe = os.path.join(directory, "program.recipe")
        run_options = {"record": recipe, "collect": _COLLECTED, "check_contents": False}
        silent = [replace(launch, aside=True, silent=True) for launch in launches]
        collected = _run(silent, options.replace(**run_options), None, RunCallbacks())
        if collected.interrupted or collected.timed_out:
            return [], {}, collected
        ahead = _written_seconds(collected)
        if not collected.recorded:
            return ["nothing could be collected, so nothing was compiled ahead"], ahead, None
        notes = [note for note in collected.notes if recipe not in note]
        first = next(iter(collected.processes), None)
        if first is None or first.cache_dir is None:
            return ["JAX has no cache directory, so nothing was compiled ahead"], ahead, None
        compile_options = CompileOptions(
            jobs=options.jobs,
            python=launches[0].command[0],
            portable=options.portable,
            used_at=None if options.portable else first.settings.get(DIRECTORY),
        )
        compiled = compile_recipe(recipe, first.cache_dir, compile_options)
    if compiled.interrupted:
        return [], {}, replace(collected, interrupted=True)
    written = _written_seconds(compiled)
    collecting, compiling = map(format_duration, (collected.wall_seconds, compiled.wall_seconds))
    count = format_count(len(written), "module")
    summary = f"collected in {collecting}; {options.jobs} workers compiled {count} in {compiling}"
    return [*notes, summary], ahead | written, None


def _written_seconds(report: "Report | CompileReport") -> dict[str, float | None]:
    return {m.key: m.compile_seconds for m in report.modules if m.outcome == "written" and m.key}


def run_command(
    command: Sequence[str], options: RunOptions, callbacks: RunCallbacks | None = None
) -> Report:
    """Run any command line with the cache directory set and nothing else changed.

    Raises:
        UsageError: the command cannot be run, or options do not go together.
    """
    cross = read_cross(options)
    launch = Launch(tuple(command), run_environment(options, cross), unset=_unset(cross))
    processes = cross.processes if cross else options.processes
    return _run([*_together(launch, processes)], options, cross, callbacks or RunCallbacks())


def _launches(
    program: WarmProgram, options: WarmOptions, cross: CrossTarget | None
) -> Iterator[Launch]:
    """One launch, or one for each process of a program of several."""
    words = words_of(program)
    devices = program.devices or options.devices
    env = run_environment(options, cross, devices)
    if is_remote(options.cache_dir) and "JAXCACHE_LIVE_FLUSH" not in os.environ:
        env["JAXCACHE_LIVE_FLUSH"] = _FLUSH  # what is not uploaded is not filled
    if not cross and (platform := program.platform or options.platform):
        env["JAX_PLATFORMS"] = platform
    env |= program.env
    if devices and not cross:
        flags = env.get("XLA_FLAGS", os.environ.get("XLA_FLAGS", ""))
        env["XLA_FLAGS"] = f"{flags} --xla_force_host_platform_device_count={devices}".strip()
    script = os.path.join(program.cwd or "", program.script) if program.script else ""
    python = find_python(program.python or options.python, script=script)
    command = (python, *words)
    launch = Launch(command, env, program.cwd, needs="jax", unset=_unset(cross))
    yield from _together(launch, cross.processes if cross else options.processes)


def _together(launch: Launch, processes: int | None) -> Iterator[Launch]:
    """The same launch, or one for each process of a program of several."""
    if processes is None:
        yield launch
        return
    address = f"127.0.0.1:{free_port()}"
    env = {"JAX_CPU_COLLECTIVES_IMPLEMENTATION": "gloo", **launch.env}
    for number in range(processes):
        own = {**env, "JAXCACHE_TOGETHER": f"{address},{processes},{number}"}
        yield replace(launch, env=own, aside=number > 0)


def _run(
    launches: Sequence[Launch],
    options: RunOptions,
    cross: CrossTarget | None,
    callbacks: RunCallbacks,
    ahead: Mapping[str, float | None] | None = None,
) -> Report:
    with open_spool(options.cache_dir, cross) if cross else nullcontext() as spool:
        if spool is not None:
            launches = _with(launches, {"JAXCACHE_TARGET": spool.request})
        return _run_all(launches, options, callbacks, spool, ahead or {})


def _run_all(
    launches: Sequence[Launch],
    options: RunOptions,
    callbacks: RunCallbacks,
    spool: TargetOutput | None,
    ahead: Mapping[str, float | None],
) -> Report:
    seconds_by_key: dict[str, float] = {}
    # Empty where only the program can name the cache that it uses.
    expected = options.cache_dir if options.jax_cache_dir or options.force_cache_dir else ""

    def look_up() -> None:
        seconds_by_key.update(recorded_seconds(expected))
        if callbacks.on_known:
            callbacks.on_known(seconds_by_key)

    # Beside the program, whose imports take longer: a long ledger must not delay its start.
    reader = threading.Thread(target=look_up, daemon=True)
    reader.start()
    first = ReportBuilder(expected, asked=effective_thresholds(options))
    first.ahead.update(ahead)
    recorder = first
    notes: list[str] = []
    recorded = None
    started_ns = time.time_ns()
    with open_recording(options.record, options.collect) as recipe:
        extra = recipe.environment if recipe else {}
        ended = _listen(_with(launches, extra), options, callbacks, recorder, spool)
        reader.join()
        if recipe:
            recorded, recipe_notes = recipe.save(recorder, seconds_by_key, ended)
            notes += recipe_notes
        elif options.record:
            notes.append(f"{options.record} was not written: no directory takes temporary files")
    if options.check_contents and not (ended.exit_code or ended.interrupted or ended.timed_out):
        again = _with(launches, _CHECKED)
        recorder = ReportBuilder(
            first.cache_dir, asked=first.asked, notices=first.notices, phases=first.phases
        )
        _learn(first, options)
        second = _listen(again, options, callbacks, recorder)
        ended = replace(
            second,
            wall_seconds=ended.wall_seconds + second.wall_seconds,
            unobserved=ended.unobserved + second.unobserved,
        )
    _learn(recorder, options)
    if spool is None:
        if options.scratch is None and not options.no_write:
            record_savings(recorder, seconds_by_key)
        keys = {str(e.key) for r in (first, recorder) for e in r.modules}
        keys |= first.fetched | recorder.fetched
        for directory in recorder.directories or {expected}:
            recorder.unreported += unreported_entries(directory, started_ns, keys)
    known_keys = set(seconds_by_key)
    for directory in recorder.directories - {expected}:
        seconds_by_key.update(recorded_seconds(directory))
    report = recorder.report(ended, seconds_by_key)
    notes += (f"this run could not be recorded in {d}: its disk is full" for d in recorder.full)
    target_dir = expected if spool else None
    causes = {} if options.scratch else find_causes(recorder, known_keys, cache_dir=target_dir)
    version = next((p.jax for p in report.processes if p.jax), None) or ""
    if options.portable and CACHE_PATH.holds(version):
        notes.append(PORTABLE_NOTE)
    elif not (options.portable or spool or options.scratch or options.no_write):
        notes += path_note(recorder.modules, version)
    waiting: Mapping[str, int] = {}
    if is_remote(options.cache_dir):
        waiting = count_pending_uploads(options.cache_dir, recorder.modules)
        notes += bucket_notes(options.cache_dir, recorder.modules, waiting)
    return replace(
        report,
        modules=tuple(
            replace(m, cause=causes.get(m.key or "")) if is_new(m.outcome, m.reason) else m
            for m in report.modules
        ),
        notes=tuple(dict.fromkeys([*report.notes, *notes])),
        recorded=recorded,
        waiting=waiting,
        is_guarded=options.guard is None or bool(first.heard("guarded")),
        trace=trace_document(recorder),
    )


def _with(launches: Sequence[Launch], env: Mapping[str, str]) -> Sequence[Launch]:
    """The same launches with more in their environment."""
    return [replace(launch, env={**launch.env, **env}) for launch in launches]


#: How long a program that fills a bucket waits for its uploads; one that fails ends the wait.
_FLUSH = "15m"
#: Operations of the largest module that a collecting run executes.
_COLLECTED = 50
#: How often the ledger is told of hits while a program runs.
_LEARN_SECONDS = 2.0
_CHECKED = {"JAX_COMPILATION_CACHE_CHECK_CONTENTS": "true", "JAXCACHE_CHECK": "1"}


def _listen(
    launches: Sequence[Launch],
    options: RunOptions,
    callbacks: RunCallbacks,
    recorder: ReportBuilder,
    spool: TargetOutput | None = None,
) -> RunResult:
    def take(event: RunEvent) -> None:
        if spool is not None:
            event = spool.take(event)
        recorder.add(event)
        if callbacks.on_event:
            callbacks.on_event(event)

    learn_at = time.monotonic() + _LEARN_SECONDS

    def tick() -> None:
        nonlocal learn_at
        if spool is None and time.monotonic() >= learn_at:
            _learn(recorder, options)  # jaxcache top reads it meanwhile
            learn_at = time.monotonic() + _LEARN_SECONDS
        if callbacks.on_tick:
            callbacks.on_tick()

    ended = run_listening(
        launches,
        on_event=take,
        on_tick=tick,
        jobs=options.jobs if isinstance(options, WarmOptions) else 1,
        together=any("JAXCACHE_TOGETHER" in launch.env for launch in launches),
        stdout_to_stderr=options.stdout_to_stderr,
        timeout_seconds=options.timeout_seconds,
        patience_seconds=None if options.collect is None else options.patience_seconds,
    )
    for notice in recorder.heard("no-jax"):
        raise NoJaxError(describe_no_jax(notice.executable or ""), hint=no_jax_hint())
    for notice in recorder.heard("refused"):
        raise NoJaxError(notice.detail, code=notice.code or "refused", hint=notice.hint)
    for notice in recorder.heard("no-function"):
        raise UsageError(notice.detail, code="no-function")
    return ended


def _learn(recorder: ReportBuilder, options: RunOptions) -> None:
    """Tell the ledger of what is new."""
    fresh = recorder.modules[recorder.learnt :]
    recorder.learnt = len(recorder.modules)
    if options.scratch is None and not options.no_write:
        record_in_ledger(fresh, recorder)


def _unset(cross: CrossTarget | None) -> tuple[str, ...]:
    return cross.unset(os.environ) if cross else ()
