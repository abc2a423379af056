"""``jaxcache compile``."""

from typing import Annotated

import typer

from jaxcache.cli.options import Output, locate_cache
from jaxcache.options import CacheDir
from jaxcache.options.run import CompileOptions

EXAMPLE = "jaxcache compile train.recipe -C /var/cache/jax --jobs 8"
EXIT_CODES = (0, 1, 2, 3, 10, 13, 130)


def command(
    recipe: Annotated[
        str, typer.Argument(metavar="RECIPE", help="A recipe written by warm --record.")
    ],
    place: CacheDir,
    options: CompileOptions,
    output: Output,
) -> None:
    """Compile a recorded recipe into a cache, without its script.

    What the cache has already is left alone. Workers are processes with the devices, flags and
    settings that were recorded; a module that kills its worker is tried once more and then named.
    """
    from jaxcache.cli.output.compile import finish, watch
    from jaxcache.warm.replay.run import compile_recipe

    form = output.form
    options.check()
    report = compile_recipe(recipe, locate_cache(place.cache_dir).path, options, watch)
    finish(report, form)
