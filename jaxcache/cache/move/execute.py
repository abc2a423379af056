"""Carry out a plan: read each item whole, check it, and only then write it.

Every source reads its entries through the one :class:`Check`, whatever the target.
"""

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, BinaryIO, NamedTuple

from jaxcache.cache.admission import CheckedContent, ImportPolicy, read_content
from jaxcache.cache.archive import hash_chunks, read_chunks
from jaxcache.cache.bundle.compat import make_origin
from jaxcache.cache.inventory import EntryFile
from jaxcache.cache.ledger.segments import Ledger
from jaxcache.cache.move.plan import (
    WRITES,
    Item,
    ItemFacts,
    MoveAction,
    MoveSource,
    MoveTarget,
    Outcome,
    Parcel,
    Plan,
    StaysError,
    Step,
)
from jaxcache.cache.scan import Progress
from jaxcache.cache.verify.check import recorded_digest
from jaxcache.entry.codec import HEAD_BYTES, CodecError, read_entry_header
from jaxcache.entry.decode import decode_origin
from jaxcache.entry.names import FileKind
from jaxcache.entry.schema import prepare
from jaxcache.errors import JaxcacheError
from jaxcache.model import CUT_SHORT, GRACE_NS, FileInfo
from jaxcache.store.base import ChangedError, ExistsError, MissingError, StoreError
from jaxcache.store.concurrency import REQUESTS_AT_ONCE, ByteBudget, map_ordered

#: A serialized executable is a protobuf message of less than 2 GiB, and zstd adds little.
MAX_ENTRY_BYTES = (2 << 30) + (16 << 20)
#: What all payloads hold in memory while they are decoded.
_DECODING_BYTES = 256 << 20


class CheckedItem(NamedTuple):
    """An entry that passed, or a file that is not one."""

    facts: ItemFacts
    content: CheckedContent | None = None
    sealed: bool = True
    """Whether its file detects corruption by itself."""


@dataclass(frozen=True, slots=True, eq=False)
class Check:
    """Checks size, header, frame, ratio, structure, module, digest and signature, in this order."""

    policy: ImportPolicy
    """The policy of the target."""
    ledger: Ledger | None = None
    """Records which payload each entry had."""
    origins: bool = False
    """Whether to find out which compiler made an entry, and for which device."""
    fits: Callable[[Item, ItemFacts], str | None] | None = None
    """Returns why a sound entry is not wanted, or None."""
    _decoding: ByteBudget = field(default_factory=lambda: ByteBudget(_DECODING_BYTES))

    def read(self, item: Item, file: BinaryIO, info: FileInfo) -> CheckedItem:
        """Check the file of an item from end to end.

        Raises:
            CodecError: it is damaged, or another one than the ledger records.
            StaysError, StoreError
        """
        if item.key is None:
            facts = ItemFacts(hash_chunks(read_chunks(file)), info.size_bytes)
            self._check_signed(item.name, facts)
            return CheckedItem(facts)
        if info.size_bytes > MAX_ENTRY_BYTES and not self.policy.allow_large:
            reason = f"holds more than {MAX_ENTRY_BYTES} bytes"
            raise StoreError(item.name, reason, code="too-large")
        header = read_entry_header(file.read(HEAD_BYTES), info.size_bytes)
        with self._decoding.take(header.content_bytes or 8 * info.size_bytes):
            content = read_content(
                file, info.size_bytes, item.name, allow_large=self.policy.allow_large
            )
        if not header.checksum:  # a right checksum outweighs a record
            self._compare(item, info, content.payload_sha256)
        facts = self._facts(content)
        self._check_signed(item.name, facts)
        unwanted = self.fits(item, facts) if self.fits else None
        if unwanted:
            raise StaysError(MoveAction.LEFT, unwanted, facts)
        return CheckedItem(facts, content, header.checksum)

    def _compare(self, item: Item, info: FileInfo, digest: str) -> None:
        """Compare a digest with the ledger.

        Raises:
            CodecError: ``digest-mismatch``.
        """
        record = self.ledger.record(item.key or "") if self.ledger else None
        recorded = recorded_digest(EntryFile(info, item.key or "", FileKind.ENTRY), record)
        if recorded not in (None, digest):
            raise CodecError("digest-mismatch", "its payload is not the one in the ledger")

    def _check_signed(self, name: str, facts: ItemFacts) -> None:
        """Check that a trusted key vouches for contents, where one must.

        Raises:
            StaysError
        """
        if not self.policy.is_signed(name, facts.sha256):
            raise StaysError(MoveAction.UNTRUSTED, "no trusted key has signed it", facts)

    def _facts(self, content: CheckedContent) -> ItemFacts:
        origin = None
        if self.origins:
            origin = make_origin(content.decoded or decode_origin(content.buffered))
        return ItemFacts(
            content.payload_sha256,
            content.payload_bytes,
            content.codec,
            content.compile_seconds,
            origin,
        )


_UNTRIED = "not tried after a file that could not be written"
UNFINISHED = "still being written; run it again in a minute"
_BATCH_BYTES = 4 << 20
_Taken = list[tuple[Step, Any]]


