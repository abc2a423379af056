"""Compiled kernels and their sources: what can be held against them without the compiler.

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
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from jaxcache.layouts.torch.graph import Found
from jaxcache.model import FileInfo
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
    """None where there are none: not every kernel is called from Python."""

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


def read_code(store: Store, info: FileInfo) -> bytes:
    """Read a file of code; empty where it cannot be read."""
    try:
        return store.read(info.name, limit=_MAX_BYTES)
    except StoreError:
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
    """Whether two texts differ in one stretch of so many bytes at the most."""
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
