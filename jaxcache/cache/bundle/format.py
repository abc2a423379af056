"""The file format of bundles: a header, signatures, the manifest, one solid stream of payloads.

docs/bundles.md describes it byte by byte. The header holds the manifest's SHA-256 and the
manifest that of the stream, so that every byte of a bundle hangs on 48 bytes, which a signature
signs. Nothing in a manifest is believed: sizes and times are bounded, names must be ones that a
cache can hold, and no two may meet in one file.
"""

import base64
import hashlib
import io
import json
import os
import struct
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Annotated, Any, BinaryIO, NamedTuple, get_args

from jaxcache.cache import archive
from jaxcache.cache.allow_lists import kept_flags
from jaxcache.cache.ledger.record import Event
from jaxcache.cache.untrusted_json import Base64, Digest, FieldError, Flag, Many, Text, build
from jaxcache.cache.verify.check import check_file_name, normalize_name
from jaxcache.core.names import AUTOTUNE_DIR, CACHE_SUFFIX, KERNEL_CACHE, Key, parse_key
from jaxcache.core.signing import count_values
from jaxcache.core.system import open_regular
from jaxcache.entry import zstd
from jaxcache.entry.codec import CodecError, decompress_chunks
from jaxcache.entry.contents import Contents
from jaxcache.errors import system_errors_as
from jaxcache.model import Codec, result_repr
from jaxcache.store.base import Store, StoreError
from jaxcache.units import printable

#: The layout that a manifest without one means.
JAX = "jax"
#: Directories within directories of a path that travels.
_MAX_PARTS = 16
#: A device, a version and a file.
_MAX_SIDE_PARTS = 3
_HINT = "get the file again, or make it again: jaxcache export FILE"

Size = Annotated[int, range(1 << 48)]
"""Bytes."""
Nanoseconds = Annotated[int, range(1 << 63)]
"""Since the epoch."""


def _read_events(value: object) -> tuple[Event, ...]:
    if not isinstance(value, list):
        raise TypeError("it must be a list")
    events = (Event.from_json(v) for v in value if isinstance(v, dict))
    return tuple(event for event in events if event)


class BundleError(archive.ArchiveError):
    """The file is not a bundle, or is damaged or hostile. Nothing was written."""

    def __init__(self, message: str, *, hint: str | None = _HINT, code: str = "bad-bundle") -> None:
        super().__init__(message, code=code, hint=hint)


@dataclass(frozen=True, slots=True)
class Origin:
    """The compiler and target of an entry; one for all entries that share it."""

    platform: Text = "unknown"
    target: Text | None = None
    device_name: Text | None = None
    cpu_triple: Text | None = None
    cpu_name: Text | None = None
    cpu_features: tuple[Text, ...] | None = None
    compute_capability: Text | None = None
    toolkit: Text | None = None
    cudnn: Text | None = None
    ifrt_version: Annotated[int, range(1 << 32)] | None = None
    abi: Text | None = None
    container: Text | None = None
    like_jaxlib: Text | None = None
    """The known jaxlib whose default flags are nearest to the ones recorded."""
    written_in_cache_dir: Text | None = None
    kernel_cache: bool | None = None
    """True where XLA's kernel cache was on, whose path every JAX since 0.4.36 hashes."""
    xla_flags: tuple[Text, ...] | None = None
    """Those not at the default of their jaxlib, as ``--name=value``; None where that is unknown."""

    @property
    def is_portable(self) -> bool:
        """Return whether it was compiled without a directory for XLA's caches."""
        return self.platform != "unknown" and self.written_in_cache_dir is None


_ORIGIN_FIELDS = {f.name for f in fields(Origin)}


def make_origin(contents: Contents) -> Origin:
    """Read from a payload which compiler made it, and for which device."""
    device = contents.device
    facts: dict[str, Any] = {"device_name": device.name, "target": device.target}
    for part in (device, contents.format, contents):
        facts |= {f.name: getattr(part, f.name) for f in fields(part) if f.name in _ORIGIN_FIELDS}
    facts = {n: printable(v) if isinstance(v, str) else v for n, v in facts.items()}
    changed = contents.compile_options.flags_changed
    flags = None
    if changed is not None:
        flags = tuple(sorted(kept_flags(printable(f"--{n}={v}") for n, v in changed.items())))
    return Origin(**facts, kernel_cache=contents.kernel_cache or None, xla_flags=flags)


