"""The outer layer of an entry: zstd or zlib around a 4-byte header and the executable.

``jax/_src/compilation_cache.py`` (0.4.14 and later) joins ``int(compile_seconds).to_bytes(4,
"big")`` with the serialized executable and compresses the whole: with zstd where the ``zstandard``
package (or Python 3.14's ``compression.zstd``) imports, else with zlib. Its zstd frames announce
the content size and carry no checksum.

Frames that are made here detect corruption themselves: zstd frames get the content checksum (RFC
8878, 3.1.1: the low 32 bits of XXH64 of the content), which every zstd decoder checks. zlib streams
end in Adler-32 as it is. The codec itself stays, because its name is hashed into the key
(``jax/_src/cache_key.py``).
"""

import contextlib
import io
import sys
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import BinaryIO, NamedTuple

from jaxcache.core import names
from jaxcache.entry import zstd
from jaxcache.model import Codec, ProblemKind

#: First byte of a zlib stream with a 32 KiB window, as Python's zlib writes.
_ZLIB_FIRST = 0x78
#: Enough of a file for the header of its frame and, in a usual entry, for its first block.
HEAD_BYTES = 16 * 1024
#: A zstd block holds at most this many bytes, compressed or not (RFC 8878, 3.1.1.2.4).
_BLOCK_BYTES = 128 * 1024
_MAX_WINDOW_BYTES = 1 << zstd.MAX_WINDOW_LOG
#: The smallest a block of 128 KiB can be: a 3-byte header and one repeated byte.
_MAX_ZSTD_RATIO = _BLOCK_BYTES // 4
_RLE_BLOCK = 1
_RESERVED_BLOCK = 3
#: The longest prefix, such as a signature, that a known frame may have.
_MAX_OFFSET_BYTES = 64
#: What is decompressed at a time: small enough for the second-level cache of a core.
_CHUNK_BYTES = 1 << 18
#: The largest content that is decompressed in one piece where a stream would do as well.
_ONE_PIECE_BYTES = 4 << 20


class CodecError(Exception):
    """The outer layer is damaged.

    Attributes:
        kind: the problem's name in the JSON contract.
        start: the first four bytes, where no known codec has them.
    """

    def __init__(self, kind: ProblemKind, detail: str, start: bytes = b"") -> None:
        super().__init__(detail)
        self.kind = kind
        self.detail = detail
        self.start = start


class EntryHeader(NamedTuple):
    """The facts in the first bytes of an entry."""

    codec: Codec
    content_bytes: int | None
    """Decompressed size with the 4-byte header, where the frame announces it."""
    checksum: bool
    """Whether the codec itself detects corruption."""
    compile_seconds: int | None
    """Whole seconds; 0 is what JAX writes for every compile under a second."""


def detect_codec(start: bytes) -> Codec:
    """Tell the codec by magic number, from the first four bytes."""
    if start[:4] == names.ZSTD_MAGIC:
        return "zstd"
    if len(start) >= 2 and start[0] == _ZLIB_FIRST and int.from_bytes(start[:2], "big") % 31 == 0:
        return "zlib"
    return "unknown"


def read_entry_header(start: bytes, size_bytes: int) -> EntryHeader:
    """Read the frame header and the seconds from the first bytes of an entry.

    Args:
        start: the first :data:`HEAD_BYTES` of the file; up to 128 KiB help where the first
            block is larger (then ``compile_seconds`` is None and the caller may read on).
        size_bytes: the size of the whole file, which bounds what may be announced.

    Raises:
        CodecError: empty, no known codec, truncated, or announcing the impossible.
    """
    if not start:
        raise CodecError("empty", "the file is empty")
    if start[:4] == names.ZSTD_MAGIC:
        frame = _zstd_frame(start, size_bytes)
        content_bytes = frame.content_bytes
        checksum = frame.checksum
        first = _first_of_zstd(start, truncated=len(start) >= size_bytes)
        codec: Codec = "zstd"
    elif detect_codec(start) == "zlib":
        content_bytes = None
        checksum = True
        codec = "zlib"
        first = _first_of_zlib(start)
    else:
        raise _unknown_codec(start)
    return EntryHeader(codec, content_bytes, checksum, check_header(first) if first else None)


def _unknown_codec(start: bytes) -> CodecError:
    begun = len(start) < len(names.ZSTD_MAGIC) and start[0] in (names.ZSTD_MAGIC[0], _ZLIB_FIRST)
    detail = f"starts with {start[:4].hex()}, neither zstd nor zlib"
    for offset in range(1, _MAX_OFFSET_BYTES + 1):
        if (codec := detect_codec(start[offset:])) != "unknown":
            with contextlib.suppress(CodecError):
                read_entry_header(start[offset:], sys.maxsize)
                if codec == "zlib":  # whose magic is short
                    next(_inflate(io.BytesIO(start[offset:])))
                return CodecError("unknown-format", f"{detail}; {codec} begins at byte {offset}")
    return CodecError("truncated" if begun else "bad-codec", detail, start[:4])


