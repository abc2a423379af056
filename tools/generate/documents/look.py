"""Documents of the commands under *Look*: of a cache, of a recipe."""

from collections.abc import Mapping
from typing import Annotated, NotRequired, TypedDict

from jaxcache.cache.listing import Group
from jaxcache.cache.recipe.format import RecipeRow
from jaxcache.cache.recipe.model import Environment
from jaxcache.cache.show import EntryDetails
from jaxcache.core.refusals import TierRefusal
from jaxcache.layouts.torch.explain import GraphDetails
from jaxcache.layouts.torch.scan import GraphEntry
from jaxcache.model import Entry


class Grouped(TypedDict):
    groups: NotRequired[list[Group]]
    entries: list[Entry | GraphEntry]


class RecipeDetails(TypedDict):
    size_bytes: int
    digest: str
    environments: list[Environment]
    notes: list[str]


class RecipeSums(TypedDict):
    modules: int
    bytecode_bytes: int
    compile_seconds: float


class RecipeDocument(TypedDict):
    recipe: RecipeDetails
    modules: list[RecipeRow]
    summary: RecipeSums


class InList(TypedDict):
    """Only the list itself names the cache."""

    cache_dir: NotRequired[str]


class SeveralEntries(TypedDict):
    entries: list[Annotated[EntryDetails, InList]] | list[Annotated[GraphDetails, InList]]


class NamedSummary(TypedDict):
    name: str
    entries: int
    size_bytes: int
    payload_bytes: int
    compile_seconds: float


class StatsMore(TypedDict):
    by_age: list[NamedSummary]
    problems: Mapping[str, int]
    live: NotRequired[Mapping[str, float]]
    refused: NotRequired[list[TierRefusal]]


class ReportFile(TypedDict):
    file: str
    size_bytes: int
    entries: int