def read_origin(store: Store, name: str) -> Origin:
    """Read from an entry which compiler made it, as far as it can be read."""
    from jaxcache.entry.decode import read_contents  # which reading a manifest does without

    try:
        with store.open(name) as opened:
            return make_origin(read_contents(opened, store.info(name).size_bytes, parts="origin"))
    except StoreError:
        return Origin()


@dataclass(frozen=True, slots=True)
class BundleItem:
    """One entry of a bundle; times are nanoseconds since the epoch."""

    key: Text
    legacy: Flag
    """Named without ``-cache``, as JAX up to 0.4.30 names it."""
    codec: Text
    """``unknown``: its payload is its whole file."""
    compile_seconds: Annotated[int, range(1 << 31)]
    """The 4-byte header."""
    size_bytes: Size
    """The size of the file it was exported from."""
    payload_bytes: Size
    payload_sha256: Digest
    created_ns: Nanoseconds
    atime_ns: Nanoseconds | None
    """The content of its ``-atime`` file; None where it had none."""
    origin: Annotated[int, range(1 << 32)]
    """Index into the origins of the manifest."""
    ledger: Annotated[tuple[Event, ...], _read_events] = ()

    @property
    def file(self) -> str:
        """The name in a cache directory."""
        return self.key if self.legacy else self.key + CACHE_SUFFIX

    @property
    def module(self) -> str:
        """The module's name, from the key."""
        return (parse_key(self.key) or Key("", "")).module


@dataclass(frozen=True, slots=True)
class SideFile:
    """One file of XLA's own caches."""

    name: Text
    size_bytes: Size
    sha256: Digest
    created_ns: Nanoseconds


@dataclass(frozen=True, slots=True)
class Manifest:
    """The manifest of a bundle."""

    __repr__ = result_repr

    items: Many[BundleItem]
    """In the order of their payloads in the stream."""
    files: Many[SideFile]
    """In the stream, they follow the payloads."""
    origins: Many[Origin]
    stream_sha256: Digest
    """Digest of the compressed stream as stored in the bundle."""
    content_bytes: Size
    since: Text | None = None
    """SHA-256 of the manifest that this bundle is an increment to; empty for a directory."""
    runs: Mapping[Text, Base64] = field(default_factory=dict)
    """The records of programs' runs (``jaxcache/core/runs.py``), by name."""
    layout: Text = JAX
    """The layout of its cache; layouts other than JAX have files but no items."""

    @property
    def contents(self) -> list[tuple[str, int, str]]:
        """Name, bytes and SHA-256 of each item and file, in the order of the stream."""
        return [
            *((i.file, i.payload_bytes, i.payload_sha256) for i in self.items),
            *((f.name, f.size_bytes, f.sha256) for f in self.files),
        ]

    @property
    def announced_bytes(self) -> int:
        """Sum of what the items and files announce."""
        return sum(size for _, size, _ in self.contents)

    @property
    def source_bytes(self) -> int:
        """Sum of the sizes of the files that the bundle was made from."""
        return sum(i.size_bytes for i in self.items) + sum(f.size_bytes for f in self.files)

    def origin_of(self, item: BundleItem) -> Origin:
        """Return the compiler and target of an item."""
        return self.origins[item.origin]


def encode_manifest(manifest: Manifest) -> bytes:
    """The manifest as JSON in one order, without spaces: equal manifests are equal bytes."""
    document = {
        "format": 1,
        "since": manifest.since,
        "stream": {"sha256": manifest.stream_sha256, "content_bytes": manifest.content_bytes},
        "origins": [
            {k: v for k, v in asdict(o).items() if v is not None} for o in manifest.origins
        ],
        "entries": [_item_json(i) for i in manifest.items],
        "files": [asdict(f) for f in manifest.files],
    }
    if manifest.runs:
        document["runs"] = {n: base64.b64encode(d).decode() for n, d in manifest.runs.items()}
    if manifest.layout != JAX:
        document["layout"] = manifest.layout
    return json.dumps(document, separators=(",", ":"), sort_keys=True).encode()


def _item_json(item: BundleItem) -> dict[str, Any]:
    values = {n: getattr(item, n) for n in _ITEM_FIELDS}
    values["ledger"] = [e.to_json() for e in item.ledger]
    return {k: v for k, v in values.items() if not (v is None or v is False or v == [])}


_ITEM_FIELDS = tuple(f.name for f in fields(BundleItem))