def _zstd_frame(start: bytes, size_bytes: int) -> names.FrameHeader:
    frame = names.read_frame_header(start)
    if frame is None:
        is_short = size_bytes < names.FRAME_HEADER_MAX_BYTES
        kind: ProblemKind = "truncated" if is_short else "bad-codec"
        raise CodecError(kind, f"zstd frame header: {'truncated' if is_short else 'not valid'}")
    content = frame.content_bytes
    if content is not None and content > size_bytes * _MAX_ZSTD_RATIO:
        raise CodecError(
            "bad-codec", f"announces {content} bytes, which {size_bytes} compressed cannot hold"
        )
    if content is not None and content < names.HEADER_BYTES:
        raise CodecError("bad-header", f"holds {content} bytes, less than the 4-byte header")
    if frame.window_bytes > _MAX_WINDOW_BYTES:
        raise CodecError("bad-codec", f"wants a window of {frame.window_bytes} bytes")
    return frame


def _first_of_zstd(start: bytes, *, truncated: bool) -> bytes | None:
    """The first four decompressed bytes; None where the first block reaches past ``start``."""
    try:
        first: bytes = zstd.decompressor().decompress(start, names.HEADER_BYTES)
    except zstd.library.ZstdError as error:
        raise CodecError("bad-codec", f"zstd: {_reason(error)}") from error
    if len(first) == names.HEADER_BYTES:
        return first
    if truncated:
        raise CodecError("truncated", "ends inside the first zstd block")
    return None


def _first_of_zlib(start: bytes) -> bytes:
    try:
        first = zlib.decompressobj().decompress(start, names.HEADER_BYTES)
    except zlib.error as error:
        raise CodecError("bad-codec", f"zlib: {error}") from error
    if len(first) < names.HEADER_BYTES:
        raise CodecError("truncated", "ends inside the header")
    return first


def check_frame(file: BinaryIO, size_bytes: int) -> None:
    """Walk the block headers of a zstd frame: it must end where the file ends.

    Finds every truncation and every trailing byte without decompressing anything, reading three
    bytes per block (RFC 8878, 3.1.1.2). Does nothing for zlib, which has no such headers.

    Args:
        file: seekable, at any position; left at any position.

    Raises:
        CodecError: empty, bad-codec, truncated or trailing-bytes.
    """
    file.seek(0)
    start = file.read(names.FRAME_HEADER_MAX_BYTES)
    if not start:
        raise CodecError("empty", "the file is empty")
    codec = detect_codec(start)
    if codec == "unknown":
        raise _unknown_codec(start + file.read(HEAD_BYTES))
    if codec == "zlib":
        return
    frame = _zstd_frame(start, size_bytes)
    end = frame.size_bytes
    last = False
    while not last:
        file.seek(end)
        block = int.from_bytes(header := file.read(3), "little")
        last = bool(block & 1)
        block_type = block >> 1 & 3
        block_bytes = block >> 3
        if block_type == _RESERVED_BLOCK and len(header) == 3:
            raise CodecError("bad-codec", f"reserved block type at byte {end}")
        end += 3 + (1 if block_type == _RLE_BLOCK else block_bytes)
        if len(header) < 3 or end > size_bytes:
            raise CodecError("truncated", f"ends at byte {size_bytes}, inside a zstd block")
    end += names.CHECKSUM_BYTES if frame.checksum else 0
    if end > size_bytes:
        raise CodecError("truncated", "ends inside the content checksum")
    if end < size_bytes:
        raise CodecError("trailing-bytes", f"{size_bytes - end} bytes follow the end of the frame")


def decompress_chunks(file: BinaryIO, size_bytes: int) -> Iterator[bytes]:
    """Decompress a whole entry as a stream, header included, checking its ends first.

    Yields at most 256 KiB at a time, so that memory does not depend on what a file announces.

    Args:
        file: seekable, the whole entry.
        size_bytes: its size, which bounds what it may announce.

    Raises:
        CodecError: empty, damaged, truncated, with trailing bytes, or with another size than
            announced; damage inside is raised after the chunks before it.
    """
    check_frame(file, size_bytes)
    file.seek(0)
    start = file.read(names.FRAME_HEADER_MAX_BYTES)
    file.seek(0)
    if detect_codec(start) == "zlib":
        yield from _inflate(file)
    else:
        yield from _unzstd(file, _zstd_frame(start, size_bytes).content_bytes)


def check_small(data: bytes) -> bool | None:
    """Decompress a whole small zstd entry in one piece: quick, but silent about what is wrong.

    Returns:
        Whether its frame carries a checksum, if it is sound. None if the entry is damaged, large or
        of another codec; :func:`decompress_whole` determines which.
    """
    try:
        frame = _zstd_frame(data, len(data))
        if frame.content_bytes is None or frame.content_bytes > _ONE_PIECE_BYTES:
            return None
        content = _decompress_frame(data, frame.content_bytes)
    except (CodecError, zstd.library.ZstdError):
        return None
    return frame.checksum if content is not None and content[0] < 0x80 else None


