"""Carry out an import: compress and write in several threads, while one decompresses."""

import contextlib
import tempfile
import time
import zlib
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import IO, Any, NamedTuple

import zstandard

from jaxcache.cache.archive import read_chunks
from jaxcache.cache.bundle.format import Bundle, ContentReader
from jaxcache.cache.bundle.importing import ImportPlan, ImportStep
from jaxcache.cache.bundle.manifest import BundleItem
from jaxcache.cache.ledger.record import PAYLOAD, Event
from jaxcache.cache.ledger.segments import Ledger, append
from jaxcache.cache.leftovers import delete_leftovers, staging
from jaxcache.cache.pair import find, new_atime
from jaxcache.cache.parallel import ByteBudget
from jaxcache.cache.scan import Progress
from jaxcache.cache.seal import LEVEL_FACT
from jaxcache.entry.frame import MAX_LEVEL, compress_content
from jaxcache.model import Codec, FileInfo, result_repr
from jaxcache.store.base import NewFile, Store, StoreError

#: What JAX uses, and what makes an entry small that :func:`jaxcache.cache.seal.execute_seal` or
#: another tool has compressed further: tried in turn until an entry is as small as it was.
_LEVELS = {"zstd": (3, 19), "zlib": (6, 9)}
#: An entry may grow by its checksum and by what another zstd makes of the same level.
_GROWTH_BYTES, _GROWTH_SHARE = 4, 64
#: More than there are cores: most of their time goes into waiting for the disk to sync.
_WRITERS = 8
#: Of one sync; each entry stays open until then, with its date.
_BATCH_ENTRIES, _BATCH_BYTES = 16, 4 << 20
_BUDGET_BYTES = 32 << 20
#: Larger payloads are compressed as they come, on their own.
_PIECE_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class Failure:
    """A file that could not be written."""

    name: str
    detail: str


@dataclass(frozen=True, slots=True)
class Imported:
    """The result of executing a plan."""

    __repr__ = result_repr

    written: tuple[ImportStep, ...]
    failed: tuple[Failure, ...]
    rolled_back: bool = False
    """Nothing was kept, because not all of it could be written."""


def execute_import(
    store: Store,
    bundle: Bundle,
    plan: ImportPlan,
    *,
    level: int | None = None,
    atomic: bool = False,
    progress: Progress | None = None,
) -> Imported:
    """Write what a plan says. The bundle must have been verified.

    A file that cannot be written ends the import: most likely there is no room for the next one
    either. What was written until then stays, each entry whole; with ``atomic`` nothing stays.

    Args:
        level: of the entries' frames; by default one that makes each as small as it was.
    """
    delete_leftovers(store)
    if atomic:
        return _import_all_or_none(store, bundle, plan, level, progress)
    unpacking = _Unpacking(store, bundle, plan, level)
    unpacking.run(progress)
    return _finish(store, plan, unpacking)


def _import_all_or_none(
    store: Store, bundle: Bundle, plan: ImportPlan, level: int | None, progress: Progress | None
) -> Imported:
    try:
        with staging(store) as stage:
            unpacking = _Unpacking(store, bundle, plan, level, stage)
            unpacking.run(progress)
            failed = unpacking.failed or _commit(store, plan, unpacking.staged)
            for name, _ in unpacking.staged:
                with contextlib.suppress(StoreError):
                    store.delete(name)
    except StoreError as error:
        failed = [Failure(error.name, error.reason)]
    if failed:
        return Imported((), tuple(failed), rolled_back=True)
    return _finish(store, plan, unpacking)


def _finish(store: Store, plan: ImportPlan, unpacking: "_Unpacking") -> Imported:
    append(store, _events(store, plan, {s.name for s in unpacking.written}))
    return Imported(tuple(unpacking.written), tuple(unpacking.failed))


class _Batch(NamedTuple):
    """Entries that one thread compresses, and writes with one sync."""

    entries: list[tuple[str, ImportStep, BundleItem, bytes]]
    """Each with its destination and its payload."""
    holding: contextlib.ExitStack
    """Its share of the memory."""


