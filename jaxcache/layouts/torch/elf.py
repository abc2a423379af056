"""Whether a shared object is as long as it says: what is cut off ends a process with SIGBUS.

Source: the ELF header, System V gABI chapter 4 (``e_shoff``, ``e_shentsize``, ``e_shnum``).
"""

import struct

from jaxcache.layouts.torch.graph import Found
from jaxcache.model import FileInfo
from jaxcache.store.base import Store

_HEADER_BYTES = 64
_SHORT_HEADER_BYTES = 52
_MACH_O = (b"\xcf\xfa\xed\xfe", b"\xca\xfe\xba\xbe")


def elf_problem(store: Store, info: FileInfo) -> Found | None:
    """Look at the header of a shared object; None where nothing speaks against it.

    A Mach-O file passes: macOS itself refuses one that is cut.

    Raises:
        MissingError, StoreError
    """
    head = store.read(info.name, limit=_HEADER_BYTES)
    return judge_header(head, info.size_bytes)


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