def _decompress_frame(data: bytes, content_bytes: int) -> bytes | None:
    """Decompress a frame in one piece; None where it, or what it holds, has not the right size."""
    decoder = zstd.decompressor()
    content: bytes = decoder.decompress(data, content_bytes + 1)
    if not decoder.eof or decoder.unused_data or len(content) != content_bytes:
        return None
    return content


def decompress_whole(data: bytes, *, limit: int) -> bytes | None:
    """Decompress a whole entry in memory, header included; None if it holds more than ``limit``.

    Raises:
        CodecError: as :func:`decompress_chunks`, and bad-header.
    """
    if detect_codec(data) == "zstd":
        content_bytes = _zstd_frame(data, len(data)).content_bytes
        if content_bytes is not None and content_bytes > limit:
            return None
        if content_bytes is not None:
            # In one piece; if that fails, the stream below finds what is wrong.
            with contextlib.suppress(zstd.library.ZstdError, MemoryError):
                if (content := _decompress_frame(data, content_bytes)) is not None:
                    check_header(content[: names.HEADER_BYTES])
                    return content
    chunks: list[bytes] = []
    size_bytes = 0
    for chunk in decompress_chunks(io.BytesIO(data), len(data)):
        size_bytes += len(chunk)
        if size_bytes > limit:
            return None
        chunks.append(chunk)
    content = b"".join(chunks)
    check_header(content[: names.HEADER_BYTES])
    return content


def check_header(first: bytes) -> int:
    """Read the compile seconds from the first four decompressed bytes.

    Raises:
        CodecError: bad-header.
    """
    if len(first) < names.HEADER_BYTES:
        raise CodecError("bad-header", f"holds {len(first)} bytes, less than the 4-byte header")
    seconds = int.from_bytes(first[: names.HEADER_BYTES], "big", signed=True)
    if seconds < 0:
        raise CodecError("bad-header", f"compile time of {seconds} s")
    return seconds


def _unzstd(file: BinaryIO, content_bytes: int | None) -> Iterator[bytes]:
    decoder = zstd.decompressor()
    read_bytes = 0
    try:
        while not decoder.eof:
            data = b""
            if decoder.needs_input and not (data := file.read(_BLOCK_BYTES)):
                raise CodecError("truncated", "ends inside the frame")
            chunk = decoder.decompress(data, _CHUNK_BYTES)
            read_bytes += len(chunk)
            if chunk:
                yield chunk
    except zstd.library.ZstdError as error:
        kind: ProblemKind = "checksum-mismatch" if "checksum" in str(error) else "bad-codec"
        raise CodecError(kind, f"zstd: {_reason(error)}") from error
    if content_bytes not in (None, read_bytes):
        raise CodecError(
            "bad-codec", f"holds {read_bytes} bytes, not the {content_bytes} announced"
        )


def _inflate(file: BinaryIO) -> Iterator[bytes]:
    decoder = zlib.decompressobj()
    read_bytes = 0
    while data := decoder.unconsumed_tail or file.read(_CHUNK_BYTES):
        try:
            chunk = decoder.decompress(data, _CHUNK_BYTES)
        except zlib.error as error:
            kind: ProblemKind = "checksum-mismatch" if "check" in str(error) else "bad-codec"
            raise CodecError(kind, f"zlib: {error}") from error
        read_bytes += len(chunk)
        if chunk:
            yield chunk
        if decoder.eof:
            if decoder.unused_data or file.read(1):
                raise CodecError("trailing-bytes", "bytes follow the end of the zlib stream")
            return
    raise CodecError("truncated", f"the zlib stream ends after {read_bytes} decompressed bytes")


def _reason(error: Exception) -> str:
    """The library's reason without its lead-in."""
    return str(error).rpartition(": ")[2]


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
    if not frame.startswith(names.ZSTD_MAGIC) or _has_checksum(frame):
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
    return len(frame) > len(names.ZSTD_MAGIC) and bool(
        frame[len(names.ZSTD_MAGIC)] & names.CHECKSUM_FLAG
    )


def _append_checksum(
    frame: bytes, content: Iterable[bytes | memoryview]
) -> Sequence[bytes | memoryview]:
    """Set the flag in the frame header, and append the checksum of the content."""
    # The library does not show XXH64 itself; a frame around the same content ends in it.
    around = zstd.compressor(_FASTEST_LEVEL)
    for piece in content:
        around.compress(piece)
    flags = len(names.ZSTD_MAGIC)
    return (
        names.ZSTD_MAGIC + bytes([frame[flags] | names.CHECKSUM_FLAG]),
        memoryview(frame)[flags + 1 :],
        around.flush()[-names.CHECKSUM_BYTES :],
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
    zstd = frame.startswith(names.ZSTD_MAGIC)
    sealed = b"".join(add_checksum(frame, content)) if zstd else frame
    if level is None:
        return sealed
    return min(sealed, compress_content(content, "zstd" if zstd else "zlib", level), key=len)
