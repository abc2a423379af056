"""``jaxcache ls``."""

import time
from typing import Annotated

import typer

from jaxcache.cli.opening import open_to_look
from jaxcache.cli.options import Output
from jaxcache.cli.root import find_root, list_root
from jaxcache.errors import UsageError
from jaxcache.model import Depth
from jaxcache.options import GROUP_FIELDS, CacheLocation, ListOptions
from jaxcache.store.location import locate_cache
from jaxcache.units import available_cores, format_count

EXAMPLE = "jaxcache ls --sort size:desc --filter 'unused>7d'"
EXIT_CODES = (0, 1, 2, 10)


def command(
    place: CacheLocation,
    options: ListOptions,
    group_by: Annotated[
        str | None,
        typer.Option(
            metavar="|".join(GROUP_FIELDS), help="List one row for each value of this field."
        ),
    ] = None,
    *,
    output: Output,
) -> None:
    """List the entries of a cache.

    Also the modules of a recipe (-C FILE.recipe) and the entries of a bundle (-C FILE.jxb). In a
    pipe each line is key, bytes, compile seconds, time of the last use, problems, with tabs between
    them and no header; --long adds platform, target, signature, source, and
    for torch the function.
    """
    from jaxcache.cache.listing import group_depth, list_cache
    from jaxcache.cli.opening import names_recipe
    from jaxcache.cli.output import emit
    from jaxcache.cli.terminal.progress import progress_bar
    from jaxcache.render.listing import listing_view

    form = output.form
    path = locate_cache(place.cache_dir).path
    if names_recipe(path):
        if options.filters or group_by or options.long:
            raise UsageError("--filter, --group-by and --long are not for recipes")
        keys = options.keys
        limit = options.limit
        sort = "key" if options.sort == "used" else options.sort  # a recipe records no use
        from jaxcache.cache.recipe.format import open_recipe
        from jaxcache.cache.recipe.listing import list_recipe
        from jaxcache.render import recipe

        with open_recipe(path) as file:
            listed = list_recipe(file, keys=keys, sort=sort, limit=limit)
            emit(form, recipe.listing_view(file, listed))
        return
    if root := find_root(place):
        if group_by:
            raise UsageError("--group-by is for one cache", hint="name it with -C")
        list_root(root, options, place, form)
        return
    opened = open_to_look(place.cache_dir, place.layout)
    now_ns = time.time_ns()
    depth = group_depth(group_by) if group_by else Depth.LISTED
    details = options.long or depth is Depth.DECODED
    headers = not form.is_keys
    if opened.store.remote:  # every read is a request, so they are only done where asked for
        headers = headers and (details or depth is Depth.OPENED)
    else:
        details = details or form.is_json or form.is_table
    with progress_bar("reading entries") as progress:
        listing = list_cache(
            *opened,
            options.replace(limit=None) if group_by else options,
            headers=headers,
            details=details,
            deep=form.is_table and opened.layout.keeps_index and not opened.store.remote,
            sums=form.is_document,
            index_directory=opened.index_directory,
            now_ns=now_ns,
            workers=available_cores(),
            progress=progress,
        )
    view = listing_view(
        listing, now_ns=now_ns, group_by=group_by, limit=options.limit, long=options.long
    )
    unread = sum(e.compile_seconds is None for e in listing.entries)
    if opened.store.remote and not headers and unread:
        hint = (
            f"use --long for compile seconds of {format_count(unread, 'entry')} (one request each)"
        )
        view = view._replace(notes=[*view.notes, hint])
    emit(form, view)
