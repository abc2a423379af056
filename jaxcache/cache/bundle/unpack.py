"""Carry out an import: compress and write in several threads, while one decompresses."""

import contextlib
import zlib
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import zstandard

from jaxcache.cache.budget import ByteBudget
from jaxcache.cache.bundle.format import Bundle
from jaxcache.cache.bundle.importing import ImportPlan, Step
from jaxcache.cache.bundle.manifest import Item
from jaxcache.cache.bundle.stream import ContentReader
from jaxcache.cache.ledger import Ledger, append
from jaxcache.cache.ledger_record import PAYLOAD, Event
from jaxcache.cache.scan import Progress
from jaxcache.entry.frame import compress_content
from jaxcache.entry.names import ATIME_SUFFIX, OWN_DIR
from jaxcache.model import Codec
from jaxcache.store.base import Store, StoreError

#: Twice as fast as JAX's own 3, for a hundredth more bytes.
DEFAULT_LEVEL = 1
#: Where ``--atomic`` keeps entries until all of them are there.
INCOMING_DIR = f"{OWN_DIR}/incoming"
#: More than there are cores: most of their time goes into waiting for the disk to sync.
_WRITERS = 8
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
    """What became of a plan."""

    written: tuple[Step, ...]
    failed: tuple[Failure, ...]
    rolled_back: bool = False
    """Nothing was kept, because not all of it could be written."""


def execute_import(
    store: Store,
    bundle: Bundle,
    plan: ImportPlan,
    *,
    level: int = DEFAULT_LEVEL,
    atomic: bool = False,
    progress: Progress | None = None,
) -> Imported:
    """Write what a plan says. The bundle must have been verified.

    A file that cannot be written ends the import: most likely there is no room for the next one
    either. What was written until then stays, each entry whole; with ``atomic`` nothing stays.
    """
    if not store.remote:  # where nothing is ever left behind
        with contextlib.suppress(StoreError):
            for info in list(store.list()):
                store.delete_abandoned(info.name)
    unpacking = _Unpacking(store, bundle, plan, level, atomic)
    with ThreadPoolExecutor(_WRITERS) as pool:
        unpacking.run(pool, progress)
    written, failed = unpacking.written, unpacking.failed
    if atomic:
        failed += [] if failed else _commit(store, plan, unpacking.staged)
        if failed:
            _discard(store, unpacking.staged)
            return Imported((), tuple(failed), rolled_back=True)
    append(store, _events(store, plan, {s.name for s in written}))
    return Imported(tuple(written), tuple(failed))


