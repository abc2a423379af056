"""Carry out a plan: read each item whole, check it, and only then write it."""

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from typing import Any

from jaxcache.cache.files import remove_leftovers, staging
from jaxcache.cache.ledger.record import PAYLOAD, Event, digest_facts
from jaxcache.cache.ledger.segments import Ledger
from jaxcache.cache.ledger.write import append
from jaxcache.cache.move.plan import (
    WRITES,
    MoveAction,
    MoveSource,
    MoveTarget,
    Outcome,
    Parcel,
    Plan,
    StaysError,
    Step,
)
from jaxcache.cache.move.stores import (
    StagedTarget,
    StoreTarget,
    arrivals,
    carry_segments,
    receive_records,
)
from jaxcache.cache.prune.execute import remove
from jaxcache.cache.trust import make_signer
from jaxcache.entry.codec import CodecError
from jaxcache.entry.messages import prepare
from jaxcache.errors import JaxcacheError
from jaxcache.model import CUT_SHORT, GRACE_NS, FileInfo, report_progress
from jaxcache.store.base import ChangedError, ExistsError, MissingError, Store, StoreError
from jaxcache.store.concurrency import REQUESTS_AT_ONCE, map_ordered

_UNTRIED = "not tried after a file that could not be written"
UNFINISHED = "still being written; run it again in a minute"
_BATCH_BYTES = 4 << 20
_Taken = list[tuple[Step, Any]]


def move(
    source: MoveSource, target: MoveTarget, plan: Plan, *, now_ns: int, jobs: int | None = None
) -> Outcome:
    """Carry out a plan, and return how each step ended.

    A file that a directory refuses ends the move: most likely it has no space for the next one
    either. A bucket refuses objects one by one.

    Args:
        jobs: threads that read, check and write; by default what suits source and target.

    Raises:
        NoCacheError: source or target cannot be reached. Entries written until then are whole and
            recorded, also after an interrupt.
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
                    report_progress(done, total)
    except BaseException:
        with suppress(JaxcacheError):
            target.settle(ends.written())
        raise
    target.settle(ends.written())
    end_untried = partial(replace, action=MoveAction.UNTRIED, detail=_UNTRIED)
    last = {step.name: ends.steps.get(step.name) or end_untried(step) for step in writes}
    return Outcome(plan, tuple(last.get(s.name, s) for s in plan.steps))


def carry_out(
    source: MoveSource,
    target: Store | None,
    plan: Plan,
    *,
    now_ns: int = 0,
    atomic: bool = False,
    jobs: int | None = None,
    signers: Sequence[Any] = (),
    dry_run: bool = False,
) -> Outcome:
    """Carry out a plan, and add what is recorded of the entries to the target.

    Room is made first. Signatures and ledger come last: they speak of entries that are there.

    Args:
        target: None for a dry run into a directory that does not exist.
        atomic: all entries, or none.
        jobs: files under way at once; 1 writes each after those before it.
        signers: private keys that vouch for what the target has of the selection.
        dry_run: read and check what would be written. Of a bucket whose names alone were compared,
            nothing is read.

    Raises:
        NoCacheError: a store cannot be reached any more; what was written until then is whole, and
            another run does the rest.
        LockedError: see :func:`jaxcache.cache.prune.execute.remove`.
    """
    moving = partial(move, source, plan=plan, now_ns=now_ns, jobs=jobs)
    if dry_run or target is None:
        is_unread = source.remote and plan.by_name
        done = Outcome(plan, plan.steps) if is_unread else moving(target=MoveTarget())
        return replace(done, dry_run=True, segments=len(plan.segments))
    remove_leftovers(target)
    removed = remove(target, plan.removals) if plan.removals else None
    sign = make_signer(target, source, plan, signers, now_ns=now_ns)

    def settle(written: Mapping[str, Step], files: Mapping[str, FileInfo]) -> None:
        if not plan.by_name:
            _record(target, written, files)
        sign(written)

    files: Mapping[str, FileInfo] = {}
    if atomic:
        done = _move_all(moving, target, plan)
        if done.rolled_back:
            return done
        settle({step.name: step for step in done.written}, files)
    else:
        receiver = StoreTarget(target, plan, settle)
        if jobs == 1 and not plan.by_name:
            receiver.batch = 1
        done = moving(target=receiver)
        files = receiver.files
        if not plan.by_name:  # nobody has compared what another process wrote meanwhile
            done = _end_as(done, done.of(MoveAction.OVERTAKEN), action=MoveAction.FAILED)
    segments = 0
    if plan.segments and source.store:
        segments = carry_segments(source.store, target, plan.segments, done.written)
    if plan.runs:
        receive_records(target, source.run_records())
    carried = {step.key for step in done.written if step.key is not None}
    if plan.by_name and plan.records and carried and not target.remote:
        append(target, arrivals(carried, Ledger.load(target)))  # an object has its date
    written_bytes = sum(file.size_bytes for file in files.values())
    return replace(done, written_bytes=written_bytes, segments=segments, removed=removed)


def _move_all(moving: Callable[..., Outcome], target: Store, plan: Plan) -> Outcome:
    """Move all of a plan, or nothing."""
    failed: StoreError | None
    unwritten = False
    try:
        with staging(target) as stage:
            staged = StagedTarget(target, plan, stage)
            try:
                done = moving(target=staged)
                unwritten = any(map(is_unwritten, done))  # what cannot be read is left out
                failed = None if unwritten else staged.commit()
            finally:
                staged.remove()
    except StoreError as error:
        failed = error
        done = Outcome(plan, plan.steps)
    if failed is not None:
        steps = [s for s in done.written if s.name == failed.name] or done.written[:1]
        done = _end_as(done, steps, action=MoveAction.FAILED, detail=failed.reason)
    if not (done.failed and (failed is not None or unwritten)):
        return done
    done = replace(done, rolled_back=True)
    unkept = done.of(*WRITES, MoveAction.OVERTAKEN)
    return _end_as(done, unkept, action=MoveAction.UNTRIED)


def _end_as(done: Outcome, ends: Iterable[Step], **changes: Any) -> Outcome:
    """Return an outcome in which some of its steps ended differently."""
    names = {step.name for step in ends}
    steps = (replace(step, **changes) if step.name in names else step for step in done.steps)
    return replace(done, steps=tuple(steps))


def _record(store: Store, written: Mapping[str, Step], files: Mapping[str, FileInfo]) -> None:
    """Append to the ledger the digests of entries that were written, and the events with them."""
    ledger = Ledger.load(store)
    events = list(events_of(written.values(), files, ledger))
    append(store, [*events, *arrivals({event.key for event in events}, ledger, events)])


def events_of(
    written: Iterable[Step], files: Mapping[str, FileInfo], ledger: Ledger
) -> Iterator[Event]:
    """Yield the digests of entries, and their events where a ledger does not know the key.

    Args:
        files: the files that were written, by name.
    """
    now_ns = time.time_ns()
    for step in written:
        item = step.item
        # Compiled code of torch has no key: its path names it.
        key = item.key or (item.name if item.name.endswith((".so", ".cpp")) else None)
        if key is None or item.sha256 is None or item.is_unknown:
            continue
        facts = {"payload_sha256": item.sha256, "file_mtime_ns": item.created_ns}
        if step.name in files:
            facts = digest_facts(item.sha256, files[step.name])
        yield Event(key, PAYLOAD, item.created_ns, facts)
        if key not in ledger:
            yield from (e for event in item.events if (e := event.imported(now_ns)))


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
    """Group steps: small ones are written together, a large one alone."""
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
