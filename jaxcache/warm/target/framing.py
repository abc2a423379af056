"""Make an entry of an executable that a child has left in a file."""

import hashlib
from pathlib import Path
from typing import NamedTuple

from jaxcache.entry.codec import HEADER_BYTES
from jaxcache.entry.frame import compress_content
from jaxcache.errors import JaxcacheError
from jaxcache.model import Codec

#: JAX's own level; what it reads most is small.
_LEVEL = 3
_MAX_PAYLOAD_BYTES = 2 << 30
_MAX_SECONDS = 2**31 - 1


class Framed(NamedTuple):
    """The bytes of an entry, and what the ledger learns of its payload."""

    frame: bytes
    payload_sha256: str


def frame_payload(file: Path, seconds: float, codec: Codec) -> Framed:
    """Put an executable behind the header of JAX and into a sealed frame.

    Args:
        seconds: what compiling took; the header holds whole ones.

    Raises:
        JaxcacheError: ``too-large``.
        OSError: the file cannot be read.
    """
    with file.open("rb") as opened:
        payload = opened.read(_MAX_PAYLOAD_BYTES + 1)
    if len(payload) > _MAX_PAYLOAD_BYTES:
        raise JaxcacheError(f"{file.name} is larger than any entry", code="too-large")
    header = min(int(seconds), _MAX_SECONDS).to_bytes(HEADER_BYTES, "big")
    frame = compress_content(header + payload, codec, _LEVEL)
    return Framed(frame, hashlib.sha256(payload).hexdigest())