class _Unpacking:
    """Write what a plan says to the names it says, or to a stage for all of it."""

    def __init__(
        self,
        store: Store,
        bundle: Bundle,
        plan: ImportPlan,
        level: int | None,
        stage: str | None = None,
    ) -> None:
        self._store, self._bundle, self._plan, self._level = store, bundle, plan, level
        self._stage = stage
        self._budget = ByteBudget(_BUDGET_BYTES)
        self.written: list[ImportStep] = []
        self.failed: list[Failure] = []
        self.staged: list[tuple[str, ImportStep]] = []

    def run(self, progress: Progress | None) -> None:
        """Write until all is written or one file cannot be."""
        running: deque[Future[tuple[int, StoreError | None]]] = deque()
        batches: deque[_Batch] = deque()
        with ThreadPoolExecutor(_WRITERS) as pool:
            for batch in self._batches(progress):
                batches.append(batch)
                running.append(pool.submit(self._write, batch))
                while running and (running[0].done() or len(running) > _WRITERS):
                    self._settle(batches.popleft(), *running.popleft().result())
            for batch in batches:
                self._settle(batch, *running.popleft().result())
        order = {step.name: number for number, step in enumerate(self._plan.steps)}
        self.written.sort(key=lambda step: order[step.name])
        self.failed.sort(key=lambda failure: order[failure.name])

    def _batches(self, progress: Progress | None) -> Iterator[_Batch]:
        """Yield the entries to write, some at a time; write large ones and plain files here."""
        writes = self._plan.writes
        writing, left = {s.name for s in writes}, len(writes)
        content = ContentReader(self._bundle)
        batch = _Batch([], contextlib.ExitStack())
        for number, step in enumerate(self._plan.steps):
            if not left or self.failed:
                break
            if step.name not in writing:
                content.skip(step.content_bytes)
                continue
            left -= 1
            target = self._target(number, step)
            if step.content_bytes > _PIECE_BYTES or not isinstance(step.subject, BundleItem):
                self._stream(target, step, content.take(step.content_bytes))
            else:
                batch.holding.enter_context(self._budget.take(step.content_bytes))
                payload = b"".join(content.take(step.content_bytes))
                batch.entries.append((target, step, step.subject, payload))
                held = sum(len(payload) for *_, payload in batch.entries)
                if len(batch.entries) == _BATCH_ENTRIES or held > _BATCH_BYTES:
                    yield batch
                    batch = _Batch([], contextlib.ExitStack())
            if progress:
                progress(len(writes) - left, len(writes))
        yield batch

    def _target(self, number: int, step: ImportStep) -> str:
        if self._stage is None:
            return step.name
        name = f"{self._stage}-{number}"
        self.staged.append((name, step))
        return name

    def _settle(self, batch: _Batch, written: int, error: StoreError | None) -> None:
        """Note how many entries of a batch were written, and what the next one failed of."""
        steps = [step for _, step, _, _ in batch.entries]
        self.written += steps[:written]
        if error is not None:
            self.failed.append(Failure(steps[written].name, error.reason))

    def _write(self, batch: _Batch) -> tuple[int, StoreError | None]:
        with batch.holding:
            files: list[NewFile] = []
            for target, step, item, payload in batch.entries:
                if self._stage is None:
                    files += _new_atime(self._plan, step)
                files.append(NewFile(target, [self._frame(item, payload)], item.created_ns))
            targets, written = {target for target, *_ in batch.entries}, 0
            for info in self._store.write_many(files):
                if isinstance(info, StoreError):
                    return written, info
                written += info.name in targets
            return written, None

    def _frame(self, item: BundleItem, payload: bytes) -> bytes:
        """The entry, compressed so that it is as small as it was."""
        content = item.compile_seconds.to_bytes(4, "big") + payload
        codec: Codec = "zlib" if item.codec == "zlib" else "zstd"
        frame = b""
        for level in self._levels(item):
            made = compress_content(content, codec, level)
            frame = min(frame or made, made, key=len)
            if _is_small(len(frame), item):
                break
        return frame

    def _levels(self, item: BundleItem) -> Sequence[int]:
        if self._level is not None:
            return (self._level,)
        levels = (event.facts.get(LEVEL_FACT) for event in reversed(item.ledger))
        known = next((n for n in levels if isinstance(n, int) and 1 <= n <= MAX_LEVEL), None)
        return _LEVELS["zlib" if item.codec == "zlib" else "zstd"] if known is None else (known,)

    def _stream(self, target: str, step: ImportStep, pieces: Iterable[memoryview]) -> None:
        """Write a large payload or a plain file without holding it."""
        item = step.subject
        try:
            if not isinstance(item, BundleItem):
                self._put(target, step, map(bytes, pieces))
            else:
                with tempfile.TemporaryFile() as payload, contextlib.ExitStack() as opened:
                    payload.writelines(pieces)
                    frame: Any = None
                    for level in self._levels(item):
                        made = opened.enter_context(tempfile.TemporaryFile())
                        made.writelines(_encoded(item, _rewound(payload), level))
                        frame = made if frame is None or made.tell() < frame.tell() else frame
                        if _is_small(frame.tell(), item):
                            break
                    self._put(target, step, _rewound(frame))
        except StoreError as error:
            self.failed.append(Failure(step.name, error.reason))
        else:
            self.written.append(step)

    def _put(self, target: str, step: ImportStep, chunks: Iterable[bytes]) -> None:
        dates = _new_atime(self._plan, step) if self._stage is None else []
        new = NewFile(target, chunks, step.subject.created_ns)
        for done in self._store.write_many([*dates, new]):
            if isinstance(done, StoreError):
                raise done


