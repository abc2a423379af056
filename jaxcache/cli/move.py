"""`jaxcache export`, `import`, `push`, `pull` and `copy`."""

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Annotated, Any

from jaxcache.api import Cache
from jaxcache.cache.archive import write_file
from jaxcache.cache.bundle.compat import (
    XLA_CACHES,
    Compatibility,
    Host,
    forecast,
    forecast_items,
    forecast_steps,
)
from jaxcache.cache.bundle.format import Bundle, is_bundle, open_bundle, read_whole
from jaxcache.cache.bundle.manifest import BundleError
from jaxcache.cache.bundle.reader import verify_bundle
from jaxcache.cache.diff import DiffSide
from jaxcache.cache.inventory import nothing_there
from jaxcache.cache.move import import_bundle
from jaxcache.cache.move.bundle_file import (
    check_file_name,
    check_file_path,
    make_temporary_bundle,
    spool,
    written_bundle,
)
from jaxcache.cache.move.export_plan import ExportPlan, empty_warning
from jaxcache.cache.move.import_bundle import after_export
from jaxcache.cache.move.items import MoveAction, Step
from jaxcache.cache.move.plan import Outcome, Plan
from jaxcache.cache.move.signatures import required_signatures
from jaxcache.cache.move.stores import make_source
from jaxcache.cache.trust import (
    Verdict,
    check_signatures,
    load_trusted,
    signing_keys,
)
from jaxcache.cli.opening import open_handle, open_target
from jaxcache.cli.output import Format, Output, emit, note
from jaxcache.cli.terminal import confirm, progress_bar
from jaxcache.core.names import OWN_DIR
from jaxcache.errors import (
    ExitCode,
    JaxcacheError,
    NoJaxError,
    UntrustedError,
    UsageError,
)
from jaxcache.layouts import load_layout, names_there
from jaxcache.model import Problem
from jaxcache.options import CacheLocation, ConfirmOptions, DryRun
from jaxcache.options.declare import TEXT, option
from jaxcache.options.move import (
    ArrivalOptions,
    CompatibilityOptions,
    CopyOptions,
    ExportOptions,
    ImportOptions,
    PushOptions,
    SyncOptions,
    arrival_of,
)
from jaxcache.render.maintain import removals_table
from jaxcache.render.move import (
    export_view,
    forecast_line,
    forecast_note,
    import_view,
    left_out_lines,
    sync_view,
    trust_lines,
)
from jaxcache.store import is_remote
from jaxcache.store.base import Store
from jaxcache.store.location import config_is_set


