"""The container that bundles and recipes share: a header, zstd frames, SHA-256, one file.

Each begins with a magic number and a version. What follows is described where it is written
(:mod:`jaxcache.cache.bundle.format`, :mod:`jaxcache.cache.recipe`); this module writes
compressed streams and files, and reads them without believing a number in them.
"""

import hashlib
import struct
from collections.abc import Iterable, Iterator, Mapping
from typing import IO, Any, BinaryIO, NamedTuple

from jaxcache.cache.untrusted_json import parse_json
from jaxcache.core.atomic import replace_file
from jaxcache.core.system import open_regular
from jaxcache.entry import zstd
from jaxcache.entry.codec import CodecError, decompress_chunks
from jaxcache.errors import JaxcacheError, system_errors_as

CHUNK_BYTES = 1 << 20
#: 2^27 bytes of window: what the zstd command takes with --long, and our own decoder's bound.
WINDOW_LOG = 27
#: JSON values take far more memory than their text: so many of them at most.
MAX_MANIFEST_VALUES = 4 << 20


class ArchiveKind(NamedTuple):
    """One kind of container."""

    word: str
    """As messages name it: ``bundle``, ``recipe``."""
    magic: bytes
    version: int
    header: struct.Struct
    """The whole header: the magic number, the version (16 bits) and the fields of the kind."""
    error: type["ArchiveError"]

    def read_header(self, file: BinaryIO) -> tuple[Any, ...]:
        """Read the header's fields after the version.

        Raises:
            ArchiveError: it is of another kind or version, or cut off.
        """
        header = file.read(self.header.size)
        if header[: len(self.magic)] != self.magic[: len(header)] or not header:
            raise self.error(f"is not a jaxcache {self.word}", code=f"not-a-{self.word}", hint=None)
        if len(header) < self.header.size:
            raise self.error("ends inside its header")
        _, version, *fields = self.header.unpack(header)
        if version != self.version:
            raise self.error(
                f"has version {version}, and only {self.version} is known",
                code=f"unknown-{self.word}",
                hint="it is damaged, or a newer jaxcache wrote it",
            )
        return tuple(fields)

    def is_at(self, path: str) -> bool:
        """Return whether a regular file begins like a container of this kind."""
        try:
            with open_regular(path) as file:
                return file.read(len(self.magic)) == self.magic
        except OSError:
            return False


class ArchiveError(JaxcacheError):
    """The file is not a container of its kind, or is damaged or hostile."""

    def __init__(self, message: str, *, hint: str | None = None, code: str = "bad-file") -> None:
        super().__init__(message, code=code, hint=hint)

    def about(self, name: str) -> "ArchiveError":
        """The same error with the name of the file in front."""
        return type(self)(f"{name}: {self.message}", code=self.code, hint=self.hint)


def parse_manifest(data: bytes | bytearray, error: type[ArchiveError], word: str) -> dict[str, Any]:
    """Parse the JSON of a manifest of format 1.

    Args:
        error: the exception of its kind of container.
        word: the kind, as messages name it.
    """
    document = parse_json(data, error, max_values=MAX_MANIFEST_VALUES)
    number = document.get("format") if isinstance(document, dict) else None
    if type(number) is not int:
        raise error("its manifest must be an object with a number as format")
    if number != 1:
        raise error(
            f"its manifest has format {number}, and only 1 is known",
            code=f"unknown-{word}",
            hint="a newer jaxcache wrote it: upgrade this one",
        )
    return document  # type: ignore[no-any-return]


class Packer:
    """Compresses pieces into one zstd frame in a file, and hashes the frame."""

    def __init__(
        self,
        out: BinaryIO,
        level: int,
        parameters: Mapping[int, int],
        size_bytes: int | None = None,
    ) -> None:
        self._out = out
        self._frame = zstd.compressor(level, parameters)
        if size_bytes is not None:
            self._frame.set_pledged_input_size(size_bytes)
        self._hash = hashlib.sha256()
        self.packed_bytes = 0

    def add(self, piece: bytes | bytearray | memoryview) -> None:
        """Compress one more piece."""
        self._write(self._frame.compress(piece))

    def finish(self) -> None:
        """End the frame."""
        self._write(self._frame.flush())

    @property
    def digest(self) -> bytes:
        """SHA-256 of the frame as stored in the file."""
        return self._hash.digest()

    def _write(self, data: bytes) -> None:
        self._hash.update(data)
        self._out.write(data)
        self.packed_bytes += len(data)


class Window:
    """A part of a seekable file, as far as a decompressor takes it for a file of its own."""

    def __init__(self, file: BinaryIO, start: int, size_bytes: int) -> None:
        self._file = file
        self._start = start
        self._size = size_bytes
        self._at = 0

    def seek(self, offset: int) -> int:
        """Go to a place counted from the start of the window."""
        self._at = offset
        return offset

    def read(self, limit: int) -> bytes:
        """Read at most ``limit`` bytes, and none beyond the end of the window."""
        self._file.seek(self._start + self._at)
        data = self._file.read(min(limit, max(0, self._size - self._at)))
        self._at += len(data)
        return data


def hash_range(file: BinaryIO, start: int, size_bytes: int) -> bytes:
    """Return the SHA-256 of a part of a file."""
    digest = hashlib.sha256()
    window = Window(file, start, size_bytes)
    while chunk := window.read(CHUNK_BYTES):
        digest.update(chunk)
    return digest.digest()


def unpack_range(file: BinaryIO, start: int, size_bytes: int, kind: ArchiveKind) -> Iterator[bytes]:
    """Decompress a frame that is a part of a file, 256 KiB at a time.

    Raises:
        ArchiveError: it is damaged.
    """
    window: Any = Window(file, start, size_bytes)
    try:
        yield from decompress_chunks(window, size_bytes)
    except CodecError as error:
        raise kind.error(f"is damaged: {error.detail}") from error


def read_chunks(file: IO[bytes]) -> Iterator[bytes]:
    """Yield a file from its present position in pieces."""
    return iter(lambda: file.read(CHUNK_BYTES), b"")


def write_file(path: str, chunks: Iterable[bytes]) -> None:
    """Write a file atomically.

    Raises:
        JaxcacheError: ``io-error``; no temporary file remains.
    """
    with system_errors_as(JaxcacheError, f"cannot write {path}", code="io-error"):
        replace_file(path, chunks)


def hash_chunks(chunks: Iterable[bytes | memoryview]) -> str:
    """Return the SHA-256 of some bytes."""
    digest = hashlib.sha256()
    for chunk in chunks:
        digest.update(chunk)
    return digest.hexdigest()
