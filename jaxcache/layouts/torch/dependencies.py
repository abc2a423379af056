"""The files that exist for each graph: AOT → FX → generated ``.py`` → kernels.

The names of a generated ``.py`` and of its kernels do not tell of each other, so their text is
compared (:mod:`jaxcache.layouts.torch.kernels`).
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from jaxcache.layouts.torch.graph import GraphFacts
from jaxcache.layouts.torch.inventory import TorchInventory
from jaxcache.layouts.torch.kernels import (
    digest_of_kernel,
    embedded_kernels,
    read_code,
    split_source,
)
from jaxcache.layouts.torch.names import GraphFile
from jaxcache.model import FileInfo
from jaxcache.store.base import Store


@dataclass(frozen=True, slots=True)
class Dependencies:
    """The needs of each file, by key."""

    fx_files: Mapping[str, tuple[GraphFile, ...]]
    """FX key → its files."""
    kernels_of: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Key of a generated ``.py`` → keys of its kernels."""


def resolve_dependencies(
    store: Store, inventory: TorchInventory, *, sources: Iterable[str] | None = None
) -> Dependencies:
    """Find out which files have the keys that graphs need.

    Args:
        sources: keys of the generated ``.py`` whose kernels are wanted; by default all.
    """
    fx: dict[str, list[GraphFile]] = {}
    for graph in inventory.graphs:
        if graph.tier == "fxgraph":
            fx.setdefault(graph.key, []).append(graph)
    wanted = inventory.sources.keys() if sources is None else set(sources)
    return Dependencies(
        {key: tuple(files) for key, files in fx.items()},
        _resolve_kernels(store, inventory, sorted(wanted)),
    )


def _resolve_kernels(
    store: Store, inventory: TorchInventory, sources: Iterable[str]
) -> dict[str, tuple[str, ...]]:
    by_text: dict[bytes, list[str]] = {}
    for key, info in inventory.kernel_sources.items():
        parts = split_source(read_code(store, info))
        if parts.bindings is not None:
            by_text.setdefault(parts.digest, []).append(key)
    linked: dict[str, tuple[str, ...]] = {}
    for key in sources:
        source = inventory.sources.get(key)
        if source is not None and by_text:
            digests = map(digest_of_kernel, embedded_kernels(read_code(store, source)))
            linked[key] = tuple(dict.fromkeys(k for d in digests for k in by_text.get(d, ())))
    return linked


def dependencies_of(
    file: GraphFile, facts: Mapping[str, GraphFacts], needs: Dependencies, inventory: TorchInventory
) -> Iterator[FileInfo]:
    """Yield what exists for one graph: FX graphs below it, generated ``.py``, kernels."""
    for key in facts.get(file.info.name, GraphFacts()).needs:
        for inner in needs.fx_files.get(key, ()):
            yield inner.info
            yield from dependencies_of(inner, facts, needs, inventory)
        if key in inventory.sources:
            yield inventory.sources[key]
            for kernel in needs.kernels_of.get(key, ()):
                for files in (inventory.kernel_sources, inventory.kernels):
                    if kernel in files:
                        yield files[kernel]
