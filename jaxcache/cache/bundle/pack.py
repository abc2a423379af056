"""Write what an export plan names as one solid stream, and describe it.

The same cache gives the same bytes: entries go by module, then file size, then key, so that
programs that differ little lie near each other; nothing in the bundle says when or where it was
made.
"""

import contextlib
import hashlib
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO

from jaxcache.cache.archive import Packer, read_chunks
from jaxcache.cache.bundle.export import ExportPlan
from jaxcache.cache.bundle.format import pack_manifest, stream_parameters
from jaxcache.cache.bundle.manifest import BundleItem, Manifest, Origin, SideFile, encode_manifest
from jaxcache.cache.gate import read_content
from jaxcache.cache.inventory import EntryFile
from jaxcache.cache.ledger.record import PAYLOAD, PINNING, Event
from jaxcache.cache.ledger.segments import Ledger
from jaxcache.cache.pair import ATIME_BYTES, parse_atime
from jaxcache.cache.scan import Progress
from jaxcache.entry.codec import CodecError
from jaxcache.entry.contents import Contents
from jaxcache.entry.decode import decode_origin
from jaxcache.entry.names import FileKind
from jaxcache.errors import JaxcacheError
from jaxcache.model import FileInfo, Problem
from jaxcache.store.base import MissingError, Store, StoreError
from jaxcache.units import printable

#: What the default costs and gives is in docs/bundles.md.
DEFAULT_LEVEL, SMALL_LEVEL = 12, 19


@dataclass(frozen=True, slots=True)
class Exported:
    """The content of a bundle that was written."""

    manifest: Manifest
    manifest_sha256: str
    packed_manifest: bytes
    stream: BinaryIO
    stream_bytes: int
    left_out: tuple[Problem, ...]

    @property
    def size_bytes(self) -> int:
        """The size of the bundle without its header and signatures."""
        return self.stream_bytes + len(self.packed_manifest)


def write_stream(
    store: Store,
    plan: ExportPlan,
    *,
    level: int | None = None,
    folder: str | None = None,
    allow_large: bool = True,
    progress: Progress | None = None,
) -> Exported:
    """Compress what a plan names into a nameless temporary file, and describe it.

    Damaged entries are left out and reported. Memory stays bounded whatever the cache holds.

    Args:
        level: of zstd; by default :data:`DEFAULT_LEVEL`, or :data:`SMALL_LEVEL` where that makes a
            bundle larger than the files, as it does of sealed ones.
        allow_large: see :class:`jaxcache.cache.gate.Gate`.
        folder: where the temporary file lies; the system's folder for those by default.

    Raises:
        JaxcacheError: ``changed`` where a large entry changed while it was read; ``io-error``
            where the temporary file cannot be written.
    """
    chosen = DEFAULT_LEVEL if level is None else level
    try:
        with contextlib.ExitStack() as opened:  # closing flushes, and may fail as well
            out: BinaryIO = opened.enter_context(tempfile.TemporaryFile(dir=folder))
            written = _Writer(store, plan, out, chosen, allow_large, progress).run()
            out.flush()
            if level is not None or written.size_bytes <= written.manifest.source_bytes:
                opened.pop_all()  # the file outlives this function
                return written
    except OSError as error:
        raise JaxcacheError(
            f"cannot write a temporary file in {folder or tempfile.gettempdir()}: "
            f"{(error.strerror or str(error)).lower()}",
            code="io-error",
        ) from error
    given: dict[str, Any] = {"allow_large": allow_large, "progress": progress}
    return write_stream(store, plan, level=SMALL_LEVEL, folder=folder, **given)


