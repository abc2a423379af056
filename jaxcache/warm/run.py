"""``warm`` and ``run``: a program with the cache on, and an account of every compile.

The program starts as soon as its command and environment are known. What makes the account
(:mod:`jaxcache.warm.account`) is imported while the program imports jax, which takes longer.
"""

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from jaxcache.errors import JaxcacheError, NoJaxError, UsageError
from jaxcache.options.run import CompileOptions, RunOptions, WarmOptions
from jaxcache.store import is_remote
from jaxcache.units import format_count, format_duration, no_jax_hint
from jaxcache.warm.child.child import free_port
from jaxcache.warm.child.interpreter import describe_no_jax, find_python
from jaxcache.warm.child.launch import Launch, RunResult, run_listening
from jaxcache.warm.environment import DIRECTORY, run_environment
from jaxcache.warm.programs import WarmProgram, words_of

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from jaxcache.warm.account import Account
    from jaxcache.warm.compiling.plan import CompileReport
    from jaxcache.warm.crosshost.cross_target import CrossTarget, TargetOutput
    from jaxcache.warm.report.events import RunEvent
    from jaxcache.warm.report.recording import RecordingDirectory
    from jaxcache.warm.report.report import Report


@dataclass(frozen=True, slots=True)
class RunCallbacks:
    """Functions to call while it runs."""

    on_start: Callable[[], None] | None = None
    """Called once the first program has started, to import what the end of the run needs."""
    on_event: "Callable[[RunEvent], None] | None" = None
    on_tick: Callable[[], None] | None = None
    on_known: Callable[[Mapping[str, float]], None] | None = None
    """Told, from another thread, the compile seconds by key that earlier runs took."""


def warm_programs(
    programs: Sequence[WarmProgram], options: WarmOptions, callbacks: RunCallbacks | None = None
) -> "Report":
    """Run scripts and functions, and cache every compile that can be cached.

    With ``jobs`` a script that is alone is run twice, and compiled in between by that many workers.

    Raises:
        UsageError: no such script, no such Python, or options that do not go together.
        NoJaxError: that Python has no jax.
    """
    cross = _read_cross(options)
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
) -> tuple[list[str], dict[str, float | None], "Report | None"]:
    """Collect the modules of a program, and compile them in several workers at once.

    Returns:
        Notes; the seconds of each compile by its key; and the report of the collecting run, where
        that was interrupted.
    """
    from jaxcache.cache.leftovers import scratch_directory
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
) -> "Report":
    """Run any command line with the cache directory set and nothing else changed.

    Raises:
        UsageError: the command cannot be run, or options do not go together.
    """
    cross = _read_cross(options)
    launch = Launch(tuple(command), run_environment(options, cross), unset=_unset(cross))
    processes = cross.processes if cross else options.processes
    return _run([*_together(launch, processes)], options, cross, callbacks or RunCallbacks())


def _launches(
    program: WarmProgram, options: WarmOptions, cross: "CrossTarget | None"
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
    cross: "CrossTarget | None",
    callbacks: RunCallbacks,
    ahead: Mapping[str, float | None] | None = None,
) -> "Report":
    with _open_spool(options, cross) as spool:
        if spool is not None:
            launches = _with(launches, {"JAXCACHE_TARGET": spool.request})
        return _run_all(launches, options, callbacks, spool, ahead or {})


class _Run:
    """One run of some launches; what accounts for it is imported when the first has started."""

    def __init__(
        self,
        options: RunOptions,
        callbacks: RunCallbacks,
        spool: "TargetOutput | None",
        ahead: Mapping[str, float | None],
    ) -> None:
        self._options = options
        self._callbacks = callbacks
        self._spool = spool
        self._ahead = ahead
        self._learn_at = time.monotonic() + _LEARN_SECONDS

    @cached_property
    def account(self) -> "Account":
        """What becomes the report."""
        from jaxcache.warm.account import Account

        account = Account(self._options, self._spool, self._ahead, self._callbacks.on_known)
        if self._callbacks.on_start:
            self._callbacks.on_start()
        return account

    def listen(self, launches: Sequence[Launch]) -> RunResult:
        """Run the programs to their end.

        Raises:
            NoJaxError: a Python has no jax, or this jax cannot be listened to.
            UsageError: no such function, or a command that cannot be run.
        """
        options = self._options
        ended = run_listening(
            launches,
            on_start=lambda: self.account,
            on_event=self._take,
            on_tick=self._tick,
            jobs=options.jobs if isinstance(options, WarmOptions) else 1,
            together=any("JAXCACHE_TOGETHER" in launch.env for launch in launches),
            stdout_to_stderr=options.stdout_to_stderr,
            timeout_seconds=options.timeout_seconds,
            patience_seconds=None if options.collect is None else options.patience_seconds,
        )
        recorder = self.account.recorder
        for notice in recorder.heard("no-jax"):
            raise NoJaxError(describe_no_jax(notice.executable or ""), hint=no_jax_hint())
        for notice in recorder.heard("refused"):
            raise NoJaxError(notice.detail, code=notice.code or "refused", hint=notice.hint)
        for notice in recorder.heard("no-function"):
            raise UsageError(notice.detail, code="no-function")
        return ended

    def _take(self, event: "RunEvent") -> None:
        if self._spool is not None:
            event = self._spool.take(event)
        self.account.recorder.add(event)
        if self._callbacks.on_event:
            self._callbacks.on_event(event)

    def _tick(self) -> None:
        if self._spool is None and time.monotonic() >= self._learn_at:
            self.account.learn()  # jaxcache top reads it meanwhile
            self._learn_at = time.monotonic() + _LEARN_SECONDS
        if self._callbacks.on_tick:
            self._callbacks.on_tick()


def _run_all(
    launches: Sequence[Launch],
    options: RunOptions,
    callbacks: RunCallbacks,
    spool: "TargetOutput | None",
    ahead: Mapping[str, float | None],
) -> "Report":
    run = _Run(options, callbacks, spool, ahead)
    started_ns = time.time_ns()
    with _open_recording(options) as recipe:
        extra = recipe.environment if recipe else {}
        ended = run.listen(_with(launches, extra))
        account = run.account
        if recipe:
            account.save_recipe(recipe, ended)
        elif options.record:
            account.notes.append(
                f"{options.record} was not written: no directory takes temporary files"
            )
    if options.check_contents and not (ended.exit_code or ended.interrupted or ended.timed_out):
        account.begin_check()
        second = run.listen(_with(launches, _CHECKED))
        ended = replace(
            second,
            wall_seconds=ended.wall_seconds + second.wall_seconds,
            unobserved=ended.unobserved + second.unobserved,
        )
    return account.close(ended, started_ns)


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


def _read_cross(options: RunOptions) -> "CrossTarget | None":
    options.check()
    if options.target is None:
        return None
    from jaxcache.warm.crosshost.cross_target import read_cross

    return read_cross(options)


def _open_spool(
    options: RunOptions, cross: "CrossTarget | None"
) -> "AbstractContextManager[TargetOutput | None]":
    if cross is None:
        return nullcontext()
    from jaxcache.warm.crosshost.cross_target import open_spool

    return open_spool(options.cache_dir, cross)


def _open_recording(
    options: RunOptions,
) -> "AbstractContextManager[RecordingDirectory | None]":
    if options.record is None:
        return nullcontext()
    from jaxcache.warm.report.recording import open_recording

    return open_recording(options.record, options.collect)


def _unset(cross: "CrossTarget | None") -> tuple[str, ...]:
    return cross.unset(os.environ) if cross else ()
