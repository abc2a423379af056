"""`jaxcache warm`, `run` and `compile`, and the profiles of `target`."""

import contextlib
import sys
from collections.abc import Iterator, Sequence

from jaxcache.api.compiling import Runner, capture_target, compare_target
from jaxcache.api.handle import locate
from jaxcache.cli.opening import open_handle
from jaxcache.cli.output import (
    Format,
    JsonOutput,
    Output,
    emit,
    note,
    print_blocks,
    write_file,
    write_text,
)
from jaxcache.cli.terminal import silence
from jaxcache.errors import ExitCode, ReportError, reporting, shell_code
from jaxcache.options import TEXTS, CacheDir, RunLocation, option
from jaxcache.options import run as options_run
from jaxcache.warm.programs import WarmProgram, program_of


def import_report() -> None:
    """Import what prints the report while the program runs, so that it takes no time afterwards.

    Nothing is drawn meanwhile: the terminal is the program's, and what it prints cannot be seen.
    """
    import jaxcache.render.typeset
    import jaxcache.render.warm  # noqa: F401


@contextlib.contextmanager
def _whatever_reads() -> Iterator[None]:
    """Print although the reader may have gone (``| head``): the exit code still counts."""
    try:
        yield
    except BrokenPipeError:
        silence(sys.stdout)
        silence(sys.stderr)


def _carry_out(
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
    check = placed.check_contents
    try:
        report = runner.start(program, placed, import_report)
        with reporting(report.script_exit_code):
            view = runner.views.report_view(report, unfolded=extent.all)
            with _whatever_reads():
                if form.is_json or form is Format.KEYS:
                    emit(form, view)
                else:
                    print_blocks(view.page or (), sys.stderr)
            if extent.trace is not None:
                import json

                write_text(extent.trace, json.dumps(report.trace))
    except ReportError as error:
        requested = (wanted.fail_on_miss, placed.guard, placed.record, extent.trace)
        if wanted.strict or check or any(r is not None for r in requested):
            error.exit_code = error.exit_code or ExitCode.PROBLEMS
        raise
    from jaxcache.render.warm import failed_assertions

    failed = list(failed_assertions(report, wanted, check=check, fills=fills))
    # A signal is the usual end of a server. A program that fails by itself has said why.
    if failed and report.script_exit_code <= 0 and form is not Format.JSON:
        with _whatever_reads():
            note(*(f"failed: {sentence}" for sentence in failed))
    if report.script_exit_code:
        return shell_code(report.script_exit_code)
    return ExitCode.PROBLEMS if failed else ExitCode.DONE


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
    runner, placed = open_handle(place).place_run(options, for_reader=form.is_text)
    program = program_of(script, arguments, call, module=module)
    if placed.jax_cache_dir is None and place.layout in (None, "jax"):
        note(
            "note: this run fills nothing and exits with 1 unless the program sets a cache "
            "directory; export JAX_COMPILATION_CACHE_DIR=DIR, or add -C DIR before the script"
        )
    return _carry_out(program, placed, runner, wanted, form, extent, fills=True)


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
    runner, placed = open_handle(place).place_run(options, for_reader=form.is_text)
    return _carry_out(command_line, placed, runner, wanted, form, extent)


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
    report = open_handle(place).compile(recipe, options=options)
    emit(form, compile_view(report))
    if report.interrupted:
        return ExitCode.INTERRUPTED
    if report.count("failed"):
        return ExitCode.PARTIAL
    return ExitCode.PROBLEMS if report.count("missing") else ExitCode.DONE


def target_capture(
    *,
    file: str = option(
        "file [FILE|DIR/]",
        "The profile to write (- for stdout); a directory, for each process of a pod.",
        default="-",
    ),
    choice: options_run.PythonChoice,
) -> None:
    """Save a profile of this host: everything that its cache keys depend on.

    With it, warm --target fills a cache for this host on a machine without its hardware.

    With DIR/ this is one process of a program of several hosts: run it on all of them at once, as
    the program is started. Each waits for the others, and writes a file of its own.
    """
    file, profile = capture_target(file, choice.python)
    write_file(file, [profile.to_bytes()])
    fingerprint = profile.topology_fingerprint or "unknown"
    note(f"{profile.devices} with jax {profile.jax_version}, fingerprint {fingerprint}")


def target_check(
    *,
    file: str = option(
        "file FILE|DIR", "The profile, or those of a pod, that the cache was warmed for."
    ),
    place: CacheDir,
    choice: options_run.PythonChoice,
    output: JsonOutput,
) -> int:
    """Count the cache entries whose keys match this host; run it on the target.

    Compares the key components of this host with the profile, and compiles nothing. Exits with 1 if
    no entry matches. With the DIR of a pod, run it on all of its hosts at once.
    """
    from jaxcache.render.target import check_view

    cache = open_handle(place)
    checked = cache.check_target(file, python=choice.python)
    emit(output.form, check_view(checked, cache.store.url))
    return ExitCode.DONE if checked.looked_up else ExitCode.PROBLEMS


def target_show(
    *,
    file: str = option("file FILE", "A profile written by target capture."),
    choice: options_run.PythonChoice,
    output: JsonOutput,
) -> int:
    """Show a target profile, what it sets, and how this host differs."""
    from jaxcache.render.target import profile_view

    profile, differences, why = compare_target(file, choice.python)
    if differences is None:
        note(f"not compared with this host: {why}; --python names a Python with jax")
    emit(output.form, profile_view(profile, differences, locate(None).path))
    return ExitCode.PROBLEMS if any(d.prevents for d in differences or ()) else ExitCode.DONE
