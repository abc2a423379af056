"""A bundle as the target of a move: one solid stream, and the manifest that describes it.

The same cache gives the same bytes: nothing in the bundle says when or where it was made.
"""

import contextlib
import hashlib
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

from jaxcache.cache.admission import ImportPolicy
from jaxcache.cache.archive import Packer
from jaxcache.cache.bundle.format import pack_manifest, stream_parameters
from jaxcache.cache.bundle.manifest import BundleItem, Manifest, Origin, SideFile, encode_manifest
from jaxcache.cache.move.check import Check
from jaxcache.cache.move.execute import move
from jaxcache.cache.move.export_plan import ExportPlan
from jaxcache.cache.move.plan import Item, ItemFacts, MoveAction, MoveTarget, Outcome, Parcel, Plan
from jaxcache.cache.move.stores import StoreSource
from jaxcache.cache.scan import Progress
from jaxcache.errors import JaxcacheError, system_errors_as
from jaxcache.model import Problem
from jaxcache.store.base import Store, StoreError

#: What the default costs and gives is in docs/bundles.md.
DEFAULT_LEVEL = 12
SMALL_LEVEL = 19
_LEFT_OUT = (MoveAction.STRAY, MoveAction.DAMAGED, MoveAction.UNFINISHED, MoveAction.FAILED)


class BundleTarget(MoveTarget):
    """The stream of a bundle, which parcels enter in the order of the plan."""

    is_stream = True
    workers = 4  # that read and check while one compresses

    def __init__(self, out: BinaryIO, level: int, size_bytes: int) -> None:
        self._stream = Packer(out, stream_parameters(level, size_bytes))
        self._items: list[BundleItem] = []
        self._files: list[SideFile] = []
        self._origins: dict[Origin, int] = {}
        self._content_bytes = 0

    def put(self, parcels: list[Parcel]) -> Iterator[StoreError | None]:
        """Compress the contents of each parcel."""
        for parcel in parcels:
            size = 0
            for chunk in parcel.payload():
                self._stream.add(chunk)
                size += len(chunk)
            self._content_bytes += size
            item = parcel.step.item
            facts = parcel.facts
            if item.key is None:
                self._files.append(SideFile(item.name, size, facts.sha256, max(0, parcel.mtime_ns)))
            else:
                self._items.append(self._describe(item, facts))
            yield None

    def _describe(self, item: Item, facts: ItemFacts) -> BundleItem:
        origin = facts.origin or Origin()
        return BundleItem(
            key=item.key or "",
            legacy=item.key == item.name,
            codec=facts.codec,
            compile_seconds=facts.compile_seconds,
            size_bytes=item.size_bytes,
            payload_bytes=facts.content_bytes,
            payload_sha256=facts.sha256,
            created_ns=item.created_ns,
            atime_ns=item.used_ns,
            origin=self._origins.setdefault(origin, len(self._origins)),
            ledger=item.events,
        )

    def finish(self, plan: ExportPlan) -> Manifest:
        """End the stream, and describe it."""
        if self._content_bytes:
            self._stream.finish()
        return Manifest(
            tuple(self._items),
            tuple(self._files),
            tuple(self._origins),
            self._stream.digest.hex(),
            self._content_bytes,
            plan.since,
            plan.layout,
        )

    @property
    def packed_bytes(self) -> int:
        """The size of the stream."""
        return self._stream.packed_bytes


@dataclass(frozen=True, slots=True)
class ExportResult:
    """The content of a bundle that was written."""

    manifest: Manifest
    manifest_sha256: str
    packed_manifest: bytes
    stream: BinaryIO
    stream_bytes: int
    outcome: Outcome

    @property
    def left_out(self) -> tuple[Problem, ...]:
        """The files that were to travel and did not; those that had no chance come first."""
        planned = {step.name for step in self.outcome.plan.writes}
        steps = sorted(self.outcome.of(*_LEFT_OUT), key=lambda step: step.name in planned)
        return tuple(step.problem for step in steps)

    @property
    def size_bytes(self) -> int:
        """The size of the bundle without its header and signatures."""
        return self.stream_bytes + len(self.packed_manifest)


def write_stream(
    store: Store,
    plan: ExportPlan,
    *,
    level: int | None = None,
    directory: str | None = None,
    allow_large: bool = True,
    progress: Progress | None = None,
) -> ExportResult:
    """Compress what a plan names into a nameless temporary file, and describe it.

    Damaged entries are left out and reported. Memory stays bounded whatever the cache holds.

    Args:
        level: of zstd; by default :data:`DEFAULT_LEVEL`, or :data:`SMALL_LEVEL` where that makes a
            bundle larger than the files, as it does of sealed ones.
        allow_large: see :class:`jaxcache.cache.admission.ImportPolicy`.
        directory: where the temporary file lies; the system's directory for those by default.

    Raises:
        JaxcacheError: ``changed`` where a large entry changed while it was read; ``io-error``
            where the temporary file cannot be written.
    """
    levels = (DEFAULT_LEVEL, SMALL_LEVEL) if level is None else (level,)
    failure = f"cannot write a temporary file in {directory or tempfile.gettempdir()}"
    with system_errors_as(JaxcacheError, failure, code="io-error"):
        for number, chosen in enumerate(levels, 1):
            with contextlib.ExitStack() as opened:  # closing flushes, and may fail as well
                out: BinaryIO = opened.enter_context(tempfile.TemporaryFile(dir=directory))
                written = _write(store, plan, out, chosen, allow_large, progress)
                out.flush()
                small = written.size_bytes <= written.manifest.source_bytes
                if small or number == len(levels):
                    opened.pop_all()  # the file outlives this function
                    return written
    raise AssertionError("there is always a last level")


def _write(
    store: Store,
    plan: ExportPlan,
    out: BinaryIO,
    level: int,
    allow_large: bool,
    progress: Progress | None,
) -> ExportResult:
    def same(item: Item, facts: ItemFacts) -> str | None:
        held = plan.known.get(item.key or "")
        computed = (facts.sha256, facts.compile_seconds)
        return (
            "there already"
            if held and computed == (held.payload_sha256, held.header_seconds)
            else None
        )

    check = Check(ImportPolicy(allow_large=allow_large), plan.ledger, origins=True, fits=same)
    target = BundleTarget(out, level, plan.size_bytes)
    outcome = move(
        StoreSource(store, check),
        target,
        Plan(plan.cache_dir, "", plan.steps),
        now_ns=plan.now_ns,
        progress=progress,
    )
    manifest = target.finish(plan)
    packed = pack_manifest(encode_manifest(manifest))
    out.seek(0)
    return ExportResult(
        manifest, hashlib.sha256(packed).hexdigest(), packed, out, target.packed_bytes, outcome
    )
