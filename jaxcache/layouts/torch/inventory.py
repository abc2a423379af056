"""The files of a cache directory of torch's compilers, by name alone."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum

from jaxcache.cache.inventory import OtherFile
from jaxcache.entry.names import FileKind, own_kind, split_name
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
