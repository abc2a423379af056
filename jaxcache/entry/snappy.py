"""Raw snappy, in which GPU and TPU executables of JAX 0.10.2 and later compress their parts.

Format: format_description.txt of google/snappy. cramjam, where it is installed, is 30 times faster.
"""

from typing import Any

cramjam: Any
try:
    import cramjam
except ImportError:
    cramjam = None


class SnappyError(Exception):
    """The stream is damaged."""


def decompress(data: bytes, start: int, size: int) -> bytes:
    """Decompress a raw stream.

    Args:
        start: where its elements begin, after the varint of the size.
        size: the announced size; nothing more is allocated.

    Raises:
        SnappyError: it is damaged, or holds more or less than that.
    """
    try:
        out = bytes(cramjam.snappy.decompress_raw(data)) if cramjam else _expand(data, start, size)
    except Exception as error:  # cramjam's, and an index beyond the end
        raise SnappyError("snappy data is damaged") from error
    if len(out) != size:
        raise SnappyError(f"snappy holds {len(out)} bytes, not the {size} announced")
    return out


def _expand(data: bytes, at: int, size: int) -> bytes:
    out = bytearray()
    while at < len(data) and len(out) <= size:
        tag = data[at]
        at += 1
        kind = tag & 3
        if kind == 0:
            length = tag >> 2
            if length >= 60:
                width = length - 59
                length = int.from_bytes(data[at : at + width], "little")
                at += width
            length += 1
            if length > len(data) - at:
                raise SnappyError("a literal runs past the end")
            out += data[at : at + length]
            at += length
            continue
        if kind == 1:
            length = (tag >> 2 & 7) + 4
            offset = tag >> 5 << 8 | data[at]
            at += 1
        else:
            length = (tag >> 2) + 1
            width = 2 * kind - 2
            offset = int.from_bytes(data[at : at + width], "little")
            at += width
        first = len(out) - offset
        if not offset or first < 0:
            raise SnappyError("a copy begins before the start")
        if length <= offset:
            out += out[first : first + length]
        else:  # it overlaps what it makes
            out += (out[first:] * (length // offset + 1))[:length]
    return bytes(out)
