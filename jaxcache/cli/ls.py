"""``jaxcache ls``."""

import time
from typing import Annotated

import typer

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

EXAMPLE = "jaxcache ls --sort size:desc --filter 'unused>7d'"
EXIT_CODES = (0, 1, 2, 10)


def command(
    keys: Keys = None,
    cache_dir: CacheDir = None,
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
    """List the entries of a cache."""
    from jaxcache.cache.listing import list_cache
    from jaxcache.cli.output import print_listing
    from jaxcache.cli.progress import progress_bar
    from jaxcache.store import open_store

    form = choose_format(json=json, jsonl=jsonl, quiet=quiet)
    store = open_store(locate_cache(cache_dir).path)
    now_ns = time.time_ns()
    details = long or group_by in ("platform", "target")
    details = details or form in (Format.TABLE, Format.JSON, Format.JSONL)
    index = None
    if form is not Format.KEYS or filters or sort != "key":
        from jaxcache.cache.index import Index

        index = Index.load(index_folder(), store.url, now_ns=now_ns)
    with progress_bar("reading entries") as progress:
        listing = list_cache(
            store, keys=keys or [], filters=filters or [], sort=sort, limit=limit,
            heads=form is not Format.KEYS, details=details, index=index, now_ns=now_ns,
            workers=available_cores(), progress=progress,
        )  # fmt: skip
    print_listing(listing, form, group_by=group_by, long=long)
