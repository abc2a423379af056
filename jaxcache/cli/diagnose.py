"""`jaxcache doctor`, `where`, `diff` and `bug-report`."""

import os
import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from jaxcache import __version__
from jaxcache.api.compiling import runner_of
from jaxcache.api.handle import refuse_foreign
from jaxcache.cli.opening import open_handle
from jaxcache.cli.output import JsonOutput, Output, emit
from jaxcache.errors import ExitCode, JaxcacheError, NoCacheError, NoJaxError, UsageError
from jaxcache.options import TEXTS, CacheDir, CacheLocation, DryRun, LayoutChoice, flag, option
from jaxcache.options.run import DoctorOptions, PythonChoice, RunOptions, WhereOptions
from jaxcache.store import open_store
from jaxcache.units import format_duration

if TYPE_CHECKING:
    from jaxcache.warm.report.report import Report
    from jaxcache.warm.where import Use


def doctor(
    *,
    command_line: list[str] | None = option(
        "command_line [-- CMD...]",
        "Run this command first, and examine the cache it uses.",
        TEXTS,
    ),
    place: CacheLocation,
    options: DoctorOptions,
    dry: DryRun,
    verbose: bool = flag("--verbose -v", "List all settings, including defaults."),
    output: JsonOutput,
) -> int:
    """Show the settings in effect, and find known problems."""

    if dry.dry_run and not options.fix:
        raise UsageError("--dry-run needs --fix")
    cache = open_handle(place)
    if not command_line:
        cache.refuse_caches_below()
    from jaxcache.render.doctor import doctor_view
    from jaxcache.warm.report.notes import judge_run
    from jaxcache.warm.where import find_where

    path = cache.location.path
    uses: tuple[Use, ...] = ()
    report: Report | None = None
    refused: Counter[tuple[str, str]] = Counter()
    if cache.compiler == "torch":
        options.check_known("torch", ())
        if command_line:
            run = RunOptions(cache_dir=cache.path, stdout_to_stderr=True)
            looks = runner_of("torch").runs.run_command(command_line, run).modules
            refused.update((m.outcome, m.reason) for m in looks if m.outcome not in _LOOKED)
    else:
        if place.cache_dir and cache.kind == "bundle":
            raise UsageError(
                f"{path} is a bundle, not a cache directory",
                code="not-a-directory",
                hint=f"look into a bundle with: jaxcache show {shlex.quote(path)}",
            )
        if place.cache_dir and os.path.isdir(path):
            refuse_foreign(path)
        if command_line:
            variables = {"JAX_COMPILATION_CACHE_DIR": path} if place.cache_dir else {}
            uses, _, report = find_where(command_line, environment=variables, stdout_to_stderr=True)
    used = next((u for u in uses if u.opened), next(iter(uses), None))
    if used and used.opened and not place.cache_dir:
        cache = open_handle(used.opened, "jax")
    diagnosis = cache.diagnose(used=used, refused=refused, dry_run=dry.dry_run, options=options)
    if report:
        diagnosis = replace(diagnosis, findings=judge_run(report, diagnosis.findings))
    emit(output.form, doctor_view(diagnosis, verbose=verbose, run=report))
    if not diagnosis.exists:
        open_store(cache.location.path)  # raises that it does not exist
    return ExitCode.PROBLEMS if diagnosis.wrong else ExitCode.DONE


#: The outcomes of looks that torch made.
_LOOKED = ("hit", "miss")


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
    from jaxcache.cache.doctor.run_checks import make_bug_report, read_versions
    from jaxcache.render.doctor import bug_report_view

    diagnosis = error_code = None
    try:
        cache = open_handle(place, "jax")
        cache.refuse_caches_below()
        diagnosis = cache.diagnose(options=DoctorOptions(python=chosen.python))
    except JaxcacheError as error:
        error_code = error.code
    report = make_bug_report(read_versions(__version__), diagnosis, error_code)
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
    from jaxcache.store.location import locate_cache
    from jaxcache.warm.where import find_where

    def show(cache_dir: str | None, places: list[str], uses: "Sequence[Use]" = ()) -> None:
        columns = [text_column("", lambda place: place)]
        document = {"cache_dir": cache_dir, "processes": uses}
        records = uses if command_line else [versioned(document)]
        page = [Line(place, whole=True) for place in places]
        emit(wanted.form, View(document, places, columns, records=records, page=page))

    if not command_line:
        if options.stop or options.timeout_seconds:
            raise UsageError("--stop and --timeout need a command after --")
        path = locate_cache(chosen_place.cache_dir).path
        show(path, [path])
        return
    if chosen_place.cache_dir:
        raise UsageError("--cache-dir does not go with a command: it runs as it is")
    uses, unobserved, _ = find_where(command_line, options, stdout_to_stderr=True)
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