def export(
    file: Annotated[
        str, option("file", TEXT, "The bundle to write; - for stdout.", metavar="FILE")
    ],
    place: CacheLocation,
    options: ExportOptions,
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
    if file != "-":
        check_file_name(file)
    cache = open_handle(place)
    plan = cache.plan_export(options=options)
    return deliver(cache, plan, file, form, options.level, options.sign)


def import_(
    file: Annotated[
        str,
        option(
            "file",
            TEXT,
            "A bundle, or artifacts saved by torch.compiler; - for stdin.",
            metavar="FILE",
        ),
    ],
    place: CacheLocation,
    options: ImportOptions,
    needed: CompatibilityOptions,
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
    required = needed.require_compatible
    python = needed.python
    with ExitStack() as opened:
        bundle, left_out = opened.enter_context(open_import(file))
        layout = bundle.manifest.layout
        verdict = check_trust(bundle, required=options.require_signed)
        host: Callable[[], Any] = lambda: None  # noqa: E731
        asks_jax = layout == "jax" and (required or dry.dry_run or python is not None)
        if asks_jax:
            from jaxcache.warm.child.query import probing_host

            host = opened.enter_context(probing_host(python, required=required))
        code = receive(
            open_target(place.cache_dir, place.layout, layout),
            bundle,
            output.form,
            options,
            verdict=verdict,
            host=host,
            needed=needed,
            dry_run=dry.dry_run,
            expect=asks_jax,
        )
    return ExitCode.PARTIAL if left_out and code == ExitCode.DONE else code


def deliver(
    cache: "Cache",
    plan: ExportPlan,
    file: str,
    form: Format,
    level: int | None,
    sign: Sequence[str],
) -> ExitCode:
    """Write the bundle and report it; return the exit code."""
    note_warnings(plan)
    written = cache.write_bundle(plan, file, level=level, sign=sign)
    note(*left_out_lines(written.left))
    emit(form, export_view(written))
    return ExitCode.PARTIAL if written.left_out else ExitCode.DONE


def note_warnings(plan: ExportPlan) -> None:
    """Print the warnings about what a cache offers."""
    note(*(f"warning: {warning}" for warning in plan.warnings))


def rewrite(bundle: Bundle, file: str, form: Format) -> None:
    """Write an opened bundle to another file, with its signatures, and report it.

    Raises:
        BundleError: it is damaged; nothing is written.
    """
    with progress_bar("checking", in_bytes=True) as progress:
        refused = verify_bundle(bundle, progress, allow_large=True).refused or {}
    if refused:
        name, reason = next(iter(refused.items()))
        raise BundleError(
            f"{bundle.name} holds {len(refused)} damaged entries, such as {name}: {reason}",
            hint="jaxcache import adds the undamaged ones",
        )
    write_file(file, read_whole(bundle))
    emit(form, export_view(written_bundle(bundle, file)))


def open_input(file: str) -> Bundle:
    """Open the bundle that the user names; ``-`` is standard input."""
    check_file_path(file)
    return spool(sys.stdin.buffer) if file == "-" else open_bundle(file)


@contextmanager
def open_import(file: str) -> Iterator[tuple[Bundle, tuple[Problem, ...]]]:
    """Open a file to import, a bundle or artifacts of torch, and report what is left out."""
    if file != "-" and os.path.isfile(file) and not is_bundle(file):
        from jaxcache.layouts.torch.bundle import as_bundle, is_artifacts

        if is_artifacts(file):
            with as_bundle(file) as (bundle, left_out):
                note(*left_out_lines(left_out))
                yield replace(bundle, name=file), left_out
            return
    bundle = open_input(file)
    with bundle.file:
        yield bundle, ()


def check_trust(bundle: Bundle, *, required: bool = False) -> Verdict:
    """Check the signatures of a bundle, and warn.

    Args:
        required: refuse what no trusted key has signed, as a configuration file can, too.

    Raises:
        UntrustedError
    """
    required = required or config_is_set("require-signed")
    try:
        verdict = check_signatures(bundle, load_trusted(), required=required)
    except UntrustedError:
        bundle.file.close()
        raise
    note(*trust_lines(bundle.name, verdict))
    return verdict


@contextmanager
def interruptible() -> Iterator[None]:
    """Say what an interrupted move has left: whole files, which another run does not repeat.

    Raises:
        JaxcacheError: ``interrupted``.
    """
    try:
        yield
    except KeyboardInterrupt as error:
        raise JaxcacheError(
            "interrupted",
            code="interrupted",
            exit_code=ExitCode.INTERRUPTED,
            hint="run the command again; it skips the files that are complete",
        ) from error


def receive(
    cache: "Cache",
    bundle: Bundle,
    form: Format,
    options: ArrivalOptions,
    *,
    verdict: Verdict,
    host: Callable[[], Host | None] = lambda: None,
    needed: CompatibilityOptions | None = None,
    export: Outcome | None = None,
    dry_run: bool = False,
    expect: bool = False,
) -> int:
    """Check a bundle, plan, write, and report forecast and result; return the exit code.

    Args:
        cache: where the entries go; its directory need not exist.
        host: waits for the Python that is to use the cache; all other work is done meanwhile.
        needed: what must be known of that Python before anything is written.
        export: how a temporary bundle was made; it counts the files that are not in the bundle.
        expect: report what will hit there, even if nothing is known to miss.

    Raises:
        JaxcacheError: ``incompatible``, ``conflict``, ``bad-bundle``.
    """
    needed = needed or CompatibilityOptions()
    is_jax = load_layout(bundle.manifest.layout).single_file_entries
    if needed.require_compatible and not is_jax:
        raise UsageError(
            "--require-compatible is for JAX's entries; torch alone can check its keys"
        )
    target = cache.location.path
    outlooks: Compatibility | None = None

    def check(_: Plan) -> None:
        nonlocal outlooks
        if needed.require_compatible or needed.python is not None:
            outlooks = forecast(bundle.manifest, host(), target)
        if outlooks and needed.require_compatible:
            _require_compatible(bundle, outlooks)

    with interruptible():
        done = cache.receive(bundle, options=options, check=check, dry_run=dry_run)
    done = done if export is None else after_export(export, done)
    outlooks = outlooks or forecast(bundle.manifest, _answer(host), target)
    if is_jax:
        print_forecast(outlooks, form, expect=expect or needed.require_compatible)
    emit(form, import_view(done, outlooks, verdict, manifest_sha256=bundle.manifest_sha256))
    return done.exit_code


def _require_compatible(bundle: Bundle, outlooks: Compatibility) -> None:
    if not outlooks.compatible:
        raise JaxcacheError(
            f"not every entry of {bundle.name} is known to hit: {forecast_line(outlooks)}",
            code="incompatible",
            hint=f"set {XLA_CACHES}=none for this command and for the program"
            if any(f.portable for f in outlooks.forecasts)
            else "change what the message names, or import without --require-compatible",
        )


def _answer(host: Callable[[], Host | None]) -> Host | None:
    """Wait for the Python that is to use the cache; without jax there, nothing is forecast."""
    try:
        return host()
    except NoJaxError as error:
        note(f"warning: cannot forecast the hits: {error.message}")
        return None


def print_forecast(outlooks: Compatibility, form: Format, *, expect: bool = False) -> None:
    """Say what will hit: in any case, or where something will miss."""
    line = forecast_line(outlooks) if expect else forecast_note(outlooks)
    if line and form.is_text:
        note(line)


#: The verdict on signatures if no bundle comes from elsewhere.
_OURS = Verdict(("this machine",), ())


def copy_between(
    source: Cache,
    target: Cache,
    options: SyncOptions,
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
    with interruptible():
        done = source.carry(plan, target, jobs=options.jobs, sign=options.sign, dry_run=dry_run)
    if is_far and target.existing and not (target.existing.remote or done.dry_run):
        outlooks = _forecast_steps(
            target.existing, done.written, place, form
        )  # which costs no request now
    emit(form, sync_view(done, outlooks))
    return done.exit_code


def _forecast_steps(
    store: Store, steps: Sequence[Step], place: str | None, form: Format
) -> Compatibility:
    """Forecast what will hit, and warn people of what will not."""
    outlooks = forecast_steps(store, steps, place)
    print_forecast(outlooks, form)
    return outlooks


def copy_layout_files(
    source: Cache, location: str | None, options: SyncOptions, form: Format, *, dry_run: bool
) -> int:
    """Bring to a place what it lacks of a cache, each file checked; never replace one there.

    Args:
        location: of the target; None for the compiler's own place.

    Raises:
        UsageError: an option that is for JAX's caches alone; ``other-layout``.
        UntrustedError: nothing here is signed; a bundle can be.
    """
    target = open_target(location, None, source.layout.name)
    path = target.location.path
    export = offer_files(source, options, since=DiffSide(path, {}, files=names_there(path)))
    return copy_files(source, export, target, options, form, dry_run=dry_run)


def offer_files(
    source: Cache, options: SyncOptions, *, since: DiffSide | None = None
) -> ExportPlan:
    """Choose what a layout offers whose files need each other.

    Args:
        since: a place whose files need not travel again.

    Raises:
        UsageError: an option that is for JAX's caches alone.
    """
    if options.exclude or options.max_size_bytes is not None:
        raise UsageError("--exclude and --max-size are for JAX's caches; prune first")
    return source.layout.exports.plan_export(
        source.store,
        keys=options.include,
        filters=options.filters,
        since=since,
        side_caches=options.side_caches and not (options.include or options.filters),
        now_ns=time.time_ns(),
        progress=None,
    )


def _ask_to_remove(plan: Plan) -> None:
    note(removals_table(plan.removals, time.time_ns()))
    confirm(f"Remove these from {plan.target}?", "nothing was changed")


def copy_cache(
    source: Cache, target: Cache, options: CopyOptions, form: Format, *, dry_run: bool
) -> int:
    """Copy entries of JAX from one cache into another, file by file."""
    plan = source.plan_push(target, on_conflict=options.on_conflict, vouched=False, options=options)
    if all(step.action is MoveAction.LEFT for step in plan.steps):
        note(f"warning: {empty_warning(source.store.url)}")
    with interruptible(), progress_bar("copying") as progress:
        done = import_bundle.receive(
            None if dry_run else target.make(),
            make_source(source.store, plan),
            plan,
            now_ns=source.clock(),
            atomic=options.atomic,
            jobs=options.jobs,
            signers=signing_keys(options.sign),
            progress=progress,
        )
    note(*left_out_lines(step.problem for step in done.steps if step.is_left_out))
    outlooks = forecast_items((step.item for step in done.steps), None, target.location.path)
    print_forecast(outlooks, form)
    emit(form, import_view(done, outlooks, _OURS, manifest_sha256=None))
    return done.exit_code


def copy_files(
    source: Cache,
    export: ExportPlan,
    target: Cache,
    options: SyncOptions,
    form: Format,
    *,
    dry_run: bool,
) -> int:
    """Copy files of a layout whose files need each other, through a temporary bundle."""
    wanted = options.require_signed or bool(options.sign)
    required_signatures(source.store, source.layout, wanted=wanted)
    if not export.writes:
        note_warnings(export)
    bundle, exported = make_temporary_bundle(source.store, export)
    note(*left_out_lines(exported.left_out))
    with bundle.file:
        return receive(
            target,
            bundle,
            form,
            arrival_of(options),
            verdict=_OURS,
            export=exported.outcome,
            dry_run=dry_run,
        )


Url = Annotated[str, option("url", TEXT, "s3://, gs://, az://, or a path.", metavar="URL")]


def push(
    url: Url, place: CacheLocation, options: PushOptions, consent: ConfirmOptions, output: Output
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
    opened = open_handle(place)
    if not opened.layout.single_file_entries:
        return copy_layout_files(opened, url, options, form, dry_run=consent.dry_run)
    target = open_target(url, place.layout, opened.layout.name)
    return copy_between(opened, target, options, form, consent)


def pull(url: Url, place: CacheLocation, options: SyncOptions, dry: DryRun, output: Output) -> int:
    """Download the entries that this cache lacks.

    Each entry is checked on arrival; a sound one here is never replaced.

    JAX 0.4.36 to 0.10 puts the cache's path into its keys: keep the same path, or fill the cache
    from the start with jaxcache warm --portable SCRIPT and use it with --portable, too. For plain
    JAX, set JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES=none in both places.
    """
    opened = open_handle(url, place.layout)
    path = opened.location.path
    if "://" in path and (request := getattr(opened.store, "request_listings", None)):
        request("", OWN_DIR)
    # Imported while the listings are on their way.
    from jaxcache.cache.inventory import nothing_there

    form = output.form
    if not (is_remote(path) or os.path.exists(path)):
        raise nothing_there(path)
    if not opened.layout.single_file_entries:
        return copy_layout_files(opened, place.cache_dir, options, form, dry_run=dry.dry_run)
    target = open_target(place.cache_dir, place.layout, opened.layout.name)
    consent = ConfirmOptions(dry_run=dry.dry_run, yes=True)
    return copy_between(opened, target, options, form, consent, pulls=True)


def copy(
    source: Annotated[str, option("source", TEXT, "A cache directory or a bundle.", metavar="SRC")],
    target: Annotated[
        str, option("target", TEXT, "A cache directory, or a bundle (FILE.jxb).", metavar="DST")
    ],
    options: CopyOptions,
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
    from jaxcache.cache.move.sync import plan_offer

    to_bundle = is_bundle_name(target)
    from_bundle = is_bundle(source)
    _check_options(options, from_bundle=from_bundle, to_bundle=to_bundle, dry_run=dry.dry_run)
    if to_bundle:
        check_file_name(target)
    if from_bundle:
        return _copy_bundle(source, target, options, output.form, dry_run=dry.dry_run)
    opened = open_handle(source, options.layout)
    is_jax = opened.layout.single_file_entries
    if not is_jax:
        export = offer_files(opened, options)
    elif to_bundle:
        export = plan_offer(opened.store, options, by_use=False, now_ns=opened.clock())
    if to_bundle:
        return deliver(opened, export, target, output.form, None, options.sign)
    place = open_target(target, None, opened.layout.name)
    if is_jax:
        return copy_cache(opened, place, options, output.form, dry_run=dry.dry_run)
    return copy_files(opened, export, place, options, output.form, dry_run=dry.dry_run)


#: The options that reading or writing a bundle knows; a copy between directories knows all.
_FROM_BUNDLE = frozenset(
    {"layout", "on_conflict", "atomic", "side_caches", "allow_large", "require_signed", "jobs"}
)
_TO_BUNDLE = frozenset(
    {"layout", "include", "exclude", "filters", "side_caches", "allow_large", "sign"}
)


def _check_options(
    options: CopyOptions, *, from_bundle: bool, to_bundle: bool, dry_run: bool
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
    source: str, target: str, options: CopyOptions, form: Format, *, dry_run: bool
) -> int:
    """Copy a bundle to another file, or what it holds into a cache."""
    from jaxcache.cache.move.bundle_file import is_bundle_name

    bundle = open_input(source)
    verdict = check_trust(bundle, required=options.require_signed)
    with bundle.file:
        if is_bundle_name(target):
            rewrite(bundle, target, form)
            return ExitCode.DONE
        place = open_target(target, None, bundle.manifest.layout)
        return receive(place, bundle, form, arrival_of(options), verdict=verdict, dry_run=dry_run)
