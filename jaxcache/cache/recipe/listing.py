"""The contents of a recipe: the rows that ``ls`` and ``show`` print."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from jaxcache.cache.recipe.format import RecipeFile
from jaxcache.cache.recipe.model import Environment, Request
from jaxcache.cache.recipe.refusals import refuse
from jaxcache.cache.selection import read_sort, select_by_keys
from jaxcache.entry.contents import XlaCompileOptions
from jaxcache.entry.options import read_options
from jaxcache.entry.wire import Budget, WireError


@dataclass(frozen=True, slots=True)
class RecipeRow:
    """One request of a recipe, as far as it can be read without jax."""

    request: Request
    environment: Environment
    bytecode_bytes: int
    refusal: str | None
    """Why it cannot be compiled; a name in :data:`jaxcache.cache.recipe.refusals.REFUSALS`."""
    options: XlaCompileOptions | None
    """None where they cannot be read."""

    @property
    def key(self) -> str:
        """The key, or the module's name where there is none."""
        return self.request.name

    @property
    def module(self) -> str:
        """The module's name."""
        return self.request.module

    @property
    def hash(self) -> str:
        """The hexadecimal part of the key; empty where there is none."""
        return self.request.hash or ""


def list_recipe(
    file: RecipeFile, *, keys: Sequence[str] = (), sort: str = "key", limit: int | None = None
) -> list[RecipeRow]:
    """The requests of a recipe that fit the KEY arguments.

    Args:
        sort: ``key``, ``size`` or ``compile``, with ``:asc`` or ``:desc``.

    Raises:
        UsageError: no such sort.
        JaxcacheError: ``no-match`` or ``ambiguous-key``.
    """
    name, is_descending = read_sort(sort, {"key": False, "size": True, "compile": True})
    listed = select_by_keys([_listed(r, file) for r in file.recipe.requests], list(keys))
    measures: dict[str, Callable[[RecipeRow], Any]] = {
        "key": lambda x: x.key,
        "size": lambda x: x.bytecode_bytes,
        "compile": lambda x: x.request.compile_seconds or 0.0,
    }
    listed.sort(key=measures[name], reverse=is_descending)
    return listed[:limit]


def _listed(request: Request, file: RecipeFile) -> RecipeRow:
    environment = file.recipe.environment_of(request)
    try:
        options = read_options(memoryview(file.blob(request.options)), None, Budget())
    except (WireError, ValueError):
        options = None
    return RecipeRow(
        request,
        environment,
        file.blob_bytes(request.bytecode),
        refuse(request, environment, file.blob),
        options and options.compile_options,
    )
