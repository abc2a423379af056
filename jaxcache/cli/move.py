"""`jaxcache export`, `import`, `push`, `pull`, `copy`, and `ci`, the steps of a CI job."""

import os
import secrets
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from jaxcache.api import Cache
from jaxcache.api.bundles import check_signed, open_input, rewrite_bundle
from jaxcache.cli.opening import check_local, open_handle, open_target
from jaxcache.cli.output import Format, JsonOutput, Output, emit, note, write_text
from jaxcache.cli.terminal import confirm
from jaxcache.errors import ExitCode, JaxcacheError, UsageError
from jaxcache.options import CacheDir, CacheLocation, ConfirmOptions, DryRun, Options, move, option
from jaxcache.options.move import RestoreOptions, SaveOptions
from jaxcache.options.run import KeyOptions
from jaxcache.store.location import VARIABLE, expand_location

if TYPE_CHECKING:
    from jaxcache.api.bundles import Bundle, Verdict, WrittenBundle
    from jaxcache.api.moving import Arrival, Plan
    from jaxcache.render.ci import StepReport


def export(
    *,
    file: str = option("file FILE", "The bundle to write; - for stdout."),
    place: CacheLocation,
    options: move.ExportOptions,
    output: Output,
) -> int:
    """Write entries to one compressed, checkable file.

    JAX 0.4.36 to 0.10 puts the cache's path into its keys: keep the same path, or fill the cache
    from the start with jaxcache warm --portable SCRIPT and use it with --portable, too. For plain
    JAX, set JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES=none in both places.
    """
    form = output.form
    if file == "-" and (form is Format.TABLE or form.is_json or form is Format.KEYS):
        raise UsageError(
            "a bundle on standard output needs a pipe, without --json, --jsonl or --quiet"
        )
    return _report_bundle(open_handle(place).export_chosen(file, options=options), form)


def import_(
    *,
    file: str = option("file FILE", "The bundle; - for stdin."),
    place: CacheLocation,
    options: move.ImportOptions,
    needed: move.CompatibilityOptions,
    dry: DryRun,
    output: Output,
) -> int:
    """Check a bundle, and add its entries to a cache.

    The bundle is checked from end to end before anything is written. With --python,
    --require-compatible or --dry-run a jax is started, and what will hit here is forecast.

    JAX 0.4.36 to 0.10 puts the cache's path into its keys: keep the same path, or fill the cache
    from the start with jaxcache warm --portable SCRIPT and use it with --portable, too. For plain
    JAX, set JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES=none in both places.
    """
    with open_input(file) as bundle:
        verdict = _check_bundle(bundle, required=options.require_signed)
        target = open_target(place, place.layout, bundle.manifest.layout)
        arrival = target.import_and_forecast(
            bundle, verdict, options=options, needed=needed, dry_run=dry.dry_run
        )
    return _report_arrival(arrival, output.form)


def _report_bundle(written: "WrittenBundle", form: Format) -> ExitCode:
    """Report a bundle; return the exit code."""
    from jaxcache.render.move import export_view, left_out_lines

    note(*left_out_lines(written.left))
    emit(form, export_view(written))
    return ExitCode.PARTIAL if written.left_out else ExitCode.DONE


def _check_bundle(bundle: "Bundle", *, required: bool) -> "Verdict":
    """Check the signatures of a bundle, and warn."""
    from jaxcache.render.move import trust_lines

    verdict = check_signed(bundle, required=required)
    note(*trust_lines(bundle.name, verdict))
    return verdict


def _report_arrival(arrival: "Arrival", form: Format, *, synced: bool = False) -> int:
    """Report what came into a cache, and what will hit there; return the exit code.

    Args:
        synced: whether it was pushed or pulled, and not copied.
    """
    from jaxcache.render.move import (
        forecast_line,
        forecast_note,
        import_view,
        left_out_lines,
        sync_view,
    )

    note(*(f"warning: {w}" for w in arrival.warnings), *left_out_lines(arrival.left_out))
    if arrival.outlooks and form.is_text:
        say = forecast_line if arrival.is_forecast and arrival.outlooks.host else forecast_note
        note(*filter(None, [say(arrival.outlooks)]))
    emit(form, sync_view(arrival) if synced else import_view(arrival))
    return arrival.done.exit_code