class _Writer:
    def __init__(
        self,
        store: Store,
        plan: ExportPlan,
        out: BinaryIO,
        level: int,
        allow_large: bool,
        progress: Progress | None,
    ) -> None:
        self._allow_large = allow_large
        self._store, self._plan, self._out, self._progress = store, plan, out, progress
        self._ledger = Ledger.load(store)
        self._events = _events_by_key(self._ledger)
        self._stream = Packer(out, stream_parameters(level, plan.size_bytes))
        self._content_bytes = self._done = 0
        self._origins: dict[Origin, int] = {}
        self._left_out = list(plan.left_out)

    def run(self) -> Exported:
        items = list(self._items())
        files = list(self._side_items())
        if self._content_bytes:
            self._stream.finish()
        manifest = Manifest(
            tuple(items),
            tuple(files),
            tuple(self._origins),
            self._stream.digest.hex(),
            self._content_bytes,
            self._plan.since,
            self._plan.layout,
        )
        packed = pack_manifest(encode_manifest(manifest))
        self._out.seek(0)
        return Exported(
            manifest,
            hashlib.sha256(packed).hexdigest(),
            packed,
            self._out,
            self._stream.packed_bytes,
            tuple(self._left_out),
        )

    def _items(self) -> Iterator[BundleItem]:
        files = sorted(
            self._plan.files,
            key=lambda f: (f[0].key.module, f[0].info.size_bytes, f[0].info.name),
        )
        opened = self._store.open_many([file.info.name for file, _ in files])
        for (file, atime), stream in zip(files, opened, strict=True):
            try:
                if isinstance(stream, StoreError):
                    raise stream
                with stream:
                    item = self._item(file, atime, stream)
                    if item is not None:
                        yield item
            except CodecError as error:
                self._leave_out(file, error.kind, error.detail)
            except MissingError:
                pass  # removed since it was listed
            except StoreError as error:
                self._leave_out(file, "unreadable", error.reason)
            self._advance(file.info.size_bytes)

    def _leave_out(self, file: EntryFile, kind: object, detail: str) -> None:
        self._left_out.append(Problem(file.info.name, kind, detail, file.key_text))  # type: ignore[arg-type]

    def _item(self, file: EntryFile, atime: FileInfo | None, stream: BinaryIO) -> BundleItem | None:
        try:
            content = read_content(
                stream, file.info.size_bytes, file.info.name, allow_large=self._allow_large
            )
        except OSError as error:  # of a bad disk; one while we write is another matter
            reason = (error.strerror or str(error)).lower()
            raise StoreError(file.info.name, reason, code="io-error") from error
        key = file.key_text
        found = (content.payload_sha256, content.compile_seconds)
        if (there := self._plan.known.get(key)) and found == (
            there.payload_sha256,
            there.compile_seconds,
        ):
            return None
        origin = make_origin(content.decoded or decode_origin(content.held))
        for chunk in content.chunks(stream):
            self._stream.add(chunk)
        self._content_bytes += content.payload_bytes
        return BundleItem(
            key=key,
            legacy=file.kind is FileKind.LEGACY_ENTRY,
            codec=content.codec,
            compile_seconds=content.compile_seconds,
            size_bytes=file.info.size_bytes,
            payload_bytes=content.payload_bytes,
            payload_sha256=content.payload_sha256,
            created_ns=max(0, file.info.mtime_ns),
            atime_ns=self._stamp(atime),
            origin=self._origins.setdefault(origin, len(self._origins)),
            ledger=self._events.get(key, ()),
        )

    def _stamp(self, atime: FileInfo | None) -> int | None:
        if atime is None:
            return None
        try:
            return parse_atime(self._store.read(atime.name, limit=ATIME_BYTES + 1))
        except MissingError:
            return None
        except StoreError as error:
            self._left_out.append(Problem(atime.name, "unreadable", error.reason))
            return None

    def _side_items(self) -> Iterator[SideFile]:
        for info in self._plan.side_files:
            try:
                stream = self._store.open(info.name)
            except MissingError:
                continue
            except StoreError as error:
                self._left_out.append(Problem(info.name, "unreadable", error.reason))
                continue
            with stream:
                digest, size = hashlib.sha256(), 0
                for chunk in read_chunks(stream):
                    digest.update(chunk)
                    size += len(chunk)
                    self._stream.add(chunk)
            self._content_bytes += size
            self._advance(info.size_bytes)
            yield SideFile(info.name, size, digest.hexdigest(), max(0, info.mtime_ns))

    def _advance(self, size_bytes: int) -> None:
        self._done += size_bytes
        if self._progress:
            self._progress(self._done, self._plan.size_bytes)


def _events_by_key(ledger: Ledger) -> dict[str, tuple[Event, ...]]:
    """Every event that travels: pins are a decision of the cache they were made in."""
    found: dict[str, list[Event]] = {}
    for event in ledger.events():
        if event.kind not in PINNING and event.kind != PAYLOAD:
            found.setdefault(event.key, []).append(event)
    order: Callable[[Event], tuple[int, str]] = lambda e: (e.at_ns, e.kind)  # noqa: E731
    return {key: tuple(sorted(events, key=order)) for key, events in found.items()}


def make_origin(found: Contents) -> Origin:
    """Read from a payload which compiler made it, and for which device."""
    device = found.device
    return Origin(
        platform=device.platform,
        target=_text(device.target),
        device_name=_text(device.name),
        cpu_triple=_text(device.cpu_triple),
        cpu_name=_text(device.cpu_name),
        cpu_features=device.cpu_features,
        compute_capability=_text(device.compute_capability),
        toolkit=_text(device.toolkit),
        cudnn=_text(device.cudnn),
        ifrt_version=found.format.ifrt_version,
        abi=_text(found.format.abi),
        container=found.format.container,
        like_jaxlib=found.like_jaxlib,
        written_in_cache_dir=_text(found.written_in_cache_dir),
        kernel_cache=found.kernel_cache or None,
    )


def _text(value: str | None) -> str | None:
    return None if value is None else printable(value)
