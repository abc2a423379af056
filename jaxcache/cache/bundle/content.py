"""The content of one entry: its payload, digest and header, within bounded memory."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

from jaxcache.entry.codec import (
    HEADER_BYTES,
    CodecError,
    check_header,
    decompress_chunks,
    detect_codec,
)
from jaxcache.errors import JaxcacheError
from jaxcache.model import Codec

#: Payloads up to this size are decompressed once and held; larger ones twice, and streamed.
HELD_BYTES = 32 << 20


@dataclass(frozen=True, slots=True)
class Content:
    """What a whole, sound entry holds."""

    codec: Codec
    compile_seconds: int
    payload_bytes: int
    payload_sha256: str
    held: bytearray
    """The payload, or the beginning of one that is larger than :data:`HELD_BYTES`."""
    size_bytes: int

    def chunks(self, file: BinaryIO) -> Iterator[bytes | bytearray]:
        """Yield the payload, from ``file`` where it is not held.

        Raises:
            JaxcacheError: ``changed`` where the file is another one by now.
        """
        if self.payload_bytes <= HELD_BYTES:
            yield self.held
            return
        digest, skip = hashlib.sha256(), HEADER_BYTES
        try:
            for chunk in decompress_chunks(file, self.size_bytes):
                payload = chunk[skip:]
                skip -= min(skip, len(chunk))
                digest.update(payload)
                yield payload
        except CodecError as error:
            raise _changed() from error
        if digest.hexdigest() != self.payload_sha256:
            raise _changed()


def read_content(file: BinaryIO, size_bytes: int) -> Content:
    """Decompress and hash an entry.

    Args:
        file: seekable, the whole entry.
        size_bytes: its size.

    Raises:
        CodecError: it is damaged.
    """
    digest, held, first, payload_bytes = hashlib.sha256(), bytearray(), b"", 0
    for chunk in decompress_chunks(file, size_bytes):
        cut = HEADER_BYTES - len(first)
        first += chunk[:cut]
        payload = memoryview(chunk)[cut:]
        digest.update(payload)
        payload_bytes += len(payload)
        if payload_bytes <= HELD_BYTES:
            held += payload
    seconds = check_header(first)
    file.seek(0)
    codec = detect_codec(file.read(HEADER_BYTES))
    return Content(codec, seconds, payload_bytes, digest.hexdigest(), held, size_bytes)


def _changed() -> JaxcacheError:
    return JaxcacheError(
        "an entry changed while it was read", code="changed", hint="run the command again"
    )
