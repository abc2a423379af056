"""``jaxcache push``, ``jaxcache pull`` and ``jaxcache copy``."""

import os
from typing import Annotated

from jaxcache.cli.opening import open_handle, open_target
from jaxcache.cli.options import Format, Output
from jaxcache.core.names import OWN_DIR
from jaxcache.errors import ExitCode, UsageError
from jaxcache.options import CacheLocation, ConfirmOptions, DryRun
from jaxcache.options.declare import TEXT, option
from jaxcache.options.move import CopyOptions, PushOptions, SyncOptions, arrival_of
from jaxcache.store import is_remote

Url = Annotated[str, option("url", TEXT, "s3://, gs://, az://, or a path.", metavar="URL")]
EXAMPLES = {
    "push": "jaxcache push s3://bucket/team/jax --exclude 'jit_debug*'",
    "pull": "jaxcache pull s3://bucket/team/jax --include 'jit_train*'",
    "copy": "jaxcache copy ~/.cache/jax /mnt/usb/cache.jxb",
}
EXIT_CODES = {
    "push": (0, 1, 2, 3, 10, 11, 12, 130),
    "pull": (0, 1, 2, 3, 10, 12, 130),
    "copy": (0, 1, 2, 3, 10, 12),
}


def push(
    url: Url, place: CacheLocation, options: PushOptions, consent: ConfirmOptions, output: Output
) -> int:
    """Upload the entries that another cache lacks.

    Entries of the target are never replaced.

    JAX 0.4.36 to 0.10 puts the cache's path into its keys: keep the same path, or fill the cache
    from the start with jaxcache warm --portable SCRIPT and use it with --portable, too. For plain
    JAX, set JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES=none in both places.
    """
    from jaxcache.cli.moving import copy_between, copy_layout_files

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
    from jaxcache.cli.moving import copy_between, copy_layout_files

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
    from jaxcache.cli.bundle import deliver
    from jaxcache.cli.moving import copy_cache, copy_files, offer_files

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
    from jaxcache.cli.bundle import check_trust, open_input, receive, rewrite

    bundle = open_input(source)
    verdict = check_trust(bundle, required=options.require_signed)
    with bundle.file:
        if is_bundle_name(target):
            rewrite(bundle, target, form)
            return ExitCode.DONE
        place = open_target(target, None, bundle.manifest.layout)
        return receive(place, bundle, form, arrival_of(options), verdict=verdict, dry_run=dry_run)
