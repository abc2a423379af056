"""The stream of a bundle: checked as it lies there, and read as the payloads that are in it."""

import hashlib
from collections.abc import Iterator

from jaxcache.cache.bundle.fields import BundleError
from jaxcache.cache.bundle.format import Bundle
from jaxcache.cache.bundle.parts import Window
from jaxcache.entry.codec import CodecError, decompress_chunks

_CHUNK_BYTES = 1 << 20


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
