"""The file format of bundles: a header, signatures, the manifest, one solid stream of payloads.

docs/bundles.md describes it byte by byte. The header holds the manifest's SHA-256 and the
manifest that of the stream, so that every byte of a bundle hangs on 48 bytes, which a signature
signs.
"""

import hashlib
import io
import os
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import BinaryIO, NamedTuple

from jaxcache.cache.archive import (
    CHUNK_BYTES,
    MAX_MANIFEST_VALUES,
    WINDOW_LOG,
    ArchiveKind,
    Window,
    unpack_range,
)
from jaxcache.cache.bundle.manifest import BundleError, Manifest, decode_manifest
from jaxcache.core.signing import count_values
from jaxcache.core.system import open_regular
from jaxcache.entry import zstd
from jaxcache.entry.codec import CodecError, decompress_chunks
from jaxcache.errors import system_errors_as

MAGIC = b"\x89JXB\r\n\x1a\n"
VERSION = 1
#: Magic number, version, signatures, sizes of manifest and stream, SHA-256 of the manifest.
_HEADER = struct.Struct("<8sHHIQ32s")
HEADER_BYTES = _HEADER.size
KIND = ArchiveKind("bundle", MAGIC, VERSION, _HEADER, BundleError)
_SIGNATURE = struct.Struct("<32s64s")
MAX_SIGNATURES = 16
#: The limits of a manifest's size, as stored in the bundle and decompressed.
MAX_MANIFEST_BYTES = 64 << 20
MAX_MANIFEST_RAW_BYTES = 128 << 20
_SIGNED_PREFIX = b"jaxcache bundle v1\0"
_FIRST_OPTIMAL_LEVEL = 16
_LAST_MODEST_LEVEL = 19
_MANIFEST_LEVEL = 12
#: Files of this size together make a stream of 16 to 40 MB; level 12 looks back over 8 MB and more.
_NEAR_BYTES = 4 << 20
_FAR_MATCH_BYTES = 1024


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
    head: bytes
    """All that comes before the stream: header, signatures and manifest."""
    stream_bytes: int
    refused: Mapping[str, str] | None = None
    """Files that must not come in, and why; None until every byte of the bundle was checked."""

    @property
    def stream_at(self) -> int:
        """The place of the stream in the file."""
        return len(self.head)

    @property
    def size_bytes(self) -> int:
        """The size of the whole bundle."""
        return self.stream_at + self.stream_bytes

    def close(self) -> None:
        """Close the file."""
        self.file.close()


def stream_parameters(level: int, source_bytes: int) -> dict[int, int]:
    """Return zstd's parameters for the stream, in addition to its level: matches over 128 MiB.

    Long-distance matching takes the first long match that it finds, where the usual search finds
    better ones nearby: with its default of 64 bytes, bundles of small caches get 16 to 18 % larger.
    So it is for large ones alone, whose repetitions are out of the search's reach, and for long
    matches.

    zstd's own settings from level 16 on search each position so often that a stream that mostly
    repeats itself takes minutes per 100 MB; fewer looks are six times faster here, and the optimal
    parser alone makes it smaller. Beyond level 19 zstd's tables would take most of a gigabyte.

    Args:
        source_bytes: the size of the files that go into the bundle.
    """
    names = zstd.library.CompressionParameter
    chosen: dict[int, int] = {names.window_log: WINDOW_LOG}
    if source_bytes > _NEAR_BYTES:
        chosen |= {names.enable_long_distance_matching: 1, names.ldm_min_match: _FAR_MATCH_BYTES}
    if level >= _FIRST_OPTIMAL_LEVEL:
        chosen |= {names.search_log: 3, names.strategy: zstd.library.Strategy.btopt}
    if level > _LAST_MODEST_LEVEL:
        chosen |= {names.chain_log: 24, names.hash_log: 22}
    return chosen