def _sync(
    source: Cache,
    target: Cache,
    options: move.SyncOptions,
    form: Format,
    consent: ConfirmOptions,
    *,
    pulls: bool = False,
) -> int:
    """Send what the target lacks, ask where something would be removed, and report it."""

    def confirm_removals(plan: "Plan") -> None:
        from jaxcache.render.maintain import removals_table

        if not consent.yes:
            note(removals_table(plan.removals, time.time_ns()))
            confirm(f"Remove these from {plan.target}?", "nothing was changed")

    arrival = source.push_and_forecast(
        target, options=options, confirm=confirm_removals, pulls=pulls, dry_run=consent.dry_run
    )
    return _report_arrival(arrival, form, synced=source.layout.single_file_entries)


_URL = option("url URL", "s3://, gs://, az://, or a path.")


def push(
    *,
    url: str = _URL,
    place: CacheLocation,
    options: move.PushOptions,
    consent: ConfirmOptions,
    output: Output,
) -> int:
    """Upload the entries that another cache lacks.

    Entries of the target are never replaced.

    JAX 0.4.36 to 0.10 puts the cache's path into its keys: keep the same path, or fill the cache
    from the start with jaxcache warm --portable SCRIPT and use it with --portable, too. For plain
    JAX, set JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES=none in both places.
    """
    form = output.form
    if options.make_room:
        if options.max_size_bytes is None:
            hint = "set the limit of the target"
            raise UsageError("--prune-remote needs --max-size", hint=hint)
        consent.check()
    source = open_handle(place)
    target = open_target(url, place.layout, source.layout.name)
    return _sync(source, target, options, form, consent)


def pull(
    *, url: str = _URL, place: CacheLocation, options: move.SyncOptions, dry: DryRun, output: Output
) -> int:
    """Download the entries that this cache lacks.

    Each entry is checked on arrival; a sound one here is never replaced.

    JAX 0.4.36 to 0.10 puts the cache's path into its keys: keep the same path, or fill the cache
    from the start with jaxcache warm --portable SCRIPT and use it with --portable, too. For plain
    JAX, set JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES=none in both places.
    """
    source = open_handle(url, place.layout)
    source.request_listings()
    source.require_there()
    target = open_target(place, place.layout, source.layout.name)
    consent = ConfirmOptions(dry_run=dry.dry_run, yes=True)
    return _sync(source, target, options, output.form, consent, pulls=True)


def copy(
    *,
    source: str = option("source SRC", "A cache directory or a bundle."),
    target: str = option("target DST", "A cache directory, or a bundle (FILE.jxb)."),
    options: move.CopyOptions,
    dry: DryRun,
    output: Output,
) -> int:
    """Copy entries between caches and bundles.

    Every byte is checked on the way.

    JAX 0.4.36 to 0.10 puts the cache's path into its keys: keep the same path, or fill the cache
    from the start with jaxcache warm --portable SCRIPT and use it with --portable, too. For plain
    JAX, set JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES=none in both places.
    """
    cache = open_handle(source, options.layout)
    to_bundle = open_handle(target).is_bundle_name
    from_bundle = cache.kind == "bundle"
    form = output.form
    _check_options(options, from_bundle=from_bundle, to_bundle=to_bundle, dry_run=dry.dry_run)
    if to_bundle and not from_bundle:
        return _report_bundle(cache.export_chosen(target, options=options), form)
    if not from_bundle:
        place = open_target(target, None, cache.layout.name)
        return _report_arrival(cache.copy(place, options=options, dry_run=dry.dry_run), form)
    with open_input(source) as bundle:
        verdict = _check_bundle(bundle, required=options.require_signed)
        if to_bundle:
            return _report_bundle(rewrite_bundle(bundle, target), form)
        place = open_target(target, None, bundle.manifest.layout)
        arrival = place.import_and_forecast(bundle, verdict, options=options, dry_run=dry.dry_run)
        return _report_arrival(arrival, form)


#: The options that reading or writing a bundle knows; a copy between directories knows all.
_FROM_BUNDLE = frozenset(
    {"layout", "on_conflict", "atomic", "side_caches", "allow_large", "require_signed", "jobs"}
)
_TO_BUNDLE = frozenset(
    {"layout", "include", "exclude", "filters", "side_caches", "allow_large", "sign"}
)


