"""Carry out a plan: read each item whole, check it, and only then write it."""

import threading
from collections.abc import Iterable, Iterator
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from typing import Any

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
from jaxcache.entry.codec import CodecError
from jaxcache.entry.messages import prepare
from jaxcache.errors import JaxcacheError
from jaxcache.model import CUT_SHORT, GRACE_NS, Progress
from jaxcache.store.base import ChangedError, ExistsError, MissingError, StoreError
from jaxcache.store.concurrency import REQUESTS_AT_ONCE, map_ordered

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
