"""``jaxcache copy``."""

import time
from typing import Annotated

import typer

from jaxcache.cli.opening import locate_target, open_cache
from jaxcache.cli.options import Format, Output
from jaxcache.errors import ExitCode, UsageError
from jaxcache.options import DryRun
from jaxcache.options.move import CopyOptions

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
    from jaxcache.cli.moving import copy_cache, copy_files

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
        return deliver(opened.store, export, target, output.form, None, [])
    place = locate_target(target, None, opened.layout.name)
    copy = copy_cache if opened.layout.stands_alone else copy_files
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
