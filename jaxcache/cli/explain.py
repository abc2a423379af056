"""``jaxcache explain``."""

import os
from typing import Annotated

import typer

from jaxcache.cli.opening import Opened, open_cache, open_jax_cache
from jaxcache.cli.options import Format, JsonOutput, locate_cache
from jaxcache.errors import NoCacheError, UsageError
from jaxcache.options import Place
from jaxcache.options.run import ExplainOptions

EXAMPLE = "jaxcache explain yesterday.json today.json"
EXIT_CODES = (0, 1, 2, 10, 13)


def command(
    sides: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[LEFT RIGHT | KEY | SCRIPT [ARG]...]",
            help="Saved runs (warm --json, a recipe, a log of JAX at DEBUG), keys, caches, or a "
            "script; options of the script go after --.",
            show_default=False,
        ),
    ] = None,
    *,
    place: Place,
    options: ExplainOptions,
    output: JsonOutput,
) -> None:
    """Explain why two runs, keys or caches differ.

    Also why a script misses in the cache: explain SCRIPT.
    """
    from jaxcache.cli.output import explain as show

    form = output.form
    given = sides or []
    if options.churn:
        if given:
            raise UsageError("--churn takes no sides")
        show.print_churn(open_jax_cache(place.cache_dir), form)
        return
    if len(given) in (1, 2) and (opened := _cache_of_keys(place, given)):
        store = opened.store
        show.print_explanation(opened.layout.explain(store, given), store.url, form)
        return
    path = locate_cache(place.cache_dir).path
    if given and given[0].endswith(".py"):
        run = show.script_options(path, options.python, document=form is not Format.TABLE)
        show.print_script(given[0], given[1:], run, form)
    elif len(given) in (1, 2):
        from jaxcache.cache.explain.given import explain_given

        found = explain_given(given, path, explicit=place.cache_dir is not None)
        show.print_explanation(found, path, form)
    else:
        raise UsageError(
            "explain takes two sides, a script, a key, or --churn",
            hint=f"a side is a saved run, a key, or a cache directory ({os.sep} in its name)",
        )


def _cache_of_keys(place: Place, sides: list[str]) -> Opened | None:
    """Open the cache, if what is compared are keys in it."""
    if any(os.path.exists(side) or side.endswith(".py") for side in sides):
        return None
    try:
        return open_cache(place.cache_dir, place.layout)
    except NoCacheError:
        return None  # there may be no need of one
