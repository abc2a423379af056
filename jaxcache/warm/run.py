"""``warm`` and ``run``: a program with the cache on, and an account of every compile.

The program starts as soon as its command and environment are known. What makes the account
(:mod:`jaxcache.warm.account`) is imported while the program imports jax, which takes longer.
"""

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import cache
from typing import TYPE_CHECKING

from jaxcache.errors import JaxcacheError, ReportError, reporting
from jaxcache.options.run import CompileOptions, RunOptions, WarmOptions
from jaxcache.store import is_remote
from jaxcache.units import format_count, format_duration
from jaxcache.warm.child.child import find_python, free_port
from jaxcache.warm.child.launch import Launch, RunCallbacks, RunResult, run_listening
from jaxcache.warm.programs import DIRECTORY, WarmProgram, live_modules, run_environment, words_of

if TYPE_CHECKING:
    from jaxcache.warm.account import Account
    from jaxcache.warm.compiling.worker import CompileReport
    from jaxcache.warm.crosshost.cross_target import CrossTarget, TargetOutput
    from jaxcache.warm.report.recording import RecordingDirectory
    from jaxcache.warm.report.report import Report


def warm_program(
    program: WarmProgram, options: WarmOptions, callbacks: RunCallbacks | None = None
) -> "Report":
    """Run a script or compile a function, and cache every compile that can be cached.

    With ``jobs`` a script is run twice, and compiled in between by that many workers.

    Raises:
        UsageError: no such script, no such Python, or options that do not go together.
        NoJaxError: that Python has no jax.
    """
    cross = _read_cross(options)
    launches = [*_launches(program, options, cross)]
    if options.jobs == 1 or program.call or cross or options.collect is not None:
        return _run(launches, options, cross, callbacks or RunCallbacks())
    from dataclasses import replace  # which imports much, and the program may start before

    started = time.monotonic()
    try:
        notes, ahead, stopped = _compile_ahead(launches, options)
    except JaxcacheError as error:
        if error.code != "io-error" and not isinstance(error, ReportError):
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
    from jaxcache.cache.files import scratch_directory
    from jaxcache.warm.compiling.run import compile_recipe

    with scratch_directory("ahead") as directory:
        recipe = os.path.join(directory, "program.recipe")
        run_options = {"record": recipe, "collect": _COLLECTED, "check_contents": False}
        silent = [launch._replace(aside=True, silent=True) for launch in launches]
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
        from dataclasses import replace

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
    env = run_environment(options, cross)
    launch = Launch(tuple(command), env, needs=live_modules(env), unset=_unset(cross))
    processes = cross.processes if cross else options.processes
    report = _run([*_together(launch, processes)], options, cross, callbacks or RunCallbacks())
    from dataclasses import replace

    return replace(report, notes=(*report.notes, *_other_nodes_notes(command[0])))


def _other_nodes_notes(program: str) -> Iterator[str]:
    """Say that a launcher may have started processes which cannot report."""
    name = os.path.basename(program)
    if name in ("srun", "mpirun", "mpiexec") and os.environ.get("SLURM_JOB_NUM_NODES") != "1":
        yield (
            f"only processes of this node report: those that {name} started on other nodes are not "
            "in these numbers, and --fail-on-miss does not count them"
        )


def _launches(
    program: WarmProgram, options: WarmOptions, cross: "CrossTarget | None"
) -> Iterator[Launch]:
    """One launch, or one for each process of a program of several."""
    words = words_of(program)
    env = run_environment(options, cross, options.devices)
    if is_remote(options.cache_dir) and "JAXCACHE_LIVE_FLUSH" not in os.environ:
        env["JAXCACHE_LIVE_FLUSH"] = _FLUSH  # what is not uploaded is not filled
    if not cross and options.platform:
        env["JAX_PLATFORMS"] = options.platform
    if options.devices and not cross:
        flags = os.environ.get("XLA_FLAGS", "")
        flag = f"--xla_force_host_platform_device_count={options.devices}"
        env["XLA_FLAGS"] = f"{flags} {flag}".strip()
    command = (find_python(options.python, script=program.script), *words)
    launch = Launch(command, env, needs=("jax", *live_modules(env)), unset=_unset(cross))
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
        yield launch._replace(env=own, aside=number > 0)


def _run(
    launches: Sequence[Launch],
    options: RunOptions,
    cross: "CrossTarget | None",
    callbacks: RunCallbacks,
    ahead: Mapping[str, float | None] | None = None,
) -> "Report":
    started_ns = time.time_ns()
    spool: TargetOutput | None = None
    recipe: RecordingDirectory | None = None

    @cache
    def account() -> "Account":
        from jaxcache.warm.account import Account

        begun = Account(options, callbacks, spool, ahead or {})
        if callbacks.on_start:
            callbacks.on_start()
        return begun

    with ExitStack() as stack:
        if cross is not None:
            from jaxcache.warm.crosshost.cross_target import open_spool

            spool = stack.enter_context(open_spool(options.cache_dir, cross))
            launches = _with(launches, {"JAXCACHE_TARGET": spool.request})
        if options.record is not None:
            from jaxcache.warm.report.recording import open_recording

            recipe = stack.enter_context(open_recording(options.record, options.collect))
        ended = _listen(_with(launches, recipe.environment if recipe else {}), options, account)
        with reporting(ended.exit_code):
            account().save_recipe(recipe, ended)
            if options.check_contents and not (
                ended.exit_code or ended.interrupted or ended.timed_out
            ):
                account().begin_check()
                second = _listen(_with(launches, _CHECKED), options, account)
                ended = second._replace(wall_seconds=ended.wall_seconds + second.wall_seconds)
            return account().close(ended, started_ns)


def _listen(
    launches: Sequence[Launch], options: RunOptions, account: "Callable[[], Account]"
) -> RunResult:
    """Run the program to its end; what accounts for it is imported when it runs."""
    ended = run_listening(
        launches,
        on_start=account,
        on_event=lambda event: account().take(event),
        on_tick=lambda: account().tick(),
        stdout_to_stderr=options.stdout_to_stderr,
        timeout_seconds=options.timeout_seconds,
        patience_seconds=None if options.collect is None else options.patience_seconds,
    )
    account().check_start()
    return ended


def _with(launches: Sequence[Launch], env: Mapping[str, str]) -> Sequence[Launch]:
    """The same launches with more in their environment."""
    return [launch._replace(env={**launch.env, **env}) for launch in launches]


#: How long a program that fills a bucket waits for its uploads; one that fails ends the wait.
_FLUSH = "15m"
#: Operations of the largest module that a collecting run executes.
_COLLECTED = 50
_CHECKED = {"JAX_COMPILATION_CACHE_CHECK_CONTENTS": "true", "JAXCACHE_CHECK": "1"}


def _read_cross(options: RunOptions) -> "CrossTarget | None":
    options.check()
    if options.target is None:
        return None
    from jaxcache.warm.crosshost.cross_target import read_cross

    return read_cross(options)


def _unset(cross: "CrossTarget | None") -> tuple[str, ...]:
    return cross.unset(os.environ) if cross else ()
