"""Common parts of ``warm`` and ``run``: options, the report, the exit code."""

import contextlib
import json
import os
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar

from jaxcache.api.compiling import Runner, runner_of
from jaxcache.cli.opening import note_foreign, open_handle
from jaxcache.cli.options import Format
from jaxcache.cli.terminal import silence
from jaxcache.errors import ExitCode, ReportError, UsageError, reporting, shell_code
from jaxcache.options import CacheLocation
from jaxcache.options.run import Assertions, CallOptions, ReportOptions, RunOptions, WarmOptions
from jaxcache.store import check_made, check_tier, is_remote
from jaxcache.store.location import absolute_location
from jaxcache.warm.programs import WarmProgram, names_function, read_call

if TYPE_CHECKING:
    from jaxcache.warm.report.report import Report
    from jaxcache.warm.torch.report import TorchReport

RunOptionsT = TypeVar("RunOptionsT", bound=RunOptions)


def import_report() -> None:
    """Import what prints the report while the program runs, so that it takes no time afterwards.

    Nothing is drawn meanwhile: the terminal is the program's, and what it prints cannot be seen.
    """
    import jaxcache.cli.output
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
    from jaxcache.cli.output import note

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
            if isinstance(options, WarmOptions) and not os.listdir(path):
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
    call: CallOptions,
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
        raise UsageError(
            "name a script, or a module with -m", hint="jaxcache warm --help lists its options"
        )
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


@contextlib.contextmanager
def checking(wanted: Assertions, options: RunOptions, extent: ReportOptions) -> Iterator[None]:
    """Exit with 1 where the program succeeded, and a report that was asked for something failed."""
    try:
        yield
    except ReportError as error:
        requested = (wanted.fail_on_miss, options.guard, options.record, extent.trace)
        if wanted.strict or options.check_contents or any(r is not None for r in requested):
            error.exit_code = error.exit_code or ExitCode.PROBLEMS
        raise


def finish(
    report: "Report | TorchReport",
    wanted: Assertions,
    form: Format,
    runner: "Runner",
    *,
    check: bool,
    extent: ReportOptions,
    fills: bool = False,
) -> int:
    """Print the report; return the program's exit code, or 1 for an assertion that failed.

    Raises:
        ReportError: the trace cannot be written.
    """
    from jaxcache.cli.output import emit, note, print_blocks, write_text
    from jaxcache.render.warm import failed_assertions

    with reporting(report.script_exit_code):
        view = runner.report_view(report, unfolded=extent.all)
        with _whatever_reads():
            if form.is_json or form is Format.KEYS:
                emit(form, view)
            else:
                print_blocks(view.page or (), sys.stderr)
        if extent.trace is not None:
            write_text(extent.trace, json.dumps(report.trace))
    if report.script_exit_code:
        return shell_code(report.script_exit_code)
    if failed := list(failed_assertions(report, wanted, check=check, fills=fills)):
        with _whatever_reads():
            if form is not Format.JSON:
                note(*(f"failed: {sentence}" for sentence in failed))
        return ExitCode.PROBLEMS
    return ExitCode.DONE
