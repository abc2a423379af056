"""``jaxcache ls``."""

from typing import Annotated

from jaxcache.api import Detail
from jaxcache.cli.options import Format, Output
from jaxcache.errors import UsageError
from jaxcache.options import GROUP_FIELDS, CacheLocation, ListOptions
from jaxcache.options.declare import TEXT, option

EXAMPLE = "jaxcache ls --sort size:desc --filter 'unused>7d'"
EXIT_CODES = (0, 1, 2, 10)

#: How much of each entry a format shows.
_DETAIL = {
    Format.KEYS: Detail.KEYS,
    Format.TSV: Detail.ROWS,
    Format.JSONL: Detail.RECORDS,
    Format.TABLE: Detail.SCREEN,
    Format.JSON: Detail.DOCUMENT,
}


def command(
    place: CacheLocation,
    options: ListOptions,
    group_by: Annotated[
        str | None,
        option(
            "--group-by",
            TEXT,
            "List one row for each value of this field.",
            metavar="|".join(GROUP_FIELDS),
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
    from jaxcache.cli.opening import open_handle
    from jaxcache.cli.output import emit
    from jaxcache.render.listing import listing_view

    form = output.form
    cache = open_handle(place)
    if cache.kind == "recipe":
        if options.filters or group_by or options.long:
            raise UsageError("--filter, --group-by and --long are not for recipes")
        _list_recipe(cache.location.path, options, form)
        return
    listing = cache.select(options=options, group_by=group_by, detail=_DETAIL[form])
    view = listing_view(
        listing,
        now_ns=cache.clock(),
        group_by=group_by,
        sort=options.sort,
        limit=options.limit,
        long=options.long,
    )
    emit(form, view)


def _list_recipe(path: str, options: ListOptions, form: Format) -> None:
    from jaxcache.cache.recipe.format import list_recipe, open_recipe
    from jaxcache.cli.output import emit
    from jaxcache.render.recipe import listing_view

    sort = "key" if options.sort == "used" else options.sort  # a recipe records no use
    with open_recipe(path) as file:
        listed = list_recipe(file, keys=options.keys, sort=sort, limit=options.limit)
        emit(form, listing_view(file, listed))
