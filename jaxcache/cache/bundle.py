"""The file format of bundles: a header, signatures, the manifest, one solid stream of payloads.

docs/bundles.md describes it byte by byte. The header holds the manifest's SHA-256 and the
manifest that of the stream, so that every byte of a bundle hangs on 48 bytes, which a signature
signs.
"""

import hashlib
import io
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO, NamedTuple

import zstandard

from jaxcache.cache.manifest import BundleError, Manifest, decode_manifest
from jaxcache.entry.codec import CodecError, decompress_chunks

MAGIC = b"\x89JXB\r\n\x1a\n"
VERSION = 1
_HEADER = struct.Struct("<8sHHIQ32s")
HEADER_BYTES = _HEADER.size
_SIGNATURE = struct.Struct("<32s64s")
MAX_SIGNATURES = 16
#: What a manifest may take, as it lies in the bundle and decompressed.
MAX_MANIFEST_BYTES = 64 << 20
MAX_MANIFEST_RAW_BYTES = 128 << 20
#: JSON values take far more memory than their text: so many of them at most.
MAX_MANIFEST_VALUES = 4 << 20
_SIGNED_PREFIX = b"jaxcache bundle v1\0"
#: 2^27 bytes of window: what the zstd command takes with --long, and our own decoder's bound.
WINDOW_LOG = 27
_MANIFEST_LEVEL = 12
_CHUNK_BYTES = 1 << 20


class Signature(NamedTuple):
    """One Ed25519 signature with the public key that it claims to be of."""

    public_key: bytes
    signature: bytes


@dataclass(frozen=True, slots=True)
class Bundle:
    """An opened bundle whose header and manifest have been checked, and its stream not yet."""

    name: str
    file: BinaryIO
    manifest: Manifest
    manifest_sha256: str
    signatures: tuple[Signature, ...]
    signed_bytes: bytes
    """What the signatures are over."""
    stream_at: int
    stream_bytes: int

    @property
    def size_bytes(self) -> int:
        """Of the whole bundle."""
        return self.stream_at + self.stream_bytes

    def close(self) -> None:
        """Close the file."""
        self.file.close()


def stream_parameters(level: int) -> zstandard.ZstdCompressionParameters:
    """How the stream is compressed: matches over 128 MiB, and a checksum."""
    return zstandard.ZstdCompressionParameters.from_level(
        level, window_log=WINDOW_LOG, enable_ldm=True, write_checksum=True
    )


def pack_manifest(raw: bytes) -> bytes:
    """Compress a manifest.

    Raises:
        BundleError: ``too-large``.
    """
    packed = zstandard.ZstdCompressor(level=_MANIFEST_LEVEL, write_checksum=True).compress(raw)
    values = sum(map(raw.count, (b",", b"[", b"{")))
    if (
        len(raw) > MAX_MANIFEST_RAW_BYTES
        or len(packed) > MAX_MANIFEST_BYTES
        or values > MAX_MANIFEST_VALUES
    ):
        raise BundleError(
            "there are too many entries for one bundle",
            code="too-large",
            hint="export them in parts, with KEY or --filter",
        )
    return packed


def pack_header(packed_manifest: bytes, stream_bytes: int, signatures: int) -> bytes:
    """The fixed-size start of a bundle."""
    digest = hashlib.sha256(packed_manifest).digest()
    return _HEADER.pack(MAGIC, VERSION, signatures, len(packed_manifest), stream_bytes, digest)


def signed_bytes(header: bytes) -> bytes:
    """What a signature is over: the header without the magic, under a name of its own."""
    return _SIGNED_PREFIX + header[len(MAGIC) : HEADER_BYTES]


def pack_signature(signature: Signature) -> bytes:
    """One signature as it lies in the bundle."""
    return _SIGNATURE.pack(*signature)


