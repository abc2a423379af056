"""`jaxcache warm`, `run` and `compile`: options, the report, the exit code."""

import contextlib
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from jaxcache.api.compiling import Runner, runner_of
from jaxcache.cli.opening import note_foreign, open_handle
from jaxcache.cli.output import Format, Output, emit, note, print_blocks, write_text
from jaxcache.cli.terminal import can_redraw, draw_line, progress_line, silence
from jaxcache.errors import ExitCode, ReportError, UsageError, reporting, shell_code
from jaxcache.options import TEXTS, CacheDir, CacheLocation, RunLocation, option
from jaxcache.options import run as options_run
from jaxcache.store import check_made, check_tier, is_remote
from jaxcache.store.location import absolute_location
from jaxcache.units import format_duration
from jaxcache.warm.programs import WarmProgram, names_function, read_call

if TYPE_CHECKING:
    from jaxcache.warm.compiling.worker import CompilePlan, CompileResult, Job


RunOptionsT = TypeVar("RunOptionsT", bound=options_run.RunOptions)


def import_report() -> None:
    """Import what prints the report while the program runs, so that it takes no time afterwards.

    Nothing is drawn meanwhile: the terminal is the program's, and what it prints cannot be seen.
    """
    import jaxcache.render.typeset
    import jaxcache.render.warm  # noqa: F401


def place_run(
    options: RunOptionsT, place: CacheLocation, form: Format
) -> tuple["Runner", RunOptionsT]:
    """Complete the options of a run; a local cache directory need not exist yet.

    Args:
        form: of the report; JSON and keys leave standard output to it.

    Raises:
        UsageError: options do not go together, or the directory is a file.
        NoCacheError: the directory cannot be made or read.
        JaxcacheError: ``read-only``: it is empty, and ``warm`` could not fill it.
    """
    options.check()
    cache = open_handle(place)
    # What the variable names is up to the program.
    compiler = (place.layout or "jax") if place.cache_dir is None else cache.compiler
    runner = runner_of(compiler)
    hint = "a run of it takes --timeout, --fail-on-miss, --strict, --trace and --json"
    options.check_known(compiler, runner.options, hint)
    path = absolute_location(cache.location.path)
    if os.path.exists(path) and not os.path.isdir(path):
        raise UsageError(f"{path} is a file, not a cache directory", code="not-a-directory")
    if place.cache_dir is not None:
        cache.refuse_caches_below()
        note_foreign(path)
        if cache.existing is None:
            check_made(path)
        elif not (is_remote(path) or options.no_write or cache.existing.writable):
            if isinstance(options, options_run.WarmOptions) and not os.listdir(path):
                cache.require_writable()
            note(f"note: {path} cannot be written: what this run compiles will not be kept")
    for tier in options.tiers:
        check_tier(tier.removesuffix(":ro"))
    if options.tiers and not (cache.spelling or options.force_cache_dir):
        note(
            "note: no cache directory is named; unless the program sets one, JAX has none, and "
            "--tier has no effect: add -C DIR"
        )
    placed = options.replace(
        cache_dir=path,
        jax_cache_dir=cache.spelling,
        stdout_to_stderr=form.is_json or form is Format.KEYS,
    )
    return runner, placed


def is_function(program: str) -> bool:
    """Whether it means MODULE:FUNCTION; a file of that name is a script."""
    return names_function(program) and not os.path.exists(program)


def program_of(
    program: str | None,
    arguments: Sequence[str] | None,
    call: options_run.CallOptions,
    *,
    module: str | None = None,
) -> WarmProgram:
    """Return the script, module or function of the command line.

    Args:
        call: how the function is called, if it is one.
        module: to be run as ``python -m`` does; all else is arguments.

    Raises:
        UsageError: none was given, or the call cannot be read.
    """
    words = tuple(arguments or ())
    if module is not None and not call:
        return WarmProgram(module=module, arguments=(*([program] if program else ()), *words))
    if program is None or module:
        raise UsageError("name a script, or a module with -m")
    if is_function(program):
        if words:
            raise UsageError(
                f"{program} is a function, and {words[0]!r} is not an option",
                hint="write its arguments as --arg 'f32[8,128]'",
            )
        return WarmProgram(call=read_call(program, call))
    if call:
        raise UsageError("--arg, --static, --args and --committed are for MODULE:FUNCTION")
    return WarmProgram(program, words)


@contextlib.contextmanager
def _whatever_reads() -> Iterator[None]:
    """Print although the reader may have gone (``| head``): the exit code still counts."""
    try:
        yield
    except BrokenPipeError:
        silence(sys.stdout)
        silence(sys.stderr)


def _carry_out(
    start: Callable[..., Any],
    program: "WarmProgram | Sequence[str]",
    placed: options_run.RunOptions,
    runner: Runner,
    wanted: options_run.Assertions,
    form: Format,
    extent: options_run.ReportOptions,
    *,
    fills: bool = False,
) -> int:
    """Run a program and print the report; return its exit code, or 1 for an assertion that failed.

    Raises:
        ReportError: a report failed, or its trace cannot be written. The exit code is 1 where the
            program succeeded and something was asked of the report.
    """
    from jaxcache.warm.child.launch import RunCallbacks

    check = placed.check_contents
    try:
        report = start(program, placed, RunCallbacks(import_report))
        with reporting(report.script_exit_code):
            view = runner.views.report_view(report, unfolded=extent.all)
            with _whatever_reads():
                if form.is_json or form is Format.KEYS:
                    emit(form, view)
                else:
                    print_blocks(view.page or (), sys.stderr)
            if extent.trace is not None:
                write_text(extent.trace, json.dumps(report.trace))
    except ReportError as error:
        requested = (wanted.fail_on_miss, placed.guard, placed.record, extent.trace)
        if wanted.strict or check or any(r is not None for r in requested):
            error.exit_code = error.exit_code or ExitCode.PROBLEMS
        raise
    if report.script_exit_code:
        return shell_code(report.script_exit_code)
    from jaxcache.render.warm import failed_assertions

    if failed := list(failed_assertions(report, wanted, check=check, fills=fills)):
        with _whatever_reads():
            if form is not Format.JSON:
                note(*(f"failed: {sentence}" for sentence in failed))
        return ExitCode.PROBLEMS
    return ExitCode.DONE


