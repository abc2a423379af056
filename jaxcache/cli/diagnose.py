"""`jaxcache doctor`, `where`, `diff` and `bug-report`."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from jaxcache.api.compiling import find_uses, make_bug_report
from jaxcache.api.handle import locate
from jaxcache.cli.opening import open_handle
from jaxcache.cli.output import JsonOutput, Output, emit, note
from jaxcache.errors import ExitCode, InterruptError, NoCacheError, NoJaxError, UsageError
from jaxcache.options import TEXTS, CacheDir, CacheLocation, LayoutChoice, flag, option
from jaxcache.options.run import DoctorOptions, PythonChoice, WhereOptions
from jaxcache.units import format_duration

if TYPE_CHECKING:
    from jaxcache.api.compiling import Use


def doctor(
    *,
    command_line: list[str] | None = option(
        "command_line [-- CMD...]",
        "Run this command first, and examine the cache it uses.",
        TEXTS,
    ),
    place: CacheLocation,
    options: DoctorOptions,
    verbose: bool = flag("--verbose -v", "List all settings, including defaults."),
    output: JsonOutput,
) -> int:
    """Show the settings in effect, and find known problems."""

    cache = open_handle(place)
    if not command_line:
        cache.refuse_caches_below()
    from jaxcache.render.doctor import doctor_view

    diagnosis, report = cache.examine(*(command_line or ()), options=options)
    emit(output.form, doctor_view(diagnosis, verbose=verbose, run=report))
    if not diagnosis.exists and not (report and cache.location.is_unset):
        _ = cache.store  # raises that it does not exist
    if report and report.interrupted:
        raise InterruptError("interrupted; this is what the command did until then")
    if report and (code := report.script_exit_code):
        how = f"exit code {code}" if code > 0 else f"signal {-code}"
        note(f"the command ended with {how}: what it did until then was examined")
        return ExitCode.PROBLEMS
    return ExitCode.PROBLEMS if diagnosis.wrong else ExitCode.DONE


def diff(
    *,
    left: str = option("left A", "A cache directory or a bundle."),
    right: str = option("right B", "The cache directory or bundle to compare with."),
    place: LayoutChoice,
    output: Output,
) -> int:
    """Compare two caches or bundles; exit with 1 if they differ.

    Entries are compared by what they hold, not by how they are compressed.
    """
    from jaxcache.render.doctor import diff_view

    cache, other = (open_handle(side, place.layout) for side in (left, right))
    difference = cache.diff(other)
    emit(output.form, diff_view(difference))
    return ExitCode.DONE if difference.equal else ExitCode.PROBLEMS


def bug_report(*, place: CacheDir, chosen: PythonChoice, output: JsonOutput) -> None:
    """Print what a bug report needs, as Markdown, without paths, names or keys."""
    from jaxcache.render.doctor import bug_report_view

    report = make_bug_report(lambda: open_handle(place, "jax"), chosen.python)
    emit(output.form, bug_report_view(report))


def where(
    *,
    command_line: list[str] | None = option(
        "command_line [-- CMD...]", "The command to run.", TEXTS
    ),
    chosen_place: CacheDir,
    options: WhereOptions,
    wanted: JsonOutput,
) -> None:
    """Print the cache directory, or the one that a command uses.

    With a command, what it prints goes to standard error.
    """
    from jaxcache.render.columns import text_column
    from jaxcache.render.view import Line, View, versioned

    def show(
        cache_dir: str | None, places: list[str], uses: "Sequence[Use]" = (), note: str = ""
    ) -> None:
        columns = [text_column("", lambda place: place)]
        document = {"cache_dir": cache_dir, "processes": uses}
        records = uses if command_line else [versioned(document)]
        page = [Line(place, whole=True) for place in places]
        notes = [note] if note else []
        emit(wanted.form, View(document, places, columns, records=records, page=page, notes=notes))

    if not command_line:
        if options.stop or options.timeout_seconds:
            raise UsageError("--stop and --timeout need a command after --")
        place = locate(chosen_place.cache_dir)
        unset = "JAX_COMPILATION_CACHE_DIR is not set, so JAX itself has no cache directory"
        show(place.path, [place.path], note=unset if place.is_unset else "")
        return
    if chosen_place.cache_dir:
        raise UsageError("--cache-dir does not go with a command: it runs as it is")
    uses, unobserved = find_uses(command_line, options)
    if unobserved and not uses:
        raise NoJaxError(unobserved, code="unknown-jax")
    opened = list(dict.fromkeys(u.opened for u in uses if u.opened))
    show(opened[0] if opened else None, opened, uses)
    if not opened:
        setting = next((u.setting for u in uses if u.setting), None)
        why = "JAX opened no cache directory" if uses else "no Python below it imported jax"
        if options.timeout_seconds:
            why += f" within {format_duration(options.timeout_seconds)}"
        hint = f"it compiled nothing, and would use {setting}" if setting else None
        raise NoCacheError(f"{command_line[0]}: {why}", code="no-cache-used", hint=hint)
