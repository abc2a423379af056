"""An entry on its way to XLA: check it, decode it once, write it with a checksum.

An entry must be whole, of a believable size, and of the module of its key. A module's name is the
first field of its HLO, near the beginning of the payload, before the name of its entry computation
(HloModuleProto in xla/service/hlo.proto). An executable that is compressed once more has no name
that can be read, and passes.

JAX compresses an entry with the standard library's zstd (Python 3.14), zstandard or zlib, in this
order (``compress_executable`` in jax/_src/compilation_cache.py), and leaves zstd's checksum out.
The content is 4 bytes of compile seconds and the serialized executable. Format: RFC 8878.
"""

import contextlib
import functools
import hashlib
import re
import zlib
from importlib import import_module
from typing import Any, NamedTuple

from ..core.names import (
    CHECKSUM_BYTES,
    CHECKSUM_FLAG,
    HEADER_BYTES,
    ZSTD_MAGIC,
    max_payload_bytes,
    parse_key,
    read_frame_header,
    same_module,
)

_FASTEST_LEVEL = -100
#: No executable is larger; a frame that announces more is damaged.
MAX_CONTENT_BYTES = 4 << 30
#: The first block of a frame, which holds the header.
HEAD_BYTES = (128 << 10) + 64
#: The name begins within 800 bytes, on JAX 0.4.38 to 0.12, CPU and GPU.
_LOOK_BYTES = 1 << 16
_NAMES = re.compile(rb"\n([\x01-\x7f])([^\x00-\x1f]{1,127})\x12.main", re.DOTALL)


class DamagedEntryError(ValueError):
    """The bytes are not a whole entry; the text gives the reason."""


class DecodedEntry(NamedTuple):
    """The content of a frame."""

    content: bytes
    sealed: bool
    """A checksum proves the content."""

    def digest(self) -> str:
        """The SHA-256 of the executable, as the ledger and signatures have it."""
        return hashlib.sha256(memoryview(self.content)[HEADER_BYTES:]).hexdigest()


def _announced(value: bytes, limit: int) -> int:
    """The content size in a zstd frame header.

    Raises:
        DamagedEntryError: no size is given (both codecs of JAX give one), or an absurd one.
    """
    header = read_frame_header(value)
    if header is None:
        raise DamagedEntryError("no header of a frame")
    size = header.content_bytes
    if size is None:
        raise DamagedEntryError("no content size in the header")
    if not HEADER_BYTES < size <= limit:
        raise DamagedEntryError(f"a content size of {size} bytes in the header")
    return size


class _StandardZstd:
    """The standard library's zstd, which JAX takes first."""

    def __init__(self) -> None:
        self._zstd: Any = import_module("compression.zstd")

    def decode(self, value: bytes, size: int) -> bytes:
        decoder = self._zstd.ZstdDecompressor()
        content: bytes = decoder.decompress(value, size + 1)
        if not decoder.eof or decoder.unused_data:
            raise DamagedEntryError("truncated, or bytes after the frame")
        return content

    def first(self, start: bytes, size: int) -> bytes:
        return bytes(self._zstd.ZstdDecompressor().decompress(start, size))

    def encode(self, content: bytes) -> bytes:
        names = self._zstd.CompressionParameter
        options = {names.compression_level: _FASTEST_LEVEL, names.checksum_flag: 1}
        return bytes(self._zstd.compress(content, options=options))


class _Zstandard:
    """The package zstandard, which JAX takes where the standard library has no zstd."""

    def __init__(self) -> None:
        self._zstd: Any = import_module("zstandard")

    # A decoder belongs to one call: it is not safe between threads. Refusing bytes after the frame
    # takes zstandard 0.19 (2022); the announced size bounds what is allocated.
    def decode(self, value: bytes, size: int) -> bytes:  # noqa: ARG002
        return bytes(self._zstd.ZstdDecompressor().decompress(value, allow_extra_data=False))

    def first(self, start: bytes, size: int) -> bytes:
        with self._zstd.ZstdDecompressor().stream_reader(start) as reader:
            return bytes(reader.read(size))

    def encode(self, content: bytes) -> bytes:
        frame = self._zstd.ZstdCompressor(level=_FASTEST_LEVEL, write_checksum=True)
        return bytes(frame.compress(content))


@functools.lru_cache(maxsize=1)
def _find_zstd() -> "_StandardZstd | _Zstandard":
    """The codec of this Python, the same that JAX takes."""
    for kind in (_StandardZstd, _Zstandard):
        with contextlib.suppress(ImportError):
            return kind()
    raise DamagedEntryError("written with zstd, which this Python lacks")


def decode(value: bytes, limit: int = MAX_CONTENT_BYTES) -> DecodedEntry:
    """Decode an entry and check its frame.

    Args:
        limit: of its content, in bytes.

    Raises:
        DamagedEntryError: it is damaged, or not an entry.
    """
    try:
        if value[:4] == ZSTD_MAGIC:
            size = _announced(value, limit)
            content = _find_zstd().decode(value, size)
            if len(content) != size:
                raise DamagedEntryError("not of the announced size")
            return DecodedEntry(content, bool(value[4] & CHECKSUM_FLAG))
        if value[:1] == b"\x78":
            return DecodedEntry(_inflate(value, limit), True)  # zlib always has its Adler-32
    except DamagedEntryError:
        raise
    except Exception as error:  # each codec has errors of its own
        raise DamagedEntryError(str(error) or type(error).__name__) from error
    raise DamagedEntryError("neither zstd nor zlib" if value else "empty")


def _inflate(value: bytes, limit: int) -> bytes:
    decoder = zlib.decompressobj()
    content = decoder.decompress(value, limit)
    if not decoder.eof or decoder.unused_data:
        raise DamagedEntryError("truncated, or bytes after the stream")
    if len(content) <= HEADER_BYTES:
        raise DamagedEntryError("no executable in it")
    return content


def read_header(start: bytes) -> int:
    """Return the whole compile seconds in an entry's header.

    Args:
        start: the first :data:`HEAD_BYTES` of the entry, or all of it.

    Raises:
        DamagedEntryError: it is damaged, or not an entry.
    """
    try:
        if start[:1] == b"\x78":
            header = zlib.decompressobj().decompress(start, HEADER_BYTES)
        else:
            header = _find_zstd().first(start, HEADER_BYTES)
    except Exception as error:  # each codec has errors of its own
        raise DamagedEntryError(str(error) or type(error).__name__) from error
    if len(header) < HEADER_BYTES:
        raise DamagedEntryError("no header in it")
    return int.from_bytes(header, "big")


def same_payload(left: bytes, right: bytes) -> bool:
    """Return whether two entries hold the same executable; their compile times may differ."""
    try:
        return decode(left).content[HEADER_BYTES:] == decode(right).content[HEADER_BYTES:]
    except DamagedEntryError:
        return False


def add_checksum(value: bytes, content: bytes) -> bytes:
    """Seal a zstd frame without compressing it again: set the flag, append the checksum.

    The codecs do not offer XXH64 itself; a frame around the same content ends with it.
    """
    checksum = _find_zstd().encode(content)[-CHECKSUM_BYTES:]
    return b"".join((ZSTD_MAGIC, bytes([value[4] | CHECKSUM_FLAG]), value[5:], checksum))


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
