"""Open an entry's payload, checked and within bounds; read it into memory; decode it."""

import hashlib
from collections.abc import Iterator
from itertools import chain
from typing import BinaryIO

from jaxcache.core.names import HEADER_BYTES, max_payload_bytes
from jaxcache.entry.codec import CodecError, check_header, decompress_chunks, detect_codec
from jaxcache.entry.contents import Contents
from jaxcache.entry.decode import decode_payload


class OpenPayload:
    """The payload of an entry: the facts in its header, then its bytes, checked as they come.

    Args:
        file: seekable, the whole entry; no other code seeks in it meanwhile.
        size_bytes: its size, which bounds what it may announce.
        limit: refuse a payload of more bytes.
        hashed: take its SHA-256 on the way.

    Raises:
        CodecError: empty, damaged, truncated, or followed by other bytes.
    """

    def __init__(
        self, file: BinaryIO, size_bytes: int, *, limit: int | None = None, hashed: bool = True
    ) -> None:
        file.seek(0)
        self.codec = detect_codec(file.read(HEADER_BYTES))
        self._limit = limit
        self._file_bytes = size_bytes
        self._chunks = decompress_chunks(file, size_bytes)
        first = b""
        while len(first) < HEADER_BYTES and (chunk := next(self._chunks, b"")):
            first += chunk
        self.compile_seconds = check_header(first)
        self._first = first
        self._hash = hashlib.sha256() if hashed else None
        self.size_bytes = 0
        """The size of the payload, as far as it was read."""

    def __iter__(self) -> Iterator[memoryview]:
        """Yield the payload once, at most 256 KiB at a time.

        Raises:
            CodecError: damaged, or larger than the limit (``bad-payload``).
        """
        chunks: Iterator[bytes] = chain((self._first[HEADER_BYTES:],), self._chunks)
        for chunk in chunks:
            self.size_bytes += len(chunk)
            if self._limit is not None and self.size_bytes > self._limit:
                detail = f"{self._file_bytes} bytes inflate to more than {self._limit}"
                raise CodecError("bad-payload", f"{detail}, which is not read")
            if self._hash is not None:
                self._hash.update(chunk)
            yield memoryview(chunk)

    @property
    def sha256(self) -> str:
        """The SHA-256 of the bytes read so far."""
        return self._hash.hexdigest() if self._hash is not None else ""


def read_payload(file: BinaryIO, size_bytes: int, *, limit: int | None = None) -> bytearray:
    """Decompress an entry, without its 4-byte header.

    Memory stays within 1.2 times the payload.

    Args:
        file: seekable, the whole entry.
        size_bytes: its size.
        limit: of the payload; :func:`max_payload_bytes` by default.

    Raises:
        CodecError: damaged, or inflating beyond those bounds (``bad-payload``).
    """
    payload = bytearray()
    limit = max_payload_bytes(size_bytes) if limit is None else limit
    for chunk in OpenPayload(file, size_bytes, limit=limit, hashed=False):
        payload += chunk
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
