"""What an entry must be to reach XLA: whole, of a believable size, and of the module of its key.

The same order as where ``pull`` takes entries in: who vouches for it, its size, its frame, its
module. A module's name is the first field of its HLO, near the beginning of the payload, before the
name of its entry computation (HloModuleProto in xla/service/hlo.proto). Where no such name can be
read, as in an executable that is compressed once more, nothing is said.
"""

import re
from typing import Any

from ..core.frame import max_payload_bytes
from ..core.names import parse_key, same_module
from .frame import MAX_CONTENT_BYTES, DamagedEntryError, DecodedEntry, decode

#: The name begins within 800 bytes, on JAX 0.4.38 to 0.12, CPU and GPU.
_LOOK_BYTES = 1 << 16
_NAMES = re.compile(rb"\n([\x01-\x7f])([^\x00-\x1f]{1,127})\x12.main", re.DOTALL)


def open_entry(key: str, value: bytes, *, is_foreign: bool) -> DecodedEntry:
    """Decode an entry and check that it may be the entry of its key.

    Args:
        is_foreign: it comes from a tier, so that its size bounds its content.

    Raises:
        DamagedEntryError: it is damaged, too large, or another module's.
    """
    limit = max_payload_bytes(len(value)) if is_foreign else MAX_CONTENT_BYTES
    decoded = decode(value, min(limit, MAX_CONTENT_BYTES))
    named = parse_key(key)
    inside = module_name(decoded.content)
    if named and named.module and inside and not same_module(inside, named.module):
        raise DamagedEntryError(f"it holds the module {inside}")
    return decoded


def module_name(content: Any) -> str:
    """Return the name of the module in the content of an entry; empty where none can be read."""
    for match in _NAMES.finditer(content[:_LOOK_BYTES]):
        if match[1][0] == len(match[2]):
            return match[2].decode("utf-8", "replace")
    return ""
