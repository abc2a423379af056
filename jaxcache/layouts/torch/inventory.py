"""The files of a cache directory of torch's compilers, by name; and which of them each graph needs.

A graph needs files in this order: AOT → FX → generated ``.py`` → kernels. The names of a generated
``.py`` and of its kernels do not tell of each other, so their text is compared (see
:mod:`jaxcache.layouts.torch.kernels`).
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from jaxcache.cache.inventory import OtherFile
from jaxcache.entry.names import FileKind, own_kind, split_name
from jaxcache.layouts.torch.graph import GraphFacts
from jaxcache.layouts.torch.kernels import (
    digest_of_kernel,
    embedded_kernels,
    read_code,
    split_source,
)
from jaxcache.layouts.torch.names import (
    GraphFile,
    TorchKind,
    as_graph,
    parse_path,
    was_never_cached,
)
from jaxcache.model import FileInfo, Problem
from jaxcache.store.base import Store


@dataclass(frozen=True, slots=True)
class TorchInventory:
    """Every file of a cache under what it is. Nothing has been opened."""

    graphs: list[GraphFile] = field(default_factory=list)
    sources: dict[str, FileInfo] = field(default_factory=dict)
    """Generated ``.py`` by key."""
    kernel_sources: dict[str, FileInfo] = field(default_factory=dict)
    """``.main.cpp`` by key."""
    kernels: dict[str, FileInfo] = field(default_factory=dict)
    """``.main.so`` by key."""
    others: list[OtherFile] = field(default_factory=list)

    def files(self) -> Iterator[tuple[StrEnum, FileInfo]]:
        """Yield every file with what it is."""
        for graph in self.graphs:
            yield TorchKind.AOT if graph.tier == "aotautograd" else TorchKind.FX, graph.info
        for kind, code_files in self.code.items():
            yield from ((kind, info) for info in code_files.values())
        for other in self.others:
            yield other.kind, other.info

    @property
    def code(self) -> dict[TorchKind, dict[str, FileInfo]]:
        """Generated code and kernels, which exist for graphs: by kind, then by key."""
        return {
            TorchKind.SOURCE: self.sources,
            TorchKind.KERNEL_SOURCE: self.kernel_sources,
            TorchKind.KERNEL: self.kernels,
        }

    def trusted(self) -> Iterator[tuple[FileInfo, str | None]]:
        """Yield the files that torch unpickles or runs, which may be any."""
        return ((info, None) for _, info in self.files() if info.type == "file")

    def problems(self) -> Iterator[Problem]:
        """Yield what the names alone show to be wrong."""
        for info, kind in self.others:
            if kind is TorchKind.TEMP and not was_never_cached(info.name):
                yield Problem(info.name, "temp-file", f"{info.name} was left by a broken write")
            elif kind is TorchKind.STRAY and split_name(info.name)[0] is FileKind.STRAY:
                linked = info.type == "symlink"
                detail = "a symbolic link" if linked else "not a name that torch's compilers give"
                yield Problem(info.name, "stray-file", detail)


def take_inventory(store: Store) -> TorchInventory:
    """List a cache directory and tell its files apart.

    Raises:
        NoCacheError: the directory cannot be listed.
    """
    inventory = TorchInventory()
    for info in store.list():
        for file in store.walk(info.name) if info.type == "dir" else (info,):
            _add(inventory, file)
    return inventory


def _add(inventory: TorchInventory, info: FileInfo) -> None:
    kind, key, _ = parse_path(info.name)
    if kind is TorchKind.OWN:
        inventory.others.append(OtherFile(info, TorchKind(own_kind(info.name))))
    elif info.type != "file":
        inventory.others.append(OtherFile(info, TorchKind.STRAY))
    elif key is None:
        inventory.others.append(OtherFile(info, kind))
    elif graph := as_graph(info):
        inventory.graphs.append(graph)
    elif kind in inventory.code:
        inventory.code[kind][key] = info
    else:
        inventory.others.append(OtherFile(info, kind))


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