def _encoded(item: BundleItem, pieces: Iterable[bytes], level: int) -> Iterator[bytes]:
    header = item.compile_seconds.to_bytes(4, "big")
    encoder: Any
    if item.codec == "zlib":
        encoder = zlib.compressobj(min(level, 9))
    else:
        packer = zstandard.ZstdCompressor(level=level, write_checksum=True)
        encoder = packer.compressobj(size=len(header) + item.payload_bytes)
    yield encoder.compress(header)
    yield from map(encoder.compress, pieces)
    yield encoder.flush()


def _rewound(file: IO[bytes]) -> Iterator[bytes]:
    file.seek(0)
    return read_chunks(file)


def _is_small(size_bytes: int, item: BundleItem) -> bool:
    grown = _GROWTH_BYTES + item.size_bytes // _GROWTH_SHARE
    return size_bytes <= item.size_bytes + grown


def _new_atime(plan: ImportPlan, step: ImportStep) -> list[NewFile]:
    """The ``-atime`` file that an entry gets; none for what gets none."""
    item = step.subject
    if not plan.with_atimes or not isinstance(item, BundleItem):
        return []
    used_ns = item.created_ns if item.atime_ns is None else item.atime_ns
    new = new_atime(step.name, used_ns, mtime_ns=used_ns)
    return [new] if new else []


def _commit(store: Store, plan: ImportPlan, staged: list[tuple[str, ImportStep]]) -> list[Failure]:
    """Move staged files to their names; on a failure put back what was there.

    What is there is copied and then replaced in one step: moved away first, it would be missing
    for a moment, and for ever after a kill. Putting it back takes no room on the disk.
    """
    undo: list[tuple[str, FileInfo | None, str]] = []

    def back_up(name: str) -> FileInfo | None:
        there = find(store, name)
        if there is not None:
            old = f"{staged[0][0]}-old{len(undo)}"
            with store.open(name) as file:
                store.write(old, read_chunks(file), mtime_ns=there.mtime_ns)
            undo.append((name, there, old))
        return there

    failed: list[Failure] = []
    try:
        for name, step in staged:
            for stamp in _new_atime(plan, step):
                there = back_up(stamp.name)
                store.write(stamp.name, stamp.chunks, mtime_ns=stamp.mtime_ns)
                undo += [] if there else [(stamp.name, None, "")]
            if step.there is not None and back_up(step.name):
                store.rename(name, step.name, replace=True)
            else:
                store.rename(name, step.name)
                undo.append((step.name, None, ""))
    except StoreError as error:
        failed = [Failure(error.name, error.reason)]
        for name, there, old in reversed(undo):
            with contextlib.suppress(StoreError):
                if there is None:
                    store.delete(name)
                else:
                    store.rename(old, name, replace=True)
    for _, there, old in undo:
        if there is not None:
            with contextlib.suppress(StoreError):
                store.delete(old)
    return failed


def _events(store: Store, plan: ImportPlan, written: set[str]) -> Iterator[Event]:
    """Yield the events of the bundle's entries, and the digests they were checked by.

    Of one that could not be written it says nothing: there is none.
    """
    known = Ledger.load(store)
    missed = {s.name for s in plan.writes} - written
    for step in plan.steps:
        item = step.subject
        if isinstance(item, BundleItem) and step.name not in missed:
            if step.name in written:
                facts = {"payload_sha256": item.payload_sha256, "file_mtime_ns": item.created_ns}
                yield Event(item.key, PAYLOAD, item.created_ns, facts)
            if step.name in written and item.key not in known:
                now_ns = time.time_ns()
                yield from (e for event in item.ledger if (e := event.imported(now_ns)))
