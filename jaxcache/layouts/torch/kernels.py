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
from collections import Counter
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
_KERNEL = re.compile(rb"'''\n(.*?)'''", re.DOTALL)
_BINDINGS = b"\n// Python bindings to call"
#: What bindings say of one kernel: how many arguments it takes (twice), and how it is called.
_OWN = re.compile(rb"(?<=args\) != )\d+(?=\))|(?<=requires )\d+(?= args)|\n[^\n]*Py_RETURN_NONE;")
#: Without a bracket inside: else each of many beginnings is followed to the end of the line.
_ARGUMENTS = re.compile(rb"cpp_pybinding\(\[([^\[\]\n]*)\]")
#: Bindings that differ from those of the other kernels by no more than this are damaged, and not
#: those of another torch.
_FEW_BYTES = 16


class Source(NamedTuple):
    """A kernel's source, in its two parts."""

    text: bytes
    bindings: bytes | None
    """None where there are none: not every kernel is called from Python."""

    @property
    def digest(self) -> bytes:
        """Names the text."""
        return digest_of_kernel(self.text)

    @property
    def common(self) -> bytes:
        """The part of the bindings that every kernel of one torch has."""
        return _OWN.sub(b"", self.bindings or b"")

    @property
    def own(self) -> tuple[bytes, ...]:
        """The other part."""
        return tuple(part.strip() for part in _OWN.findall(self.bindings or b""))

    @property
    def whole(self) -> bool:
        """Whether its end is there."""
        bindings = self.bindings
        if bindings is None:
            return True
        return bindings.count(b"{") == bindings.count(b"}") and bindings.rstrip().endswith(b"}")


def split_source(data: bytes) -> Source:
    """A ``.main.cpp`` in its two parts."""
    text, separator, rest = data.partition(_BINDINGS)
    return Source(text, rest if separator else None)


def embedded_kernels(code: bytes) -> Iterator[bytes]:
    """Yield the sources of kernels in a generated ``.py``."""
    return (match[1] for match in _KERNEL.finditer(code))


def digest_of_kernel(text: bytes) -> bytes:
    """Names a kernel's source, without its margins."""
    return hashlib.sha256(text.strip()).digest()


def embedded_calls(code: bytes) -> Iterator[tuple[bytes, ...]]:
    """Yield what the bindings of each kernel in a generated ``.py`` say of it."""
    for match in _ARGUMENTS.finditer(code):
        types = [word.strip(b" '").replace(b"const ", b"") for word in match[1].split(b",")]
        words = [b"parse_arg<%b>(args, %d)" % (t, n) for n, t in enumerate(types)]
        count = b"%d" % len(types)
        yield count, count, b"kernel(%b); Py_RETURN_NONE;" % b", ".join(words)


def read_code(store: Store, info: FileInfo) -> bytes:
    """Read a file of code; empty where it cannot be read."""
    try:
        return store.read(info.name, limit=_MAX_BYTES)
    except StoreError:
        return b""


class SourceJudge:
    """Holds the sources of kernels against the ``.py`` that embed them, and against each other.

    Args:
        sources: every generated ``.py``.
        kernel_sources: every ``.main.cpp``.
    """

    def __init__(
        self, store: Store, sources: Iterable[FileInfo], kernel_sources: Iterable[FileInfo]
    ) -> None:
        self._store = store
        embedded: dict[bytes, FileInfo] = {}
        calls: set[tuple[bytes, ...]] = set()
        for info in sources:
            code = read_code(store, info)
            embedded.update((digest_of_kernel(text), info) for text in embedded_kernels(code))
            calls.update(embedded_calls(code))
        bindings: Counter[bytes] = Counter()
        intact: set[bytes] = set()
        known = False
        for info in kernel_sources:
            source = split_source(read_code(store, info))
            intact.add(source.digest)
            if source.bindings is not None:
                bindings[source.common] += 1
                known = known or source.own in calls
        self._embedded = embedded.keys()
        self._calls = calls if known else set()  # else this torch writes them otherwise
        self._usual = [common for common, count in bindings.items() if count > 1]
        self._wanting = {i.name: i for digest, i in embedded.items() if digest not in intact}

    def judge(self, data: bytes) -> Found | None:
        """Judge one ``.main.cpp``; None where nothing speaks against it."""
        if not data.strip():
            return "empty", "no code: torch would compile it, and fail in every run"
        if b"\0" in data:
            return "bad-payload", "holds NUL bytes, as no source does"
        source = split_source(data)
        if not source.whole:
            return "truncated", "its bindings end too early: torch would compile it, and fail"
        if source.digest in self._embedded:
            detail = "its bindings are not those of the other kernels here"
            return ("source-mismatch", detail) if self._is_odd(source) else None
        for info in self._wanting.values():
            for text in embedded_kernels(read_code(self._store, info)):
                if digest_of_kernel(text) in self._embedded and _is_remains(source, text.strip()):
                    base = info.name.rpartition("/")[2]
                    return "source-mismatch", f"its code is not the one that {base} holds"
        return None

    def _is_odd(self, source: Source) -> bool:
        """Whether a source has bindings that torch did not write."""
        if source.bindings is None:
            return False
        if self._calls and b" kernel():" in source.bindings[:20] and source.own not in self._calls:
            return True
        common, usual = source.common, self._usual
        return common not in usual and any(
            u.startswith(common) or _resembles(common, u, _FEW_BYTES) for u in usual
        )


def _is_remains(source: Source, text: bytes) -> bool:
    """Whether a source was that of a kernel before it was damaged."""
    found = source.text.strip()
    if source.bindings is None and (text.startswith(found) or found.startswith(text)):
        return True
    return _resembles(found, text, max(len(found), len(text)) // 4)


def _resembles(left: bytes, right: bytes, most: int) -> bool:
    """Whether two texts differ in one stretch of so many bytes at the most."""
    start = _same_bytes(left, right)
    end = _same_bytes(left[start:][::-1], right[start:][::-1])
    return max(len(left), len(right)) - start - end <= most


def _same_bytes(left: bytes, right: bytes) -> int:
    """The length in bytes of the common start of two texts."""
    shorter = min(len(left), len(right))
    return next((i for i in range(shorter) if left[i] != right[i]), shorter)


def judge_header(head: bytes, size_bytes: int) -> Found | None:
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
