"""``jaxcache push`` and ``jaxcache pull``."""

from typing import Annotated

import typer

from jaxcache.cli.opening import open_handle, open_target
from jaxcache.cli.options import Output
from jaxcache.errors import UsageError
from jaxcache.options import CacheLocation, ConfirmOptions, DryRun
from jaxcache.options.move import PushOptions, SyncOptions

Url = Annotated[str, typer.Argument(metavar="URL", help="s3://, gs://, az://, or a path.")]
EXAMPLES = {
    "push": "jaxcache push s3://bucket/team/jax --exclude 'jit_debug*'",
    "pull": "jaxcache pull s3://bucket/team/jax --include 'jit_train*'",
}
EXIT_CODES = {"push": (0, 1, 2, 3, 10, 11, 12, 130), "pull": (0, 1, 2, 3, 10, 12, 130)}


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
    from jaxcache.cli.moving import copy_between, copy_layout_files

    form = output.form
    opened = open_handle(url, place.layout)
    if not opened.layout.single_file_entries:
        return copy_layout_files(opened, place.cache_dir, options, form, dry_run=dry.dry_run)
    target = open_target(place.cache_dir, place.layout, opened.layout.name)
    consent = ConfirmOptions(dry_run=dry.dry_run, yes=True)
    return copy_between(opened, target, options, form, consent, pulls=True)