def is_bundle(path: str) -> bool:
    """Whether a file, or the first of its parts, begins like a bundle."""
    try:
        with open(first_part(path), "rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


def part_name(path: str, number: int) -> str:
    """The name of a part; the first is number 1."""
    return f"{path}.{number:03d}"


def first_part(path: str) -> str:
    """The file itself, or where it does not exist but its first part does, that part."""
    first = part_name(path, 1)
    return first if not os.path.lexists(path) and os.path.exists(first) else path


def open_bundle(path: str) -> Bundle:
    """Open a bundle, or one in parts by its name or that of its first part.

    Raises:
        BundleError: no bundle, or damaged.
    """
    first = first_part(path)
    try:
        if first.endswith(".001"):
            file: BinaryIO = io.BufferedReader(_Parts(first.removesuffix(".001")), _CHUNK_BYTES)
        else:
            file = open(first, "rb")  # noqa: SIM115 - closed by whoever takes the bundle
    except OSError as error:
        raise BundleError(
            f"cannot read {path}: {(error.strerror or str(error)).lower()}",
            code="no-bundle",
            hint=None,
        ) from error
    try:
        return read_bundle(file, path)
    except BaseException:
        file.close()
        raise


def read_bundle(file: BinaryIO, name: str) -> Bundle:
    """Read header, signatures and manifest of a seekable file, and check that it ends rightly.

    Raises:
        BundleError
    """
    try:
        return _read_bundle(file, name)
    except BundleError as error:
        raise BundleError(f"{name}: {error.message}", code=error.code, hint=error.hint) from error
    except OSError as error:
        raise BundleError(f"{name}: {(error.strerror or str(error)).lower()}", hint=None) from error


def _read_bundle(file: BinaryIO, name: str) -> Bundle:
    size_bytes = file.seek(0, os.SEEK_END)
    file.seek(0)
    header = file.read(HEADER_BYTES)
    if header[: len(MAGIC)] != MAGIC[: len(header)] or not header:
        raise BundleError("is no bundle of jaxcache", code="not-a-bundle", hint=None)
    if len(header) < HEADER_BYTES:
        raise BundleError("ends inside its header")
    _, version, signed, manifest_bytes, stream_bytes, digest = _HEADER.unpack(header)
    if version != VERSION:
        raise BundleError(
            f"has version {version}, and only {VERSION} is known",
            code="unknown-bundle",
            hint="a newer jaxcache made it, or it is damaged",
        )
    if signed > MAX_SIGNATURES or manifest_bytes > MAX_MANIFEST_BYTES:
        raise BundleError("announces more signatures or a larger manifest than any bundle has")
    stream_at = HEADER_BYTES + signed * _SIGNATURE.size + manifest_bytes
    if stream_at + stream_bytes != size_bytes:
        raise BundleError(
            f"should be {stream_at + stream_bytes} bytes long and is {size_bytes}: "
            + ("it is cut off" if size_bytes < stream_at + stream_bytes else "something follows")
        )
    signatures = tuple(
        Signature(*_SIGNATURE.unpack(file.read(_SIGNATURE.size))) for _ in range(signed)
    )
    packed = file.read(manifest_bytes)
    if hashlib.sha256(packed).digest() != digest:
        raise BundleError("its manifest is damaged")
    manifest = decode_manifest(_unpack_manifest(packed))
    return Bundle(
        name, file, manifest, digest.hex(), signatures, signed_bytes(header), stream_at,
        stream_bytes,
    )  # fmt: skip


def _unpack_manifest(packed: bytes) -> bytearray:
    raw = bytearray()
    try:
        for chunk in decompress_chunks(io.BytesIO(packed), len(packed)):
            raw += chunk
            if len(raw) > MAX_MANIFEST_RAW_BYTES:
                raise BundleError("its manifest is larger than any")
    except CodecError as error:
        raise BundleError(f"its manifest is damaged: {error.detail}") from error
    if sum(map(raw.count, (b",", b"[", b"{"))) > MAX_MANIFEST_VALUES:
        raise BundleError("its manifest holds more values than any")
    return raw


def check_stream(bundle: Bundle) -> None:
    """Compare the stream, as it lies there, with the digest in the manifest.

    Raises:
        BundleError
    """
    digest = hashlib.sha256()
    stream = Window(bundle.file, bundle.stream_at, bundle.stream_bytes)
    try:
        while chunk := stream.read(_CHUNK_BYTES):
            digest.update(chunk)
    except OSError as error:
        raise BundleError(f"{bundle.name}: {error}", hint=None) from error
    if digest.hexdigest() != bundle.manifest.stream_sha256:
        raise BundleError(f"{bundle.name}: its stream is damaged")


class ContentReader:
    """Reads the decompressed stream of a bundle from front to back, never more than announced.

    Raises:
        BundleError: from every method.
    """

    def __init__(self, bundle: Bundle) -> None:
        self._name = bundle.name
        self._chunks = self._decompress(bundle)
        self._left = memoryview(b"")

    def _decompress(self, bundle: Bundle) -> Iterator[bytes]:
        if not bundle.stream_bytes:
            return
        stream = Window(bundle.file, bundle.stream_at, bundle.stream_bytes)
        try:
            yield from decompress_chunks(stream, bundle.stream_bytes)  # type: ignore[arg-type]
        except (CodecError, OSError) as error:
            raise BundleError(f"{self._name}: its stream is damaged: {error}") from error

    def take(self, size_bytes: int) -> Iterator[memoryview]:
        """Yield the next ``size_bytes`` in pieces, which hold until the next piece."""
        while size_bytes:
            if not self._left:
                self._left = memoryview(next(self._chunks, b""))
                if not self._left:
                    raise BundleError(f"{self._name}: its stream ends before the last payload")
            piece = self._left[:size_bytes]
            self._left = self._left[len(piece) :]
            size_bytes -= len(piece)
            yield piece

    def skip(self, size_bytes: int) -> None:
        """Pass over the next ``size_bytes``."""
        for _ in self.take(size_bytes):
            pass

    def end(self) -> None:
        """Make sure that nothing follows."""
        rest = next(self._chunks, b"")
        if self._left or rest:
            raise BundleError(f"{self._name}: its stream goes on behind the last payload")


class Window:
    """A part of a seekable file as a file of its own."""

    def __init__(self, file: BinaryIO, start: int, size_bytes: int) -> None:
        self._file, self._start, self._size, self._at = file, start, size_bytes, 0

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """As of any file."""
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        self._at = base + offset
        return self._at

    def tell(self) -> int:
        """As of any file."""
        return self._at

    def read(self, limit: int = -1) -> bytes:
        """As of any file."""
        left = max(0, self._size - self._at)
        self._file.seek(self._start + self._at)
        data = self._file.read(left if limit < 0 else min(limit, left))
        self._at += len(data)
        return data


class _Parts(io.RawIOBase):
    """``FILE.001``, ``FILE.002``, … as one seekable file."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self._files: list[BinaryIO] = []
        self._ends: list[int] = []
        self._at = 0
        try:
            while not self._files or os.path.exists(part_name(path, len(self._files) + 1)):
                file = open(part_name(path, len(self._files) + 1), "rb")  # noqa: SIM115
                self._files.append(file)
                self._ends.append((self._ends or [0])[-1] + os.fstat(file.fileno()).st_size)
        except BaseException:
            self.close()
            raise

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._ends[-1]}[whence]
        self._at = base + offset
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: object) -> int:
        view = memoryview(buffer).cast("B")  # type: ignore[arg-type]
        start = 0
        for file, end in zip(self._files, self._ends, strict=True):
            if self._at < end:
                file.seek(self._at - start)
                data = file.read(min(len(view), end - self._at))
                view[: len(data)] = data
                self._at += len(data)
                return len(data)
            start = end
        return 0

    def close(self) -> None:
        for file in getattr(self, "_files", ()):
            file.close()
        super().close()
