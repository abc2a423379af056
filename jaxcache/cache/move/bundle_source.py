"""A bundle as the source of a move: its stream gives the payloads once, front to back."""

import contextlib
import io
import tempfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import IO, Any, BinaryIO

import zstandard

from jaxcache.cache.archive import read_chunks
from jaxcache.cache.bundle.format import Bundle, ContentReader
from jaxcache.cache.move.plan import ItemFacts, Step, bundle_items
from jaxcache.cache.seal import LEVEL_FACT
from jaxcache.entry.frame import MAX_LEVEL, compress_content
from jaxcache.model import Codec

#: What JAX uses, and what makes an entry small that :func:`jaxcache.cache.seal.execute_seal` or
#: another tool has compressed further: tried in turn until an entry is as small as it was.
_LEVELS = {"zstd": (3, 19), "zlib": (6, 9)}
#: An entry may grow by its checksum and by what another zstd makes of the same level.
_GROWTH_BYTES = 4
_GROWTH_SHARE = 64
#: Larger payloads wait on the disk, and are compressed in pieces.
BUFFERED_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class BundleParcel:
    """An entry or a side file out of a bundle whose every byte was checked before."""

    step: Step
    file: BinaryIO
    level: int | None

    @property
    def facts(self) -> ItemFacts:
        """Its contents, as the manifest has them."""
        return self.step.item.facts or ItemFacts("", 0)

    @property
    def mtime_ns(self) -> int:
        """The time of the file that it was made from."""
        return self.step.item.created_ns

    def payload(self) -> Iterator[bytes]:
        """Yield its contents."""
        self.file.seek(0)
        return read_chunks(self.file)

    def frame(self) -> Iterator[bytes]:
        """Yield an entry compressed so that it is as small as it was, or the bytes of a file."""
        item = self.step.item
        if item.key is None:
            yield from self.payload()
        elif item.content_bytes <= BUFFERED_BYTES:
            yield self._compress(b"".join(self.payload()))
        else:
            yield from self._compress_in_pieces()

    @property
    def _header(self) -> bytes:
        return self.facts.compile_seconds.to_bytes(4, "big")

    @property
    def _codec(self) -> Codec:
        return "zlib" if self.facts.codec == "zlib" else "zstd"

    def _compress(self, payload: bytes) -> bytes:
        frame = b""
        for level in self._levels():
            compressed = compress_content(self._header + payload, self._codec, level)
            frame = min(frame or compressed, compressed, key=len)
            if self._is_small(len(frame)):
                break
        return frame

    def _compress_in_pieces(self) -> Iterator[bytes]:
        with contextlib.ExitStack() as opened:
            frame: IO[bytes] | None = None
            for level in self._levels():
                file = opened.enter_context(tempfile.TemporaryFile())
                file.writelines(self._pieces(level))
                if frame is None or file.tell() < frame.tell():
                    frame = file
                if self._is_small(frame.tell()):
                    break
            if frame is not None:
                frame.seek(0)
                yield from read_chunks(frame)

    def _pieces(self, level: int) -> Iterator[bytes]:
        encoder: Any
        if self._codec == "zlib":
            encoder = zlib.compressobj(min(level, 9))
        else:
            packer = zstandard.ZstdCompressor(level=level, write_checksum=True)
            encoder = packer.compressobj(size=len(self._header) + self.facts.content_bytes)
        yield encoder.compress(self._header)
        yield from map(encoder.compress, self.payload())
        yield encoder.flush()

    def _levels(self) -> Sequence[int]:
        if self.level is not None:
            return (self.level,)
        levels = (event.facts.get(LEVEL_FACT) for event in reversed(self.step.item.events))
        level = next((n for n in levels if isinstance(n, int) and 1 <= n <= MAX_LEVEL), None)
        return _LEVELS[self._codec] if level is None else (level,)

    def _is_small(self, size_bytes: int) -> bool:
        before = self.step.item.size_bytes
        return size_bytes <= before + _GROWTH_BYTES + before // _GROWTH_SHARE

    def close(self) -> None:
        """Free the payload."""
        self.file.close()


class BundleSource:
    """A verified bundle that entries come from.

    Args:
        level: of the entries' frames; by default one that makes each as small as it was.
    """

    remote = False
    budget_bytes = 32 << 20  # of payloads, while they are compressed

    def __init__(self, bundle: Bundle, *, level: int | None = None) -> None:
        self._level = level
        self._content = ContentReader(bundle)
        self._order = iter([(i.name, i.content_bytes) for i in bundle_items(bundle.manifest)])

    def take(self, step: Step) -> BinaryIO:
        """Read a payload from the stream; those before it that do not travel are skipped."""
        for name, size in self._order:
            if name == step.name:
                break
            self._content.skip(size)
        size = step.item.content_bytes
        file: Any = io.BytesIO() if size <= BUFFERED_BYTES else tempfile.TemporaryFile()  # noqa: SIM115
        file.writelines(self._content.take(size))
        return file  # type: ignore[no-any-return]

    def open(self, step: Step, taken: BinaryIO) -> BundleParcel:
        """Return what was taken; every byte was checked before the plan was made."""
        return BundleParcel(step, taken, self._level)
