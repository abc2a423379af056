"""Views of recipes, which ``ls`` and ``show`` print like caches."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from jaxcache.render.view import View


def names_recipe(path: str) -> bool:
    """Whether a path is that of a recipe; cheap where it is a directory."""
    if not os.path.isfile(path):
        return False
    from jaxcache.cache.recipe.format import is_recipe

    return is_recipe(path)


@contextmanager
def recipe_view(path: str, *, keys: Sequence[str], sort: str, limit: int | None) -> Iterator[View]:
    """Open a recipe and give the view of ``ls``.

    Raises:
        RecipeError, UsageError, JaxcacheError
    """
    from jaxcache.cache.recipe.format import open_recipe
    from jaxcache.cache.recipe.listing import list_recipe
    from jaxcache.render.recipe import listing_view

    with open_recipe(path) as file:
        yield listing_view(file, list_recipe(file, keys=keys, sort=sort, limit=limit))


@contextmanager
def modules_view(path: str, key: str | None) -> Iterator[View]:
    """Open a recipe and give the view of ``show``: of all of it, or of what a KEY picks.

    Raises:
        RecipeError, JaxcacheError
    """
    from jaxcache.cache.recipe.format import open_recipe
    from jaxcache.cache.recipe.listing import list_recipe
    from jaxcache.render.recipe import show_view

    with open_recipe(path) as file:
        found = list_recipe(file, keys=[] if key is None else [key])
        yield show_view(file, found, whole=key is None)