def warm(
    *,
    script: str | None = option(
        "script [SCRIPT|MODULE:FUNCTION]",
        "The Python script to run, or a function to compile without running it.",
        show_default=False,
    ),
    arguments: list[str] | None = option(
        "arguments [ARG]...", "Arguments of the script.", TEXTS, show_default=False
    ),
    module: str | None = options_run.MODULE,
    place: RunLocation,
    wanted: options_run.Assertions,
    options: options_run.WarmOptions,
    call: options_run.CallOptions,
    extent: options_run.ReportOptions,
    output: Output,
) -> int:
    """Fill the cache: run a script or compile a function, and report each compile.

    SCRIPT may also be a notebook, or a directory with a __main__.py.

    The script runs unchanged in its own Python, with its own input and output. JAX's
    thresholds are off, so that short compiles are cached, too. The report goes to standard error;
    with --json it goes to standard output, and the script's output to standard error.

    Where the script fails, warm ends with the script's exit code, or with 128 + N if signal N
    ended it: 139 is a crash, which Ctrl-C during a compile can cause.

    MODULE:FUNCTION (or FILE.py:FUNCTION) is compiled for the shapes of --arg, and not run.
    """
    form = output.form
    wanted.check()
    runner, placed = place_run(options, place, form)
    program = program_of(script, arguments, call, module=module)
    if placed.jax_cache_dir is None and place.layout in (None, "jax"):
        note(
            "note: this run fills nothing and exits with 1 unless the program sets a cache "
            "directory; export JAX_COMPILATION_CACHE_DIR=DIR before it, or add -C DIR"
        )
    start = runner.runs.warm_program
    return _carry_out(start, program, placed, runner, wanted, form, extent, fills=True)


def run(
    *,
    command_line: list[str] = option("command_line CMD...", "The command, after --.", TEXTS),
    place: RunLocation,
    wanted: options_run.Assertions,
    options: options_run.RunOptions,
    extent: options_run.ReportOptions,
    output: Output,
) -> int:
    """Run any command with the cache on, and report each compile.

    JAX's thresholds stay in effect: JAX does not write compiles shorter than 1 s (jaxcache warm
    does). With --processes the command runs N times; in each, the first Python that imports jax
    is one of the N processes. The exit code is the command's own (128 + N if signal N ended
    it), or 1 where an assertion such as --fail-on-miss fails.
    """
    form = output.form
    wanted.check()
    runner, placed = place_run(options, place, form)
    return _carry_out(runner.runs.run_command, command_line, placed, runner, wanted, form, extent)


def compile_(
    *,
    recipe: str = option("recipe RECIPE", "A recipe written by warm --record."),
    place: CacheDir,
    options: options_run.CompileOptions,
    output: Output,
) -> int:
    """Compile a recorded recipe into a cache, without its script.

    What the cache has already is left alone. Workers are processes with the devices, flags and
    settings that were recorded; a module that kills its worker is tried once more and then named.
    """
    from jaxcache.render.recipe import compile_view

    form = output.form
    report = open_handle(place).compile(recipe, watch=show_progress, options=options)
    emit(form, compile_view(report))
    if report.interrupted:
        return ExitCode.INTERRUPTED
    if report.count("failed"):
        return ExitCode.PARTIAL
    return ExitCode.PROBLEMS if report.count("missing") else ExitCode.DONE


@contextlib.contextmanager
def show_progress(plan: "CompilePlan", workers: int) -> Iterator["CompileLine | None"]:
    """Yield a line that shows the progress; None without a terminal that can redraw it."""
    if not can_redraw():
        yield None
        return
    try:
        yield CompileLine([j.seconds for j in plan.jobs], workers)
    finally:
        draw_line("")


class CompileLine:
    """Progress: the modules at work and the time left, estimated from what was recorded.

    Args:
        seconds: what each job is going to take, as recorded.
    """

    def __init__(self, seconds: list[float], workers: int) -> None:
        self._left = sum(seconds)
        self._total = len(seconds)
        self._workers = max(1, min(workers, len(seconds)))
        self._done = 0
        self._did = 0.0
        self._running: dict[int, Job] = {}
        self._started = time.monotonic()
        self._lock = threading.Lock()

    def begin(self, job: "Job") -> None:
        """Show that a worker started a job."""
        with self._lock:
            self._running[id(job)] = job
            self._draw()

    def end(self, job: "Job", result: "CompileResult") -> None:  # noqa: ARG002 (as CompileWatcher has it)
        """Show that a job ended."""
        with self._lock:
            self._running.pop(id(job), None)
            self._done += 1
            self._left -= job.seconds
            self._did += job.seconds
            self._draw()

    def text(self, now: float) -> str:
        """Return the text of the line."""
        bar = progress_line(self._done, self._total)
        # As fast as until now; before anything is done, as fast as recorded.
        pace = (now - self._started) / self._did if self._did else 1 / self._workers
        remaining = f"about {format_duration(max(0.0, self._left) * pace)} left"
        names = ", ".join(j.request.module for j in self._running.values())
        return f"{bar} {remaining}: {names}"

    def _draw(self) -> None:
        draw_line(self.text(time.monotonic()))
