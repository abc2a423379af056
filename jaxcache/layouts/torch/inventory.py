"""The files of a cache directory of torch's compilers, by name; and which of them each graph needs.

A graph needs files in this order: AOT → FX → generated ``.py`` → kernels. A generated ``.py`` and
its kernels do not name each other, so their text is compared.

A generated ``.py`` holds the source of its kernels as raw strings; a ``.main.cpp`` is that source
followed by the bindings that torch adds (``torch/_inductor/codecache.py``:
``CppPythonBindingsCodeCache``, 2.13). Torch writes no source that is there already, so that a
damaged one makes every later compile fail, or a kernel that no run can import.

A shared object is held against its own header: one that is cut ends a process with SIGBUS. Source:
System V gABI chapter 4 (``e_shoff``, ``e_shentsize``, ``e_shnum``).
"""

import hashlib
import re
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from jaxcache.cache.files import OtherFile
from jaxcache.entry.names import FileKind, own_kind, split_name
from jaxcache.layouts.torch.graph import Found, GraphFacts
from jaxcache.layouts.torch.names import (
    GraphFile,
    TorchKind,
    as_graph,
    parse_path,
    was_never_cached,
)
from jaxcache.model import FileInfo, Problem
from jaxcache.store.base import Store, StoreError

_HEADER_BYTES = 64
_SHORT_HEADER_BYTES = 52
_MACH_O = (b"\xcf\xfa\xed\xfe", b"\xca\xfe\xba\xbe")
#: Generated code is some kB; what is larger is not searched.
_MAX_BYTES = 16 << 20
#: Of a kernel, and of all the code of a graph that ``cpp_wrapper`` compiled.
_KERNEL = re.compile(rb"('''|\"\"\")\n(.*?)\1", re.DOTALL)
_BINDINGS = b"\n// Python bindings to call"


class Source(NamedTuple):
    """A kernel's source, in its two parts."""

    text: bytes
    bindings: bytes | None
    """None if it has none: not every kernel is called from Python."""

    @property
    def digest(self) -> bytes:
        """Names the text."""
        return digest_of_kernel(self.text)


def split_source(data: bytes) -> Source:
    """A ``.main.cpp`` in its two parts."""
    text, separator, bindings = data.partition(_BINDINGS)
    return Source(text, bindings if separator else None)


def embedded_kernels(code: bytes) -> Iterator[bytes]:
    """Yield the sources of kernels in a generated ``.py``."""
    return (match[2] for match in _KERNEL.finditer(code))


def digest_of_kernel(text: bytes) -> bytes:
    """Names a kernel's source, without its margins."""
    return hashlib.sha256(text.strip()).digest()


def read_code(store: Store, info: FileInfo, unread: dict[str, str] | None = None) -> bytes:
    """Read a file of code; empty where it cannot be read.

    Args:
        unread: gets the reason, by the file's name, if the file is still there.
    """
    try:
        return store.read(info.name, limit=_MAX_BYTES)
    except StoreError as error:
        if unread is not None and error.code != "missing":
            unread[info.name] = error.reason
        return b""


class SourceChecker:
    """Compares the sources of kernels with the ``.py`` that embed them.

    Args:
        sources: every generated ``.py``.
        kernel_sources: every ``.main.cpp``.
    """

    def __init__(
        self, store: Store, sources: Iterable[FileInfo], kernel_sources: Iterable[FileInfo]
    ) -> None:
        embedded: dict[bytes, tuple[bytes, FileInfo]] = {}
        for info in sources:
            for text in embedded_kernels(read_code(store, info)):
                embedded[digest_of_kernel(text)] = text.strip(), info
        intact = {split_source(read_code(store, info)).digest for info in kernel_sources}
        self._embedded = embedded.keys()
        self._wanting = [
            embedded_source for digest, embedded_source in embedded.items() if digest not in intact
        ]

    def check_source(self, data: bytes) -> Found | None:
        """Return what is wrong with one ``.main.cpp``; None where nothing is."""
        if not data.strip():
            return "empty", "no code: torch would compile it, and fail in every run"
        if b"\0" in data:
            return "bad-payload", "holds NUL bytes, as no source does"
        source = split_source(data)
        if source.digest in self._embedded:
            return None
        for text, info in self._wanting:
            if _is_remains(source, text):
                base = info.name.rpartition("/")[2]
                return "source-mismatch", f"its code is not the one that {base} holds"
        return None


def _is_remains(source: Source, text: bytes) -> bool:
    """Whether a source was that of a kernel before it was damaged."""
    stripped = source.text.strip()
    if source.bindings is None and (text.startswith(stripped) or stripped.startswith(text)):
        return True
    return _resembles(stripped, text, max(len(stripped), len(text)) // 4)


def _resembles(left: bytes, right: bytes, most: int) -> bool:
    """Return whether two texts differ in one stretch of at most ``most`` bytes."""
    start = _same_bytes(left, right)
    end = _same_bytes(left[start:][::-1], right[start:][::-1])
    return max(len(left), len(right)) - start - end <= most


def _same_bytes(left: bytes, right: bytes) -> int:
    """The length in bytes of the common start of two texts."""
    shorter = min(len(left), len(right))
    return next((i for i in range(shorter) if left[i] != right[i]), shorter)


def check_shared_object(head: bytes, size_bytes: int) -> Found | None:
    """Judge the first 64 bytes of a file of that size."""
    if not head:
        return "empty", "no bytes: torch cannot load it"
    if head[:4] in _MACH_O:
        return None
    if head[:4] != b"\x7fELF" or len(head) < _SHORT_HEADER_BYTES:
        return "bad-header", "no shared object"
    order = {1: "<", 2: ">"}.get(head[5])
    if head[4] not in (1, 2) or order is None or (head[4] == 2 and len(head) < _HEADER_BYTES):
        return "bad-header", "its header is damaged"
    if head[4] == 2:
        (offset,) = struct.unpack_from(f"{order}Q", head, 40)
        entry_size, count = struct.unpack_from(f"{order}HH", head, 58)
    else:
        (offset,) = struct.unpack_from(f"{order}I", head, 32)
        entry_size, count = struct.unpack_from(f"{order}HH", head, 46)
    needed = offset + entry_size * count
    if not offset or not entry_size or not count:
        return "bad-header", "it names no sections"
    if size_bytes < needed:
        return "truncated", f"{size_bytes:,} bytes, and its sections end at {needed:,}"
    return None


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
            yield parse_path(graph.info.name).kind, graph.info
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
    """List a cache directory and sort its files by kind.

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
    elif info.type != "file" and kind not in (TorchKind.UNREAD, TorchKind.COMPILER):
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
    unread: Mapping[str, str] = field(default_factory=dict)
    """Code that could not be read, whose kernels or ``.py`` are unknown → the reason."""


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
    unread: dict[str, str] = {}
    by_text: dict[bytes, list[str]] = {}
    for key, info in inventory.kernel_sources.items():
        parts = split_source(read_code(store, info, unread))
        if parts.bindings is not None:
            by_text.setdefault(parts.digest, []).append(key)
    linked: dict[str, tuple[str, ...]] = {}
    wanted = inventory.sources.keys() if sources is None else inventory.sources.keys() & sources
    for key in sorted(wanted) if by_text else ():
        code = read_code(store, inventory.sources[key], unread)
        digests = map(digest_of_kernel, embedded_kernels(code))
        linked[key] = tuple(dict.fromkeys(k for d in digests for k in by_text.get(d, ())))
    return Dependencies({key: tuple(files) for key, files in fx.items()}, linked, unread)


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