def _check_options(
    options: move.CopyOptions, *, from_bundle: bool, to_bundle: bool, dry_run: bool
) -> None:
    """Refuse options that a copy from or to a bundle would ignore.

    Raises:
        UsageError
    """
    chosen = options.given()
    if from_bundle and (refused := [o for name, o in chosen if name not in _FROM_BUNDLE]):
        raise UsageError(
            f"{refused[0].names[0]} is for copies from a directory",
            hint="a bundle is copied whole: import it, and copy from there",
        )
    names = [o.names[0] for name, o in chosen if name not in _TO_BUNDLE]
    if to_bundle and (names or dry_run):
        raise UsageError(f"{[*names, '--dry-run'][0]} is for copies into a directory")


class StepFiles(Options):
    """Files that the steps after this one, and people, read."""

    outputs: str | None = option(
        "--outputs FILE", "Append JAXCACHE_NAME=value lines, for GitLab's dotenv reports."
    )
    summary: str | None = option(
        "--summary FILE", "Append a Markdown summary (default: $GITHUB_STEP_SUMMARY, if set)."
    )


def ci_key(place: CacheDir, options: KeyOptions, output: JsonOutput) -> None:
    """Print a key for the CI system's cache, from everything that JAX's keys depend on.

    JAX 0.4.36 to 0.10 puts the cache's path into its keys: give every job the same path, or set
    JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES=none in each.
    """
    from jaxcache.render.ci import key_view

    cache = open_handle(place)
    key = cache.ci.key(options)
    emit(output.form, key_view(cache.location.path, key, restore_keys=options.restore_keys))
    _write_outputs({"key": key.key, "restore-keys": "\n".join(key.restore_keys)})


def ci_restore(
    *,
    source: str = option("source SOURCE", "A bundle, a directory, or a URL."),
    place: CacheDir,
    options: RestoreOptions,
    files: StepFiles,
    output: Output,
) -> int:
    """Add the entries that can hit here to the cache, before the job.

    A source that is missing or damaged is a cache miss, not an error.
    """
    cache = open_handle(place)
    location = expand_location(source)
    check_local(cache.location.path, location)
    from jaxcache.render.ci import restore_step

    restored = cache.ci.restore(location, options)
    _report(restore_step(restored), output, files, restored.cache_dir)
    if options.fail_on_cache_miss and not restored.hit:
        raise JaxcacheError(f"nothing in {source} fits this job", code="cache-miss")
    return ExitCode.PARTIAL if restored.unwritten else ExitCode.DONE


def ci_save(
    *,
    target: str = option("target TARGET", "A bundle (FILE.jxb), a directory, or a URL."),
    place: CacheDir,
    options: SaveOptions,
    files: StepFiles,
    dry: DryRun,
    output: Output,
) -> int:
    """Save the entries that the job used, if it compiled anything new."""
    from jaxcache.render.ci import save_step

    cache = open_handle(place)
    location = expand_location(target)
    check_local(cache.location.path, location)
    plan = cache.ci.plan_save(location, options)
    saved = cache.ci.save(plan, options, dry_run=dry.dry_run)
    is_unused = not (plan.usage.new or plan.usage.used)
    _report(save_step(saved), output, files, plan.cache_dir if is_unused else None)
    return ExitCode.DONE if saved.complete else ExitCode.PARTIAL


def _report(step: "StepReport", output: Output, files: StepFiles, cache_dir: str | None) -> None:
    """Print the report of a step, and append its outputs and its summary to their files.

    Args:
        cache_dir: how plain Python finds it is said where this step's environment leads elsewhere.

    Raises:
        UsageError: ``cannot-write``
    """
    emit(output.form, step.view)
    named = os.environ.get(VARIABLE)
    if cache_dir and not (named and os.path.realpath(named) == os.path.realpath(cache_dir)):
        value = f"is {named}" if named else "is not set"
        note(f"{VARIABLE} {value} in this step; plain Python needs {VARIABLE}={cache_dir}")
    _write_outputs(step.outputs, files.outputs)
    if path := files.summary or os.environ.get("GITHUB_STEP_SUMMARY"):
        write_text(path, step.summary + "\n", "a")


def _write_outputs(outputs: Mapping[str, str], file: str | None = None) -> None:
    """Hand outputs to the steps that follow: to GitHub's runner, and to ``file``.

    Raises:
        UsageError: ``cannot-write``
    """
    from jaxcache.render.ci import dotenv, github_outputs

    if path := os.environ.get("GITHUB_OUTPUT"):
        write_text(path, github_outputs(outputs, f"jaxcache-{secrets.token_hex(16)}"), "a")
    if file:
        write_text(file, dotenv(outputs), "a")
