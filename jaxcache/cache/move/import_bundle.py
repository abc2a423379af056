"""Put what a bundle holds into a cache: look at what is there, plan, then write.

Nothing is written before every byte of the bundle has been compared with the digests in its
manifest. Entries are written as sealed frames, each atomically and its ``-atime`` before it, so
that an interrupted import leaves whole entries, and a second run completes it. No lock is taken:
JAX reads an entry only under its final name, which ours get last.
"""

import contextlib
import io
import tempfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import compress
from typing import IO, Any, BinaryIO

from jaxcache.cache.archive import read_chunks
from jaxcache.cache.bundle.format import JAX, Bundle, BundleError, ContentReader
from jaxcache.cache.bundle.reader import verify_bundle
from jaxcache.cache.move import export_plan
from jaxcache.cache.move import plan as plans
from jaxcache.cache.move.execute import carry_out
from jaxcache.cache.seal import LEVEL_FACT
from jaxcache.entry import zstd
from jaxcache.entry.codec import MAX_LEVEL, compress_content
from jaxcache.model import Codec
from jaxcache.store.base import Store

#: What JAX uses, and what makes an entry small that :func:`jaxcache.cache.seal.execute_seal` or
#: another tool has compressed further: tried in turn until an entry is as small as it was.
_LEVELS = {"zstd": (3, 19), "zlib": (6, 9)}
#: An entry may grow by its checksum and by what another zstd makes of the same level.
_GROWTH_BYTES = 4
_GROWTH_SHARE = 64
#: Larger payloads wait on the disk, and are compressed in pieces.
BUFFERED_BYTES = 16 << 20


def plan_import(
    store: Store | None,
    bundle: Bundle,
    *,
    cache_dir: str,
    on_conflict: str = "keep",
    side_caches: bool = True,
    wanted: Callable[[plans.Item], str | None] | None = None,
) -> plans.Plan:
    """Look at what is there already, and decide for each entry.

    Args:
        store: the cache; None where its directory does not exist yet.
        on_conflict: what to do where the same key has another payload or header that is sound.
        wanted: returns why an entry does not come in; every one does if None.

    Raises:
        UsageError: ``on_conflict`` is not in :data:`jaxcache.cache.move.export_plan.ON_CONFLICT`.
        JaxcacheError: ``conflict`` where it is ``fail`` and there is one.
    """
    if bundle.manifest.layout != JAX:
        raise BundleError(
            f"{bundle.name} holds a cache of {bundle.manifest.layout}, not of JAX",
            code="other-layout",
        )
    refused = (bundle if bundle.refused is not None else verify_bundle(bundle)).refused or {}

    def refuse(item: plans.Item) -> plans.Step | None:
        if item.name in refused:
            return plans.Step(item, plans.MoveAction.DAMAGED, refused[item.name])
        reason_left = wanted(item) if wanted is not None and item.key is not None else None
        if item.key is None:
            reason_left = export_plan.refuse_side_file(item.name, item.content_bytes)
        return plans.Step(item, plans.MoveAction.LEFT, reason_left) if reason_left else None

    items = [i for i in plans.bundle_items(bundle.manifest) if side_caches or i.key is not None]
    offered = [refuse(item) or plans.Step(item, plans.MoveAction.WRITE) for item in items]
    inventory = export_plan.list_target(store)
    steps = export_plan.compare_payloads(store, offered, inventory, on_conflict)
    dated = any(item.atime_ns is not None for item in bundle.manifest.items)
    return plans.Plan(
        bundle.name,
        cache_dir,
        steps,
        entries=len(bundle.manifest.items),
        with_atimes=export_plan.has_atimes(inventory, store, dated=dated),
        runs=True,
    )


def execute_import(
    store: Store | None,
    bundle: Bundle,
    plan: plans.Plan,
    *,
    level: int | None = None,
    atomic: bool = False,
    jobs: int | None = None,
    dry_run: bool = False,
) -> plans.Outcome:
    """Carry out a plan. The bundle must have been verified.

    What was written before a failure stays, each entry whole; with ``atomic`` nothing stays.

    Args:
        store: None for a dry run.
        level: of the entries' frames; by default one that makes each as small as it was.
        jobs: files under way at once; torch's are written one after the other.
    """
    if dry_run or store is None:
        return plans.Outcome(plan, plan.steps, dry_run=True)
    source = BundleSource(bundle, level=level)
    if bundle.manifest.layout != JAX and not store.remote:
        jobs = 1  # torch must never find a graph before its parts
    return carry_out(source, store, plan, atomic=atomic, jobs=jobs)


def after_export(export: plans.Outcome, done: plans.Outcome) -> plans.Outcome:
    """Return the outcome of an import that also counts the files that its bundle does not hold."""
    stays = [step.action not in plans.WRITES for step in export.steps]
    planned = (*compress(export.plan.steps, stays), *done.plan.steps)
    steps = (*compress(export.steps, stays), *done.steps)
    return replace(done, plan=replace(done.plan, steps=planned), steps=steps)


@dataclass(frozen=True, slots=True)
class BundleParcel:
    """An entry or a side file out of a bundle whose every byte was checked before."""

    step: plans.Step
    file: BinaryIO
    level: int | None

    @property
    def facts(self) -> plans.ItemFacts:
        """Its contents, as the manifest has them."""
        return self.step.item.facts or plans.ItemFacts("", 0)

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
        if item.key is None or item.is_unknown:
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
            encoder = zstd.compressor(level)
            encoder.set_pledged_input_size(len(self._header) + self.facts.content_bytes)
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
    store = None

    def __init__(self, bundle: Bundle, *, level: int | None = None) -> None:
        self._level = level
        self._runs = bundle.manifest.runs
        self._content = ContentReader(bundle)

    def run_records(self) -> Mapping[str, bytes]:
        """Return the records of programs' runs, by name."""
        return self._runs

    def take(self, step: plans.Step) -> BinaryIO:
        """Read a payload from the stream; those before it that do not travel are skipped.

        Raises:
            BundleError: it is not the one that was checked before the plan was made.
        """
        size = step.item.content_bytes
        file: Any = io.BytesIO() if size <= BUFFERED_BYTES else tempfile.TemporaryFile()  # noqa: SIM115
        file.writelines(self._content.take(step.name))
        return file  # type: ignore[no-any-return]

    def open(self, step: plans.Step, taken: BinaryIO) -> BundleParcel:
        """Return what was taken, which nobody else can change."""
        return BundleParcel(step, taken, self._level)
