"""`jaxcache export`, `import`, `push`, `pull`, `copy`, and `ci`, the steps of a CI job."""

import os
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from jaxcache.api import Cache
from jaxcache.api.moving import check_signed, open_input, resumable, rewrite_bundle
from jaxcache.cli.opening import check_local, open_handle, open_target
from jaxcache.cli.output import Format, JsonOutput, Output, emit, note, write_text
from jaxcache.cli.terminal import confirm
from jaxcache.errors import ExitCode, JaxcacheError, NoJaxError, UsageError
from jaxcache.options import CacheDir, CacheLocation, ConfirmOptions, DryRun, Options, move, option
from jaxcache.options.move import RestoreOptions, SaveOptions
from jaxcache.options.run import KeyOptions, job_environment
from jaxcache.store import is_remote
from jaxcache.store.location import VARIABLE, expand_location

if TYPE_CHECKING:
    from jaxcache.cache.bundle.compat import Compatibility, Host
    from jaxcache.cache.bundle.format import Bundle
    from jaxcache.cache.move.export_plan import ExportPlan
    from jaxcache.cache.move.plan import Plan, Step
    from jaxcache.cache.trust import Verdict
    from jaxcache.model import Problem
    from jaxcache.render.ci import StepReport
    from jaxcache.store.base import Store


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
    from jaxcache.cache.move.bundle_file import check_file_name

    if file != "-":
        check_file_name(file)
    cache = open_handle(place)
    return _deliver(cache, cache.plan_export(options=options), file, form, options)


