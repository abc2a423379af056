"""Make the outer layer of an entry: frames that JAX reads and that detect corruption themselves.

zstd frames get the content checksum (RFC 8878, 3.1.1: the low 32 bits of XXH64 of the content),
which every zstd decoder checks; JAX writes none. zlib streams end in Adler-32 as it is. The codec
itself stays, because its name is hashed into the key (``jax/_src/cache_key.py``).
"""

import io
import zlib
from collections.abc import Iterable, Sequence

from jaxcache.core.names import CHECKSUM_BYTES, CHECKSUM_FLAG, ZSTD_MAGIC
from jaxcache.entry import zstd
from jaxcache.entry.codec import decompress_chunks
from jaxcache.model import Codec

MAX_LEVEL = 22
_ZLIB_MAX_LEVEL = 9
#: The fastest level there is, where only the checksum of the content is wanted.
_FASTEST_LEVEL = -100
#: So much at a time, to stay in the processor's cache.
_PIECE_BYTES = 128 << 10


def compress_content(content: bytes, codec: Codec, level: int) -> bytes:
    """Compress a header and payload into a sealed entry.

    Args:
        content: the 4-byte header and the payload.
        codec: ``zstd`` or ``zlib``.
        level: 1 to 22; zlib takes at most 9.
    """
    if codec == "zlib":
        return zlib.compress(content, min(level, _ZLIB_MAX_LEVEL))
    return zstd.compress(content, level)


def seal_entry(frame: bytes) -> bytes:
    """Seal a whole entry without compressing it again; memory does not depend on its content.

    Args:
        frame: the bytes of the file. A zlib stream and a sealed frame are returned as they are,
            without reading their content.

    Returns:
        A sealed entry with the same compressed blocks, at most four bytes longer.

    Raises:
        CodecError: the frame is truncated or damaged, as far as it can be seen without a checksum.
    """
    if not frame.startswith(ZSTD_MAGIC) or _has_checksum(frame):
        return frame
    return b"".join(_append_checksum(frame, decompress_chunks(io.BytesIO(frame), len(frame))))


def add_checksum(frame: bytes, *contents: bytes | bytearray) -> Sequence[bytes | memoryview]:
    """Seal a zstd frame whose content is known, without compressing it again.

    Args:
        frame: one whole zstd frame.
        contents: what it decompresses to, in pieces.

    Returns:
        The frame in pieces, none of them a copy; four bytes longer if it had no checksum.
    """
    if _has_checksum(frame):
        return (frame,)
    wholes = [memoryview(content) for content in contents]
    return _append_checksum(
        frame, (w[at : at + _PIECE_BYTES] for w in wholes for at in range(0, len(w), _PIECE_BYTES))
    )


def _has_checksum(frame: bytes) -> bool:
    return len(frame) > len(ZSTD_MAGIC) and bool(frame[len(ZSTD_MAGIC)] & CHECKSUM_FLAG)


def _append_checksum(
    frame: bytes, content: Iterable[bytes | memoryview]
) -> Sequence[bytes | memoryview]:
    """Set the flag in the frame header, and append the checksum of the content."""
    # The library does not show XXH64 itself; a frame around the same content ends in it.
    around = zstd.compressor(_FASTEST_LEVEL)
    for piece in content:
        around.compress(piece)
    flags = len(ZSTD_MAGIC)
    return (
        ZSTD_MAGIC + bytes([frame[flags] | CHECKSUM_FLAG]),
        memoryview(frame)[flags + 1 :],
        around.flush()[-CHECKSUM_BYTES:],
    )


def seal_frame(frame: bytes, content: bytes, level: int | None) -> bytes:
    """Seal an entry: its own blocks with a checksum, or compressed again if that is smaller.

    Args:
        frame: the entry as it is, whole and sound.
        content: what it decompresses to.
        level: at which to compress again; None keeps the blocks.

    Returns:
        Never more than four bytes longer than ``frame``.
    """
    zstd = frame.startswith(ZSTD_MAGIC)
    sealed = b"".join(add_checksum(frame, content)) if zstd else frame
    if level is None:
        return sealed
    return min(sealed, compress_content(content, "zstd" if zstd else "zlib", level), key=len)
