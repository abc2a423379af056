"""Documents of the commands under *Look*: of a cache, of a recipe."""

from collections.abc import Mapping
from typing import Annotated, Any, NotRequired, TypedDict

from jaxcache.cache.explain.sides import Difference
from jaxcache.cache.listing import Group
from jaxcache.cache.recipe.format import RecipeRow
from jaxcache.cache.recipe.model import Environment
from jaxcache.cache.show import EntryDetails
from jaxcache.core.refusals import TierRefusal
from jaxcache.entry.kernels import Kernel
from jaxcache.layouts.torch.scan import GraphEntry
from jaxcache.model import Entry, Problem
from tools.generate.documents.shared import Time


class Grouped(TypedDict):
    groups: NotRequired[list[Group]]
    entries: list[Entry | GraphEntry]


class RecipeDetails(TypedDict):
    size_bytes: int
    digest: str
    environments: list[Environment]
    notes: list[str]


class ShownOptions(TypedDict):
    num_replicas: int | None
    num_partitions: int | None
    flags_changed: Mapping[str, Any] | None


class ShownModule(TypedDict):
    compile_options: ShownOptions | None


class RecipeSums(TypedDict):
    modules: int
    bytecode_bytes: int
    compile_seconds: float


class RecipeDocument(TypedDict):
    recipe: RecipeDetails
    modules: list[Annotated[RecipeRow, ShownModule]]
    summary: RecipeSums


class GraphFile(TypedDict):
    file: str
    size_bytes: int
    created_at: Time


class GraphSeconds(TypedDict):
    total: float | None
    forward: float | None
    backward: float | None


class NearestGraph(TypedDict):
    key: str | None
    differences: list[Difference]


class KeyComponent(TypedDict):
    component: str
    hash: str | None
    text: str | None


class GraphBody(TypedDict):
    """A graph of torch's compilers."""

    entry: GraphEntry
    nearest: NearestGraph | None
    tier: str
    root: str | None
    seconds: GraphSeconds
    source_key: str | None
    bundled: bool
    files: list[GraphFile]
    missing: list[str]
    environment: list[str]
    globals: list[str]
    key_components: list[KeyComponent]
    problems: list[Problem]


class InList(TypedDict):
    """Only the list itself names the cache."""

    cache_dir: NotRequired[str]


class SeveralEntries(TypedDict):
    entries: list[Annotated[EntryDetails, InList]] | list[GraphBody]


class SideCache(TypedDict):
    kind: str
    file: str
    size_bytes: int
    version: int | None
    problem: str | None
    kernels: list[Kernel]


class KernelsDocument(TypedDict):
    side_cache: SideCache


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
