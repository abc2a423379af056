"""``jaxcache ls``."""

import time
from typing import Annotated

import typer

from jaxcache.cli.opening import LayoutName, open_cache
from jaxcache.cli.options import (
    CacheDir,
    Filters,
    Format,
    Json,
    Jsonl,
    Keys,
    Quiet,
    available_cores,
    choose_format,
    index_folder,
    locate_cache,
)  # fmt: skip
from jaxcache.errors import UsageError

EXAMPLE = "jaxcache ls --sort size:desc --filter 'unused>7d'"
EXIT_CODES = (0, 1, 2, 10)


def command(
    keys: Keys = None,
    cache_dir: CacheDir = None,
    layout: LayoutName = None,
    sort: Annotated[
        str,
        typer.Option(
            metavar="FIELD[:asc|desc]", help="key, size, payload, compile, created, used, platform."
        ),
    ] = "key",
    filters: Filters = None,
    limit: Annotated[int | None, typer.Option(min=0, metavar="N", help="Print at most N.")] = None,
    group_by: Annotated[
        str | None,
        typer.Option(metavar="FIELD", help="One row per module, platform, target or codec."),
    ] = None,
    long: Annotated[
        bool, typer.Option("--long", "-l", help="Also platform, target, signature and source.")
    ] = False,
    json: Json = False,
    jsonl: Jsonl = False,
    quiet: Quiet = False,
) -> None:
    """List the entries of a cache.

    Also the modules of a recipe (-C FILE.recipe).
    """
    from jaxcache.cli.output import print_listing
    from jaxcache.cli.output.recipe import names_recipe, print_recipe
    from jaxcache.cli.terminal.progress import progress_bar

    form = choose_format(json=json, jsonl=jsonl, quiet=quiet)
    path = locate_cache(cache_dir).path
    if names_recipe(path):
        if filters or group_by or long:
            raise UsageError("--filter, --group-by and --long are not for recipes")
        print_recipe(path, form, keys=keys or [], sort=sort, limit=limit)
        return
    opened = open_cache(cache_dir, layout)
    now_ns = time.time_ns()
    details = long or group_by in ("platform", "target")
    heads = form is not Format.KEYS
    if opened.store.remote:  # every read is a request, so they are only done where asked for
        heads = heads and (details or group_by == "codec")
    else:
        details = details or form in (Format.TABLE, Format.JSON, Format.JSONL)
    with progress_bar("reading entries") as progress:
        listing = opened.layout.list_cache(
            opened.store, keys=keys or [], filters=filters or [], sort=sort, limit=limit,
            heads=heads, details=details, long=long, index_folder=index_folder(),
            now_ns=now_ns, workers=available_cores(), progress=progress,
        )  # fmt: skip
    print_listing(listing, form, group_by=group_by, long=long)
    if form in (Format.TABLE, Format.TSV) and any(e.codec == "unknown" for e in listing.entries):
        from jaxcache.cli.output import note

        if opened.store.remote and not heads:
            note("compile seconds and platforms take a request per entry: --long")
