"""``jaxcache export``."""

import time
from typing import Annotated

import typer

from jaxcache.cli.opening import open_cache
from jaxcache.cli.options import Output
from jaxcache.errors import UsageError
from jaxcache.options import CacheLocation
from jaxcache.options.move import ExportOptions

EXAMPLE = "jaxcache export cache.jxb"
EXIT_CODES = (0, 1, 2, 3, 10, 12)


def command(
    file: Annotated[str, typer.Argument(metavar="FILE", help="The bundle to write; - for stdout.")],
    place: CacheLocation,
    options: ExportOptions,
    output: Output,
) -> int:
    """Write entries to one compressed, checkable file.

    JAX 0.4.36 to 0.10 puts the cache's path into its keys: keep the same path, or fill the cache
    from the start with jaxcache warm --portable SCRIPT and use it with --portable, too. For plain
    JAX, set JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES=none in both places.
    """
    from jaxcache.cache.move.bundle_file import check_file_name
    from jaxcache.cli.bundle import deliver, signing_keys
    from jaxcache.cli.terminal.progress import progress_bar
    from jaxcache.layouts.sides import open_side
    from jaxcache.store import open_store

    form = output.form
    if file == "-" and (form.is_table or form.is_json or form.is_keys):
        raise UsageError(
            "a bundle on standard output needs a pipe, without --json, --jsonl or --quiet"
        )
    if file != "-":
        check_file_name(file)
    signers = signing_keys(options.sign)
    opened = open_cache(place.cache_dir, place.layout)
    with progress_bar("reading") as progress:
        since = options.since
        side = open_side(since, open_store, progress, layout=place.layout) if since else None
        plan = opened.layout.plan_export(
            opened.store,
            keys=options.keys,
            filters=options.filters,
            since=side,
            side_caches=options.side_caches,
            now_ns=time.time_ns(),
            progress=progress,
        )
    return deliver(opened.store, plan, file, form, options.level, signers)
