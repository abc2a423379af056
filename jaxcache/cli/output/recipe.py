"""What ``ls`` and ``show`` print of a recipe."""

import os
from collections.abc import Sequence

from jaxcache.cli.options import Format
from jaxcache.cli.output import (
    note,
    print_json,
    print_json_lines,
    print_lines,
    terminal_width,
    wants_color,
)
from jaxcache.entry.names import printable


def names_recipe(path: str) -> bool:
    """Whether a path is that of a recipe; cheap where it is a directory."""
    if not os.path.isfile(path):
        return False
    from jaxcache.cache.recipe.format import is_recipe

    return is_recipe(path)


def print_recipe(
    path: str, form: Format, *, keys: Sequence[str], sort: str, limit: int | None
) -> None:
    """Print the modules of a recipe as ``ls`` prints entries.

    Raises:
        RecipeError, UsageError, JaxcacheError
    """
    from jaxcache.cache.recipe.format import open_recipe
    from jaxcache.cache.recipe.listing import list_recipe
    from jaxcache.render import recipe as text

    with open_recipe(path) as file:
        found = list_recipe(file, keys=keys, sort=sort, limit=limit)
        if form is Format.JSON:
            print_json(text.recipe_document(file, found))
        elif form is Format.JSONL:
            print_json_lines(map(text.listed_document, found))
        elif form is Format.KEYS:
            print_lines(printable(x.key) for x in found)
        elif form is Format.TSV:
            print_lines(text.listed_tsv(found))
        else:
            if found:
                print(text.recipe_table(found, width=terminal_width(), color=wants_color()))
            print(text.recipe_footer(file, found))
        if form in (Format.TSV, Format.TABLE):
            for line in file.recipe.notes:
                note(f"note: {printable(line)}")


def print_modules(path: str, form: Format, key: str | None) -> None:
    """Print a recipe as a whole, or everything about the modules that a KEY picks.

    Raises:
        RecipeError, JaxcacheError
    """
    from jaxcache.cache.recipe.format import open_recipe
    from jaxcache.cache.recipe.listing import list_recipe
    from jaxcache.render import recipe as text

    with open_recipe(path) as file:
        found = list_recipe(file, keys=[] if key is None else [key])
        if form is Format.JSON:
            print_json(text.recipe_document(file, found))
        elif form is Format.JSONL:
            print_json_lines(map(text.listed_document, found))
        elif key is None:
            print(text.recipe_page(file, found))
        else:
            print("\n\n".join(map(text.listed_page, found)))