class _Unpacking:
    def __init__(
        self, store: Store, bundle: Bundle, plan: ImportPlan, level: int, atomic: bool
    ) -> None:
        self._store, self._bundle, self._plan, self._level = store, bundle, plan, level
        self._atomic = atomic
        self._budget = ByteBudget(_BUDGET_BYTES)
        self.written: list[Step] = []
        self.failed: list[Failure] = []
        self.staged: list[tuple[str, Step]] = []

    def run(self, pool: ThreadPoolExecutor, progress: Progress | None) -> None:
        writing = {s.name: s for s in self._plan.writes}
        content = ContentReader(self._bundle)
        pending: list[tuple[Step, Future[None]]] = []
        left = len(writing)
        for number, step in enumerate(self._plan.steps):
            if not left or self.failed:
                break
            if step.name not in writing:
                content.skip(step.content_bytes)
                continue
            left -= 1
            target = self._target(number, step)
            if step.content_bytes > _PIECE_BYTES or not isinstance(step.subject, Item):
                self._settle(step, self._stream(target, step, content.take(step.content_bytes)))
            else:
                holding = contextlib.ExitStack()
                holding.enter_context(self._budget.take(step.content_bytes))
                payload = b"".join(content.take(step.content_bytes))
                task = pool.submit(self._write, target, step, step.subject, payload, holding)
                pending.append((step, task))
            pending = [p for p in pending if not self._done(*p, wait=False)]
            if progress:
                progress(len(writing) - left, len(writing))
        for one in pending:
            self._done(*one, wait=True)

    def _target(self, number: int, step: Step) -> str:
        if not self._atomic:
            return step.name
        name = f"{INCOMING_DIR}/{self._bundle.manifest_sha256[:16]}-{number}"
        self.staged.append((name, step))
        return name

    def _done(self, step: Step, task: "Future[None]", *, wait: bool) -> bool:
        if not wait and not task.done():
            return False
        error = task.exception()
        if error is not None and not isinstance(error, StoreError):
            raise error
        self._settle(step, error)
        return True

    def _settle(self, step: Step, error: StoreError | None) -> None:
        if error is None:
            self.written.append(step)
        else:
            self.failed.append(Failure(step.name, error.reason))

    def _write(
        self, target: str, step: Step, item: Item, payload: bytes, holding: contextlib.ExitStack
    ) -> None:
        with holding:
            content = item.compile_seconds.to_bytes(4, "big") + payload
            codec: Codec = "zlib" if item.codec == "zlib" else "zstd"
            self._put(target, step, [compress_content(content, codec, self._level)])

    def _stream(self, target: str, step: Step, pieces: Iterable[memoryview]) -> StoreError | None:
        """Write a large payload or a plain file without holding it."""
        try:
            self._put(target, step, self._encoded(step, pieces))
        except StoreError as error:
            return error
        return None

    def _encoded(self, step: Step, pieces: Iterable[memoryview]) -> Iterator[bytes]:
        item = step.subject
        if not isinstance(item, Item):
            yield from map(bytes, pieces)
            return
        header = item.compile_seconds.to_bytes(4, "big")
        encoder: Any
        if item.codec == "zlib":
            encoder = zlib.compressobj(min(self._level, 9))
        else:
            encoder = zstandard.ZstdCompressor(
                level=self._level, write_checksum=True
            ).compressobj(size=len(header) + item.payload_bytes)  # fmt: skip
        yield encoder.compress(header)
        for piece in pieces:
            yield encoder.compress(piece)
        yield encoder.flush()

    def _put(self, target: str, step: Step, chunks: Iterable[bytes]) -> None:
        subject = step.subject
        if isinstance(subject, Item) and not self._atomic:
            _write_atime(self._store, self._plan, subject)
        self._store.write(target, chunks, mtime_ns=subject.created_ns)


def _write_atime(store: Store, plan: ImportPlan, item: Item) -> None:
    if plan.with_atimes and not item.legacy:
        stamp = item.created_ns if item.atime_ns is None else item.atime_ns
        store.write(item.key + ATIME_SUFFIX, [stamp.to_bytes(8, "little")], mtime_ns=stamp)


def _commit(store: Store, plan: ImportPlan, staged: list[tuple[str, Step]]) -> list[Failure]:
    """Move staged files to their names; on a failure move everything back."""
    undo: list[tuple[str, str | None]] = []
    try:
        for name, step in staged:
            old: str | None = None
            if step.there is not None:
                old = f"{name}-old"
                store.rename(step.name, old)
                undo.append((step.name, old))
            if isinstance(step.subject, Item):
                _write_atime(store, plan, step.subject)
            store.rename(name, step.name)
            if old is None:
                undo.append((step.name, None))
    except StoreError as error:
        for name, old in reversed(undo):
            with contextlib.suppress(StoreError):
                store.delete(name)
                if old is not None:
                    store.rename(old, name)
        return [Failure(error.name, error.reason)]
    for _, old in undo:
        if old is not None:
            store.delete(old)
    return []


def _discard(store: Store, staged: list[tuple[str, Step]]) -> None:
    for name, _ in staged:
        with contextlib.suppress(StoreError):
            store.delete(name)


def _events(store: Store, plan: ImportPlan, written: set[str]) -> Iterator[Event]:
    """What the bundle knows of the entries, and the digests it was checked by."""
    known = Ledger.load(store)
    for step in plan.steps:
        item = step.subject
        if isinstance(item, Item) and (step.name in written or item.key not in known):
            if step.name in written:
                yield Event(item.key, PAYLOAD, item.created_ns, _payload_facts(item))
            if item.key not in known:
                yield from item.ledger


def _payload_facts(item: Item) -> dict[str, object]:
    return {"payload_sha256": item.payload_sha256, "file_mtime_ns": item.created_ns}
