"""The checks that an entry passes wherever it moves, and the policy that one cache has for imports.

:func:`read_content` checks an entry as ``verify`` does, wherever it moves.
``import``, ``copy``, ``pull``, ``ci restore`` and ``compile`` apply an :class:`ImportPolicy`:
names, upper and lower case, structure, size and signature.
"""

import threading
import unicodedata
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO

from jaxcache.cache.verify.check import MAX_DECODED_BYTES
from jaxcache.core.names import FREE_PAYLOAD_BYTES, HEADER_BYTES, max_payload_bytes, parse_key
from jaxcache.entry import zstd
from jaxcache.entry.codec import CodecError, detect_codec
from jaxcache.entry.contents import Contents
from jaxcache.entry.decode import OpenPayload, check_structure
from jaxcache.entry.names import split_name
from jaxcache.errors import JaxcacheError
from jaxcache.model import Codec

#: Longest file name that Linux file systems take, in bytes.
MAX_NAME_BYTES = 255
#: Payloads up to this size are decompressed once and buffered; larger ones twice, and streamed.
BUFFERED_BYTES = 32 << 20
#: Hashes inside larger payloads are left to ``verify``: they take seconds per MiB.
MAX_HASHED_BYTES = 1 << 20


#: SHA-256 of payloads, by file, that trusted keys vouch for.
Signed = Mapping[str, Collection[str]]


@dataclass(frozen=True, slots=True)
class CheckedContent:
    """The content of a whole, sound entry."""

    codec: Codec
    compile_seconds: int
    payload_bytes: int
    payload_sha256: str
    buffered: bytearray
    """The payload, or the beginning of one that is larger than :data:`BUFFERED_BYTES`."""
    size_bytes: int
    decoded: Contents | None = None
    """The contents of the payload, where it was decoded."""

    def chunks(self, file: BinaryIO) -> Iterator[bytes | bytearray]:
        """Yield the payload, from ``file`` where it is not buffered.

        Raises:
            JaxcacheError: ``changed`` if the file has been replaced.
        """
        if self.payload_bytes <= BUFFERED_BYTES:
            yield self.buffered
            return
        try:
            payload = OpenPayload(file, self.size_bytes)
            yield from map(bytes, payload)
        except CodecError as error:
            raise _changed() from error
        if payload.sha256 != self.payload_sha256:
            raise _changed()


def read_content(
    file: BinaryIO,
    size_bytes: int,
    name: str | None = None,
    *,
    allow_large: bool = True,
    sound: str | None = None,
) -> CheckedContent:
    """Decompress, hash and decode an entry.

    Args:
        file: seekable, the whole entry.
        name: the name of its file, which contains the module's name; None: do not decode it.
        allow_large: see :class:`ImportPolicy`.
        sound: SHA-256 of a payload that need not be decoded again.

    Raises:
        CodecError: ``verify`` would call it damaged, or it inflates further than executables do.
    """
    payload = _Payload(name)
    opened = OpenPayload(file, size_bytes)
    limit = None if allow_large else max_payload_bytes(size_bytes)
    for chunk in opened:
        payload.add(chunk)
        if limit is not None and payload.size_bytes > limit:
            raise _too_large(f"{size_bytes} bytes inflate to more than {limit}")
    digest = opened.sha256
    decoded = payload.check() if digest != sound else None
    buffered = (
        payload.buffered
        if payload.size_bytes <= BUFFERED_BYTES
        else payload.buffered[:BUFFERED_BYTES]
    )
    identity = (payload.size_bytes, digest, buffered, size_bytes, decoded)
    return CheckedContent(opened.codec, opened.compile_seconds, *identity)