def pack_manifest(raw: bytes) -> bytes:
    """Compress a manifest.

    Raises:
        BundleError: ``too-large``.
    """
    packed = zstd.compress(raw, _MANIFEST_LEVEL)
    if (
        len(raw) > MAX_MANIFEST_RAW_BYTES
        or len(packed) > MAX_MANIFEST_BYTES
        or count_values(raw) > MAX_MANIFEST_VALUES
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
    """Return the bytes to sign: a prefix, then the header without the magic number."""
    return _SIGNED_PREFIX + header[len(MAGIC) : HEADER_BYTES]


def pack_signature(signature: Signature) -> bytes:
    """Return a signature as it is stored in the bundle."""
    return _SIGNATURE.pack(*signature)


def is_bundle(path: str) -> bool:
    """Return whether a file begins like a bundle; a pipe is not waited for."""
    return KIND.is_at(path)


def open_bundle(path: str) -> Bundle:
    """Open a bundle.

    Raises:
        BundleError: no bundle, or damaged.
    """
    with system_errors_as(BundleError, f"cannot read {path}", code="no-bundle", hint=None):
        file = open_regular(path)
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
    with system_errors_as(BundleError, name, hint=None):
        try:
            return _read_bundle(file, name)
        except BundleError as error:
            raise error.about(name) from error


def _read_bundle(file: BinaryIO, name: str) -> Bundle:
    size_bytes = file.seek(0, os.SEEK_END)
    file.seek(0)
    signed, manifest_bytes, stream_bytes, digest = KIND.read_header(file)
    if signed > MAX_SIGNATURES or manifest_bytes > MAX_MANIFEST_BYTES:
        raise BundleError("announces more signatures or a larger manifest than any bundle has")
    stream_at = HEADER_BYTES + signed * _SIGNATURE.size + manifest_bytes
    if stream_at + stream_bytes != size_bytes:
        raise BundleError(
            f"should be {stream_at + stream_bytes} bytes long and is {size_bytes}: "
            + ("it is cut off" if size_bytes < stream_at + stream_bytes else "something follows")
        )
    signatures = file.read(signed * _SIGNATURE.size)
    packed = file.read(manifest_bytes)
    if hashlib.sha256(packed).digest() != digest:
        raise BundleError("its manifest is damaged")
    manifest = decode_manifest(_unpack_manifest(packed))
    # Packed again, not read again: whoever else may write to the file could give another one.
    header = _HEADER.pack(MAGIC, VERSION, signed, manifest_bytes, stream_bytes, digest)
    keys = tuple(map(Signature._make, _SIGNATURE.iter_unpack(signatures)))
    head = header + signatures + packed
    return Bundle(name, file, manifest, digest.hex(), keys, head, stream_bytes)


def _unpack_manifest(packed: bytes) -> bytearray:
    raw = bytearray()
    try:
        for chunk in decompress_chunks(io.BytesIO(packed), len(packed)):
            raw += chunk
            if len(raw) > MAX_MANIFEST_RAW_BYTES:
                raise BundleError("its manifest is larger than any")
    except CodecError as error:
        raise BundleError(f"its manifest is damaged: {error.detail}") from error
    return raw


def read_whole(bundle: Bundle) -> Iterator[bytes]:
    """Yield the bytes of a bundle, as they are stored in the file.

    Raises:
        BundleError: after the last one, where the digest of the stream does not match.
    """
    yield bundle.head
    digest = hashlib.sha256()
    window = Window(bundle.file, bundle.stream_at, bundle.stream_bytes)
    try:
        while chunk := window.read(CHUNK_BYTES):
            digest.update(chunk)
            yield chunk
    except OSError as error:
        raise BundleError(f"{bundle.name}: {error}", hint=None) from error
    if digest.hexdigest() != bundle.manifest.stream_sha256:
        raise BundleError(f"{bundle.name}: its stream is damaged")


class ContentReader:
    """Reads the decompressed stream of a bundle from front to back, never more than announced.

    What it yields is compared with the manifest each time that it is read: another user, who may
    own the file, can have overwritten the stream since it was checked.

    Raises:
        BundleError: from every method.
    """

    def __init__(self, bundle: Bundle) -> None:
        self._name = bundle.name
        self._contents = iter(bundle.manifest.contents)
        self._chunks = self._decompress(bundle)
        self._left = memoryview(b"")

    def _decompress(self, bundle: Bundle) -> Iterator[bytes]:
        if not bundle.stream_bytes:
            return
        try:
            yield from unpack_range(bundle.file, bundle.stream_at, bundle.stream_bytes, KIND)
        except (BundleError, OSError) as error:
            raise BundleError(f"{self._name}: its stream is damaged: {error}") from error

    def take(self, name: str) -> Iterator[memoryview]:
        """Yield the content of an item or file in pieces, which hold until the next piece.

        What comes before it in the stream is skipped.

        Raises:
            BundleError: after the last piece, where its digest is not that of the manifest.
        """
        for present, size_bytes, sha256 in self._contents:
            digest = hashlib.sha256()
            for piece in self._read(size_bytes):
                if present == name:
                    digest.update(piece)
                    yield piece
            if present == name:
                if digest.hexdigest() != sha256:
                    reason = "does not match its digest"
                    raise BundleError(f"{self._name}: the payload of {name} {reason}")
                return

    def _read(self, size_bytes: int) -> Iterator[memoryview]:
        while size_bytes:
            if not self._left:
                self._left = memoryview(next(self._chunks, b""))
                if not self._left:
                    raise BundleError(f"{self._name}: its stream ends before the last payload")
            piece = self._left[:size_bytes]
            self._left = self._left[len(piece) :]
            size_bytes -= len(piece)
            yield piece

    def end(self) -> None:
        """Make sure that nothing follows."""
        chunk = next(self._chunks, b"")
        if self._left or chunk:
            raise BundleError(f"{self._name}: unexpected data after the last payload")
