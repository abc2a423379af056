"""Read an entry file into memory and decode it, within bounds that follow from the file's size."""

from typing import BinaryIO

from jaxcache.entry.codec import HEADER_BYTES, CodecError, decompress_chunks
from jaxcache.entry.contents import Contents
from jaxcache.entry.decode import decode_payload

#: A payload may be this much larger than its file (constants of zeros compress that well) …
FREE_PAYLOAD_BYTES = 256 << 20
#: … and beyond that this many times as large. JAX's own entries reach 30.
_MAX_RATIO = 64


def max_payload_bytes(size_bytes: int) -> int:
    """The largest payload that an entry of this size is believed to hold."""
    return FREE_PAYLOAD_BYTES + _MAX_RATIO * size_bytes


def read_payload(file: BinaryIO, size_bytes: int) -> bytearray:
    """Decompress an entry, without its 4-byte header.

    Memory stays within 1.2 times the payload, which stays within 256 MiB plus 64 times the file.

    Args:
        file: seekable, the whole entry.
        size_bytes: its size.

    Raises:
        CodecError: damaged, or inflating beyond those bounds (``bad-payload``).
    """
    limit = max_payload_bytes(size_bytes)
    payload = bytearray()
    skip = HEADER_BYTES
    for chunk in decompress_chunks(file, size_bytes):
        payload += memoryview(chunk)[skip:]
        skip -= min(skip, len(chunk))
        if len(payload) > limit:
            raise CodecError(
                "bad-payload", f"{size_bytes} bytes inflate to more than {limit}, which is not read"
            )
    if skip:
        raise CodecError("bad-header", "holds less than the 4-byte header")
    return payload


def read_contents(
    file: BinaryIO, size_bytes: int, module: str | None = None, *, check: bool = True
) -> Contents:
    """Decode an entry; damage of any kind becomes findings.

    Args:
        module, check: see :func:`jaxcache.entry.decode.decode_payload`.
    """
    try:
        payload = read_payload(file, size_bytes)
    except CodecError as error:
        return Contents(problems=((error.kind, error.detail),))
    return decode_payload(payload, module, check=check)