def check_payload_pieces(
    name: str, pieces: Iterable[memoryview], *, allow_large: bool = False
) -> CodecError | None:
    """Decode a payload that comes in pieces, as in a bundle; return what is wrong with it."""
    payload = _Payload(name)
    packed_bytes = 0
    packer: Any = None
    for piece in pieces:
        payload.add(piece)
        if payload.size_bytes > FREE_PAYLOAD_BYTES and not allow_large:
            packer = packer or zstd.compressor(1)
            packed_bytes += len(packer.compress(piece))
    try:
        limit = max_payload_bytes(packed_bytes)
        if not allow_large and payload.size_bytes > limit:
            raise _too_large(f"a payload of {payload.size_bytes} bytes that compresses to a trifle")
        payload.check()
    except CodecError as error:
        return error
    return None


def check_unknown_pieces(pieces: Iterable[memoryview]) -> CodecError | None:
    """Return what is wrong with an entry that is said to be in an unknown format."""
    start = b""
    for piece in pieces:
        start += piece[: HEADER_BYTES - len(start)]
    if (codec := detect_codec(start)) == "unknown":
        return None
    return CodecError("bad-codec", f"is {codec}, and its manifest says that its format is unknown")


class _Payload:
    """A payload while it arrives, kept to be decoded."""

    def __init__(self, name: str | None) -> None:
        self._name = name
        self.buffered = bytearray()
        self.size_bytes = 0

    def add(self, piece: memoryview) -> None:
        self.size_bytes += len(piece)
        if self.size_bytes <= MAX_DECODED_BYTES:
            self.buffered += piece

    def check(self) -> Contents | None:
        """Decode it, as ``verify`` does; None where it has no name or is larger than any.

        Raises:
            CodecError
        """
        if self._name is None or self.size_bytes > MAX_DECODED_BYTES:
            return None
        key = parse_key(split_name(self._name)[1] or "")
        if key is None:
            return None
        hashes = self.size_bytes <= MAX_HASHED_BYTES
        decoded = check_structure(self.buffered, key.module or None, check=hashes)
        for kind, detail in decoded.problems:
            if kind != "unreadable":  # what decompresses its parts may be missing
                raise CodecError(kind, detail)
        return decoded


def check_file_name(name: str) -> str | None:
    """Return the reason why no cache takes a file of this name; None if one may."""
    if "/" in name or name.startswith("."):
        return "is a path, not a name"
    if not name.isprintable():
        return "holds characters that do not print"
    if len(name.encode()) > MAX_NAME_BYTES:
        return f"is longer than {MAX_NAME_BYTES} bytes"
    return None


def normalize_name(name: str) -> str:
    """Return a form that is equal for names that some file systems treat as one."""
    return unicodedata.normalize("NFC", name).casefold()


class ImportPolicy:
    """The policy of one cache: which entries come in.

    Args:
        present: names of the files that the cache holds.
        signed: digests by file that a trusted key vouches for (see
            :mod:`jaxcache.cache.trust`); None where no signature is required.
        allow_large: let in what inflates further than executables do, too.
    """

    def __init__(
        self,
        present: Iterable[str] = (),
        *,
        signed: Signed | None = None,
        allow_large: bool = False,
    ) -> None:
        self._names = {normalize_name(name): name for name in present}
        self._lock = threading.Lock()
        self.signed = signed
        self.allow_large = allow_large

    def name_error(self, name: str) -> str | None:
        """Return why a file of this name cannot come in; None if it can, and its name is taken."""
        if reason := check_file_name(name.rpartition("/")[2]):
            return reason
        with self._lock:
            other = self._names.setdefault(normalize_name(name), name)
        return None if other == name else f"differs from {other} in case only"

    def is_signed(self, name: str, digest: str) -> bool:
        """Return whether the policy lets bytes of this SHA-256 in under this name."""
        return self.signed is None or digest in self.signed.get(name, ())


def _too_large(detail: str) -> CodecError:
    return CodecError(
        "bad-payload", f"{detail}, which no executable does (--allow-large lets it in)"
    )


def _changed() -> JaxcacheError:
    return JaxcacheError(
        "an entry changed while it was read", code="changed", hint="run the command again"
    )
