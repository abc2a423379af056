"""``jaxcache copy``."""

import time
from typing import TYPE_CHECKING, Annotated

import typer

from jaxcache.cli.opening import Opened, locate_target, open_cache
from jaxcache.cli.options import Format, Output, require_writable
from jaxcache.errors import ExitCode, UsageError
from jaxcache.options import DryRun
from jaxcache.options.move import ArrivalOptions, CopyOptions

if TYPE_CHECKING:
    from jaxcache.cache.move.offer import ExportPlan

EXAMPLE = "jaxcache copy ~/.cache/jax /mnt/usb/cache.jxb"
EXIT_CODES = (0, 1, 2, 3, 10, 12)


def command(
    source: Annotated[str, typer.Argument(metavar="SRC", help="A cache directory or a bundle.")],
    target: Annotated[
        str, typer.Argument(metavar="DST", help="A cache directory, or a bundle (FILE.jxb).")
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
    from jaxcache.cache.move.file import check_file_name, is_bundle_name
    from jaxcache.cli.bundle import deliver

    to_bundle = is_bundle_name(target)
    from_bundle = is_bundle(source)
    if from_bundle and options.filters:
        raise UsageError("a bundle is copied whole; import it and filter then")
    if to_bundle and (dry.dry_run or options.atomic or options.on_conflict != "keep"):
        raise UsageError("--dry-run, --atomic and --on-conflict are for copies into a directory")
    if to_bundle:
        check_file_name(target)
    if from_bundle:
        return _copy_bundle(source, target, options, output.form, dry_run=dry.dry_run)
    opened = open_cache(source, options.layout)
    export = opened.layout.plan_export(
        opened.store,
        keys=(),
        filters=options.filters,
        since=None,
        side_caches=None,
        now_ns=time.time_ns(),
        progress=None,
    )
    if to_bundle:
        partial = deliver(opened.store, export, target, output.form, None, [])
        return ExitCode.PARTIAL if partial else ExitCode.DONE
    place = locate_target(target, None, opened.layout.name)
    copy = _copy_cache if opened.layout.stands_alone else copy_files
    return copy(opened, export, place, options, output.form, dry_run=dry.dry_run)


def _copy_bundle(
    source: str, target: str, options: CopyOptions, form: Format, *, dry_run: bool
) -> int:
    """Copy a bundle to another file, or what it holds into a cache."""
    from jaxcache.cache.move.file import is_bundle_name
    from jaxcache.cli.bundle import check_trust, open_input, receive, rewrite

    bundle = open_input(source)
    verdict = check_trust(bundle)
    with bundle.file:
        if is_bundle_name(target):
            rewrite(bundle, target, form)
            return ExitCode.DONE
        place = locate_target(target, None, bundle.manifest.layout)
        return receive(bundle, place, form, options, verdict=verdict, dry_run=dry_run)


def _copy_cache(
    opened: Opened,
    export: "ExportPlan",
    target: str,
    options: ArrivalOptions,
    form: Format,
    *,
    dry_run: bool,
) -> int:
    """Copy entries of JAX from one cache into another, file by file."""
    from jaxcache.cache.bundle.compat import forecast_items
    from jaxcache.cache.move.arrive import receive
    from jaxcache.cache.move.copy import is_left_out, plan_copy
    from jaxcache.cache.move.stores import sender_of
    from jaxcache.cache.trust import Verdict
    from jaxcache.cli import bundle as shared
    from jaxcache.cli.terminal.progress import progress_bar
    from jaxcache.store import find_store, make_store

    signed = shared.required_signatures(opened)
    if not export.writes:
        shared.note_warnings(export)
    if store := find_store(target):
        require_writable(store)
    with progress_bar("comparing") as progress:
        plan = plan_copy(
            opened.store,
            export,
            store,
            cache_dir=shared.place_of(target),
            on_conflict=options.on_conflict,
            signed=signed,
            allow_large=options.allow_large,
            progress=progress,
        )
    with shared.interruptible(), progress_bar("copying") as progress:
        done = receive(
            None if dry_run else store or make_store(target),
            sender_of(opened.store, plan),
            plan,
            now_ns=export.now_ns,
            atomic=options.atomic,
            progress=progress,
        )
    shared.note_left_out([step.problem for step in done.steps if is_left_out(step)])
    outlooks = forecast_items((step.item for step in done.steps), None, target)
    shared.note_outlooks(outlooks, form)
    verdict = Verdict(("this machine",), ())
    return shared.show_arrival(done, form, outlooks, verdict, manifest_sha256=None)


def copy_files(
    opened: Opened,
    export: "ExportPlan",
    target: str,
    options: ArrivalOptions,
    form: Format,
    *,
    dry_run: bool,
) -> int:
    """Copy files of a layout whose files need each other, through a temporary bundle."""
    from jaxcache.cache.move.file import make_temporary_bundle
    from jaxcache.cache.trust import Verdict
    from jaxcache.cli import bundle as shared

    shared.required_signatures(opened)
    if not export.writes:
        shared.note_warnings(export)
    bundle, exported = make_temporary_bundle(opened.store, export)
    shared.note_left_out(exported.left_out)
    verdict = Verdict(("this machine",), ())
    with bundle.file:
        code = shared.receive(bundle, target, form, options, verdict=verdict, dry_run=dry_run)
    return ExitCode.PARTIAL if exported.left_out and code == ExitCode.DONE else code
