"""``jaxcache explain``."""

import os
from typing import Annotated

import typer

from jaxcache.cli.opening import LayoutName, Opened, open_cache, open_jax_cache
from jaxcache.cli.options import CacheDir, Format, Json, Jsonl, choose_format, locate_cache
from jaxcache.errors import NoCacheError, UsageError

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
    cache_dir: CacheDir = None,
    layout: LayoutName = None,
    churn: Annotated[
        bool, typer.Option("--churn", help="Modules with many keys, what they cost, and why.")
    ] = False,
    python: Annotated[
        str | None, typer.Option("--python", metavar="PYTHON", help="The Python that runs SCRIPT.")
    ] = None,
    json: Json = False,
    jsonl: Jsonl = False,
) -> None:
    """Explain why two runs, keys or caches differ.

    Also why a script misses in the cache: explain SCRIPT.
    """
    from jaxcache.cli.output import explain as output

    form = choose_format(json=json, jsonl=jsonl)
    given = sides or []
    if churn:
        if given:
            raise UsageError("--churn takes no sides")
        output.print_churn(open_jax_cache(cache_dir), form)
        return
    if len(given) in (1, 2) and (opened := _cache_of_keys(cache_dir, layout, given)):
        store = opened.store
        output.print_explanation(opened.layout.explain(store, given), store.url, form)
        return
    path = locate_cache(cache_dir).path
    if given and given[0].endswith(".py"):
        options = output.script_options(path, python, document=form is not Format.TABLE)
        output.print_script(given[0], given[1:], options, form)
    elif len(given) in (1, 2):
        from jaxcache.cache.explain.given import explain_given

        found = explain_given(given, path, explicit=cache_dir is not None)
        output.print_explanation(found, path, form)
    else:
        raise UsageError(
            "explain takes two sides, a script, a key, or --churn",
            hint=f"a side is a saved run, a key, or a cache directory ({os.sep} in its name)",
        )


def _cache_of_keys(cache_dir: str | None, layout: str | None, sides: list[str]) -> Opened | None:
    """Open the cache, if what is compared are keys in it."""
    if any(os.path.exists(side) or side.endswith(".py") for side in sides):
        return None
    try:
        return open_cache(cache_dir, layout)
    except NoCacheError:
        return None  # there may be no need of one