def move(
    source: MoveSource,
    target: MoveTarget,
    plan: Plan,
    *,
    now_ns: int,
    jobs: int | None = None,
    progress: Progress | None = None,
) -> Outcome:
    """Carry out a plan, and say how each step ended.

    A file that a directory does not take ends the move: most likely it has no room for the next
    one either. A bucket refuses objects one by one.

    Args:
        jobs: threads that read, check and write; by default what suits source and target.

    Raises:
        NoCacheError: a place is out of reach. What was written until then is whole and settled,
            and so it is after an interrupt.
    """
    writes = plan.writes
    ends = _Ends()
    remote = source.remote or target.remote

    def check(batch: _Taken) -> list[Parcel | Step]:
        return [open_step(source, step, taken, now_ns) for step, taken in batch]

    def carry(batch: _Taken) -> list[Parcel | Step]:
        checked = check(batch)
        _put(target, checked, ends)
        return checked

    def take() -> Iterator[_Taken]:
        for batch in _in_batches(writes, 1 if remote else target.batch):
            if not target.remote and ends.unwritten:
                return
            yield [(step, source.take(step)) for step in batch]

    def cost(batch: _Taken) -> int:
        return sum(2 * step.item.content_bytes for step, _ in batch)

    if source.remote:
        threading.Thread(target=prepare, daemon=True).start()
    done = 0
    sizes = [step.item.size_bytes if target.is_stream else 1 for step in writes]
    total = sum(sizes)
    remaining = iter(sizes)
    moving = map_ordered(
        check if target.is_stream else carry,
        take(),
        workers=jobs or (REQUESTS_AT_ONCE if remote else target.workers),
        cost=cost,
        budget=source.budget_bytes,
        wait=True,
    )
    try:
        with closing(moving):
            for checked in moving:
                if target.is_stream:
                    _put(target, checked, ends)
                for _, size in zip(checked, remaining, strict=False):
                    done += size
                    if progress:
                        progress(done, total)
    except BaseException:
        with suppress(JaxcacheError):
            target.settle(ends.written())
        raise
    target.settle(ends.written())
    end_untried = partial(replace, action=MoveAction.UNTRIED, detail=_UNTRIED)
    last = {step.name: ends.steps.get(step.name) or end_untried(step) for step in writes}
    return Outcome(plan, tuple(last.get(s.name, s) for s in plan.steps))


def is_unwritten(step: Step) -> bool:
    """Return whether a file was read, and could not be written."""
    return step.action is MoveAction.FAILED and step.item.facts is not None


class _Ends:
    """How steps ended, by name; noted where it happens, so that an interrupt loses none."""

    def __init__(self) -> None:
        self.steps: dict[str, Step] = {}
        self.unwritten = False
        """Whether a file was read, and could not be written."""

    def note(self, step: Step) -> None:
        self.steps[step.name] = step
        if is_unwritten(step):
            self.unwritten = True

    def written(self) -> dict[str, Step]:
        return {name: step for name, step in list(self.steps.items()) if step.action in WRITES}


def _in_batches(steps: Iterable[Step], most: int) -> Iterator[list[Step]]:
    """Group steps: small ones share one sync, a large one goes alone."""
    batch: list[Step] = []
    size = 0
    for step in steps:
        if batch and (len(batch) == most or size + step.item.content_bytes > _BATCH_BYTES):
            yield batch
            batch = []
            size = 0
        batch.append(step)
        size += step.item.content_bytes
    if batch:
        yield batch


def open_step(source: MoveSource, step: Step, taken: Any, now_ns: int) -> Parcel | Step:
    """Return the checked parcel of a step, or how the step ended without one."""
    try:
        return source.open(step, taken)
    except CodecError as error:
        young = abs(now_ns - step.item.created_ns) < GRACE_NS and not source.remote
        if error.kind in CUT_SHORT and young:
            return replace(step, action=MoveAction.UNFINISHED, detail=UNFINISHED, kind=error.kind)
        return replace(step, action=MoveAction.DAMAGED, detail=error.detail, kind=error.kind)
    except StaysError as error:
        item = replace(step.item, facts=error.facts)
        return replace(step, item=item, action=error.action, detail=error.reason)
    except ChangedError:
        return replace(step, action=MoveAction.UNFINISHED, detail=UNFINISHED, kind="truncated")
    except StoreError as error:
        action = MoveAction.GONE if isinstance(error, MissingError) else MoveAction.FAILED
        return replace(step, action=action, detail=error.reason)


def _put(target: MoveTarget, checked: list[Parcel | Step], ends: _Ends) -> None:
    """Write the parcels of a batch, and note how each step ended."""
    parcels: list[Parcel] = []
    for one in checked:
        if isinstance(one, Step):
            ends.note(one)
        else:
            parcels.append(one)
    try:
        for parcel, error in zip(parcels, target.put(parcels), strict=True):
            ends.note(_end(parcel, error))
    finally:
        for parcel in parcels:
            parcel.close()


def _end(parcel: Parcel, error: StoreError | None) -> Step:
    step = replace(parcel.step, item=replace(parcel.step.item, facts=parcel.facts))
    if error is None:
        return step
    overtaken = isinstance(error, ExistsError | ChangedError | MissingError)
    action = MoveAction.OVERTAKEN if overtaken else MoveAction.FAILED
    return replace(step, action=action, detail=error.reason)