def decode_manifest(data: bytes | bytearray) -> Manifest:
    """Read and check a manifest.

    Raises:
        BundleError: anything in it is not what :func:`encode_manifest` writes, a name could
            leave the cache or is none of a cache, or two names meet.
    """
    document = archive.parse_manifest(data, BundleError, "bundle")
    layout = document.get("layout") or JAX
    if layout not in (JAX, "torch"):
        raise BundleError(
            f"it holds a cache of the layout {str(layout)[:40]!r}, which is not known",
            code="unknown-bundle",
            hint="a newer jaxcache wrote it: upgrade this one",
        )
    stream = document.get("stream")
    facts = stream if isinstance(stream, dict) else {}
    names = {"items": "entries", "stream_sha256": "sha256"}
    try:
        manifest = build(Manifest, {**facts, **document, "layout": layout}, names)
    except FieldError as error:
        raise BundleError(f"in its manifest, {error}") from error
    items = tuple(_checked_item(item, len(manifest.origins)) for item in manifest.items)
    manifest = replace(manifest, items=items)
    for file in manifest.files:
        _check_side_file(file.name, layout)
    if layout != JAX and manifest.items:
        raise BundleError(f"the manifest lists entries of JAX, but the layout is {layout}")
    if manifest.content_bytes != manifest.announced_bytes:
        raise BundleError("the sizes that its manifest announces do not add up")
    _check_clashes(manifest)
    return manifest


def check_path(name: str) -> str | None:
    """Return the reason why a bundle cannot hold a path; None if it can."""
    parts = name.split("/")
    if len(parts) > _MAX_PARTS:
        return f"is nested deeper than {_MAX_PARTS}"
    reasons = (check_file_name(part) if part else "is not a path" for part in parts)
    return next((reason for reason in reasons if reason), None)


def is_side_file(name: str) -> bool:
    """Return whether a name is one of XLA's own caches, at most two directories below XLA's own."""
    if name == KERNEL_CACHE:
        return True
    directory, *parts = name.split("/")
    return (
        directory == AUTOTUNE_DIR
        and 0 < len(parts) <= _MAX_SIDE_PARTS
        and all(part and check_file_name(part) is None for part in parts)
    )


def _check_clashes(manifest: Manifest) -> None:
    names: set[str] = set()
    for name in (*(i.file for i in manifest.items), *(f.name for f in manifest.files)):
        folded = normalize_name(name)
        if folded in names:
            raise BundleError(f"its manifest names {name} twice, or in another case")
        names.add(folded)


def _checked_item(item: BundleItem, origins: int) -> BundleItem:
    """Return an item with the events of its own key alone."""
    key = item.key
    reason = check_file_name(item.file) or (None if parse_key(key) else "is not a JAX cache key")
    if reason:
        raise BundleError(f"its manifest names an entry {key[:300]!r}, which {reason}")
    if item.codec not in get_args(Codec):
        raise BundleError(f"its manifest gives {key} the unknown codec {item.codec[:20]!r}")
    if item.origin >= origins:
        raise BundleError(f"its manifest gives {key} an origin that it does not list")
    return replace(item, ledger=tuple(e for e in item.ledger if e.key == key))


def _check_side_file(name: str, layout: str) -> None:
    if layout != JAX and (reason := check_path(name)):
        raise BundleError(f"its manifest names {name[:300]!r}, which {reason}")
    if layout == JAX and not is_side_file(name):
        raise BundleError(f"its manifest names {name[:300]!r}, which is not a file of XLA's caches")


MAGIC = b"\x89JXB\r\n\x1a\n"
VERSION = 1
#: Magic number, version, signatures, sizes of manifest and stream, SHA-256 of the manifest.
_HEADER = struct.Struct("<8sHHIQ32s")
HEADER_BYTES = _HEADER.size
KIND = archive.ArchiveKind("bundle", MAGIC, VERSION, _HEADER, BundleError)
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
    maker: str = "export"
    """The command that makes such bundles."""

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
    chosen: dict[int, int] = {names.window_log: archive.WINDOW_LOG}
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
        or count_values(raw) > archive.MAX_MANIFEST_VALUES
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
    hint = "pull takes the entries of a directory" if os.path.isdir(path) else _HINT
    with system_errors_as(BundleError, f"cannot read {path}", code="no-bundle", hint=hint):
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
    window = archive.Window(bundle.file, bundle.stream_at, bundle.stream_bytes)
    try:
        while chunk := window.read(archive.CHUNK_BYTES):
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
            yield from archive.unpack_range(
                bundle.file, bundle.stream_at, bundle.stream_bytes, KIND
            )
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