def import_(
    *,
    file: str = option("file FILE", "A bundle, or artifacts saved by torch.compiler; - for stdin."),
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
    with open_input(file) as (bundle, left_out):
        verdict = _check_bundle(bundle, left_out, required=options.require_signed)
        target = open_target(place, place.layout, bundle.manifest.layout)
        form = output.form
        code = _receive(target, bundle, form, options, verdict, needed, dry_run=dry.dry_run)
    return ExitCode.PARTIAL if left_out and code == ExitCode.DONE else code


def _deliver(
    cache: Cache,
    plan: "ExportPlan",
    file: str,
    form: Format,
    options: move.ExportOptions | move.CopyOptions,
) -> ExitCode:
    """Write the bundle and report it; return the exit code."""
    from jaxcache.render.move import export_view, left_out_lines

    note(*(f"warning: {warning}" for warning in plan.warnings))
    level = options.level if isinstance(options, move.ExportOptions) else None
    written = cache.write_bundle(plan, file, level=level, sign=options.sign)
    note(*left_out_lines(written.left))
    emit(form, export_view(written))
    return ExitCode.PARTIAL if written.left_out else ExitCode.DONE


def _check_bundle(
    bundle: "Bundle", left_out: "Sequence[Problem]" = (), *, required: bool
) -> "Verdict":
    """Check the signatures of a bundle, and warn."""
    from jaxcache.render.move import left_out_lines, trust_lines

    verdict = check_signed(bundle, required=required)
    note(*left_out_lines(left_out), *trust_lines(bundle.name, verdict))
    return verdict


def _receive(
    cache: Cache,
    bundle: "Bundle",
    form: Format,
    options: move.ArrivalOptions,
    verdict: "Verdict",
    needed: move.CompatibilityOptions | None = None,
    *,
    dry_run: bool,
) -> int:
    """Check a bundle, plan, write, and report forecast and result; return the exit code.

    Args:
        cache: where the entries go; its directory need not exist.
        needed: the Python that is to use the cache, and what must be known of it before anything
            is written; None forecasts without it.

    Raises:
        JaxcacheError: ``incompatible``, ``conflict``, ``bad-bundle``.
    """
    from jaxcache.cache.bundle.compat import XLA_CACHES, forecast
    from jaxcache.layouts import load_layout
    from jaxcache.render.move import forecast_line, import_view

    required = needed is not None and needed.require_compatible
    is_jax = load_layout(bundle.manifest.layout).single_file_entries
    if required and not is_jax:
        raise UsageError(
            "--require-compatible is for JAX's entries; torch alone can check its keys"
        )
    target = cache.location.path
    python = needed.python if needed else None
    decides = required or python is not None
    asks_jax = is_jax and needed is not None and (decides or dry_run)
    host: Callable[[], Host | None] = lambda: None  # noqa: E731
    outlooks: Compatibility | None = None

    def check(_: "Plan") -> None:
        nonlocal outlooks
        if decides:
            outlooks = forecast(bundle.manifest, host(), target)
        if outlooks and required and not outlooks.compatible:
            raise JaxcacheError(
                f"not every entry of {bundle.name} is known to hit: {forecast_line(outlooks)}",
                code="incompatible",
                hint=f"set {XLA_CACHES}=none for this command and for the program"
                if any(f.portable for f in outlooks.forecasts)
                else "change what the message names, or import without --require-compatible",
            )

    with ExitStack() as opened:
        if asks_jax:  # which starts while all other work is done
            from jaxcache.warm.child.query import probing_host

            host = opened.enter_context(probing_host(python, required=required))
        with resumable():
            done = cache.receive(bundle, options=options, check=check, dry_run=dry_run)
        outlooks = outlooks or forecast(bundle.manifest, _answer(host), target)
    if is_jax:
        _print_forecast(outlooks, form, expect=asks_jax)
    emit(form, import_view(done, outlooks, verdict, manifest_sha256=bundle.manifest_sha256))
    return done.exit_code


def _answer(host: "Callable[[], Host | None]") -> "Host | None":
    """Wait for the Python that is to use the cache; without jax there, nothing is forecast."""
    try:
        return host()
    except NoJaxError as error:
        note(f"warning: cannot forecast the hits: {error.message}")
        return None


def _print_forecast(outlooks: "Compatibility", form: Format, *, expect: bool = False) -> None:
    """Say what will hit: in any case, or where something will miss."""
    from jaxcache.render.move import forecast_line, forecast_note

    line = forecast_line(outlooks) if expect else forecast_note(outlooks)
    if line and form.is_text:
        note(line)


def _carry(
    source: Cache,
    target: Cache,
    options: move.SyncOptions,
    form: Format,
    consent: ConfirmOptions,
    *,
    pulls: bool = False,
) -> int:
    """Plan, ask where something would be removed, carry over, print; return the exit code.

    Args:
        options: a configuration file, too, can require signatures, of all that comes into a
            directory.
        pulls: the target is where the entries are to be used, and a source without entries is
            none at all.

    Raises:
        NoCacheError: a place cannot be reached, or there is nothing to get.
        UntrustedError: no ``cryptography``, or a list of keys that others may write.
        JaxcacheError: ``read-only``, ``declined``, ``interrupted``.
    """
    from jaxcache.cache.files import nothing_there
    from jaxcache.render.move import sync_view

    if not source.layout.single_file_entries:
        return _copy(source, target, options, form, lacking=True, dry_run=consent.dry_run)
    vouched = is_remote(target.path) or bool(options.sign and not pulls)
    plan = source.plan_push(target, vouched=vouched, options=options)
    if pulls and not plan.entries:
        raise nothing_there(source.store.url)
    place = plan.target if pulls else None
    is_far = source.store.remote
    outlooks = None if is_far else _forecast_steps(source.store, plan.writes, place, form)
    dry_run = consent.dry_run
    if plan.removals and not (dry_run or consent.yes):
        _ask_to_remove(plan)
    with resumable():
        done = source.carry(plan, target, jobs=options.jobs, sign=options.sign, dry_run=dry_run)
    if is_far and target.existing and not (target.existing.remote or done.dry_run):
        # The bytes are here now, so that reading them costs no request.
        outlooks = _forecast_steps(target.existing, done.written, place, form)
    emit(form, sync_view(done, outlooks))
    return done.exit_code


def _forecast_steps(
    store: "Store", steps: "Sequence[Step]", place: str | None, form: Format
) -> "Compatibility":
    """Forecast what will hit, and warn people of what will not."""
    from jaxcache.cache.bundle.compat import forecast_steps

    outlooks = forecast_steps(store, steps, place)
    _print_forecast(outlooks, form)
    return outlooks


def _copy(
    source: Cache,
    target: Cache,
    options: move.SyncOptions,
    form: Format,
    *,
    lacking: bool = False,
    dry_run: bool,
) -> int:
    """Copy entries from one cache into another, and report it; return the exit code."""
    from jaxcache.cache.bundle.compat import forecast_items
    from jaxcache.cache.trust import Verdict
    from jaxcache.render.move import import_view, left_out_lines

    copied = source.copy(target, options=options, lacking=lacking, dry_run=dry_run)
    done = copied.done
    note(*(f"warning: {warning}" for warning in copied.warnings), *left_out_lines(copied.left_out))
    outlooks = forecast_items((step.item for step in done.steps), None, target.location.path)
    if source.layout.single_file_entries:
        _print_forecast(outlooks, form)
    ours = Verdict(("this machine",), ())
    emit(form, import_view(done, outlooks, ours, manifest_sha256=copied.bundle_sha256))
    return done.exit_code


def _ask_to_remove(plan: "Plan") -> None:
    from jaxcache.render.maintain import removals_table

    note(removals_table(plan.removals, time.time_ns()))
    confirm(f"Remove these from {plan.target}?", "nothing was changed")


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
    return _carry(source, target, options, form, consent)


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
    from jaxcache.cache.files import nothing_there

    form = output.form
    path = source.location.path
    if not (is_remote(path) or os.path.exists(path)):
        raise nothing_there(path)
    target = open_target(place, place.layout, source.layout.name)
    consent = ConfirmOptions(dry_run=dry.dry_run, yes=True)
    return _carry(source, target, options, form, consent, pulls=True)


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
    from jaxcache.cache.bundle.format import is_bundle
    from jaxcache.cache.move.bundle_file import check_file_name, is_bundle_name

    to_bundle = is_bundle_name(target)
    from_bundle = is_bundle(source)
    _check_options(options, from_bundle=from_bundle, to_bundle=to_bundle, dry_run=dry.dry_run)
    if to_bundle:
        check_file_name(target)
    if from_bundle:
        return _copy_bundle(source, target, options, output.form, dry_run=dry.dry_run)
    cache = open_handle(source, options.layout)
    if to_bundle:
        return _deliver(cache, cache.plan_offer(options), target, output.form, options)
    place = open_target(target, None, cache.layout.name)
    return _copy(cache, place, options, output.form, dry_run=dry.dry_run)


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


def _copy_bundle(
    source: str, target: str, options: move.CopyOptions, form: Format, *, dry_run: bool
) -> int:
    """Copy a bundle to another file, or what it holds into a cache."""
    from jaxcache.cache.move.bundle_file import is_bundle_name
    from jaxcache.render.move import export_view

    with open_input(source) as (bundle, _):
        verdict = _check_bundle(bundle, required=options.require_signed)
        if is_bundle_name(target):
            emit(form, export_view(rewrite_bundle(bundle, target)))
            return ExitCode.DONE
        place = open_target(target, None, bundle.manifest.layout)
        arrival = move.ArrivalOptions.of(options)
        return _receive(place, bundle, form, arrival, verdict, dry_run=dry_run)


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

    JAX 0.4.36 to 0.10 puts the cache's path into its keys: give every job the same path, or fill
    the cache with warm --portable.
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
    with ExitStack() as opened:
        host: Any = lambda: None  # noqa: E731
        anything = is_remote(location) or location == "-" or os.path.lexists(location)
        if anything and (options.python is not None or not options.everything):
            from jaxcache.warm.child.query import probing_host

            environment = job_environment(options.platform)
            host = opened.enter_context(probing_host(options.python, environment=environment))
        # Imported while the jax of the job starts.
        from jaxcache.render.ci import restore_step

        restored = cache.ci.restore(location, options, host)
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
    step = save_step(plan, saved, options.key)
    _report(step, output, files, plan.cache_dir if is_unused else None)
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
