"""A cache as the source or the target of a move.

A cache takes over the events of a source's ledger, marked as imported, without pins and digests.
"""

import contextlib
import io
import os
import stat
import tempfile
import time
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, BinaryIO

from jaxcache.cache.archive import Window, read_chunks
from jaxcache.cache.files import find, new_atime
from jaxcache.cache.ledger.record import ARRIVED, HIT, Event
from jaxcache.cache.ledger.segments import (
    MAX_SEGMENT_BYTES,
    Ledger,
    import_lines,
    is_own,
    is_segment,
    read_segments,
)
from jaxcache.cache.ledger.write import append, compact
from jaxcache.cache.move import plan as plans
from jaxcache.cache.scan import UnknownFormats
from jaxcache.cache.verify.check import BUFFERED_BYTES, ImportPolicy
from jaxcache.core import runs
from jaxcache.core.ledger import COMPACT_ABOVE, is_compacted, read_lines
from jaxcache.core.names import LEDGER_DIR
from jaxcache.core.runs import RUNS_DIR, is_record
from jaxcache.core.system import is_own_or_roots
from jaxcache.entry.codec import CodecError, add_checksum, seal_entry
from jaxcache.errors import JaxcacheError
from jaxcache.model import FileInfo
from jaxcache.store import base
from jaxcache.store.concurrency import map_ordered


def arrivals(keys: Iterable[str], ledger: Ledger, brought: Iterable[Event] = ()) -> Iterator[Event]:
    """Yield the arrival of each entry of which neither a ledger nor what came along has a hit.

    A hit from before the entry was removed does not count for the entry that arrived.
    """
    now_ns = time.time_ns()
    hit_keys = {event.key for event in brought if event.kind == HIT}
    for key in sorted({*keys} - hit_keys):
        record = ledger.record(key)
        if record is None or (record.last_hit_ns or 0) <= (record.removed_ns or 0):
            yield Event(key, ARRIVED, now_ns)


def missing_segments(source: Ledger, target: base.Store | None) -> tuple[FileInfo, ...]:
    """Segments of the source's ledger that the target neither has nor has compacted away."""
    ours = [file for file in source.files if is_segment(file.name)]
    if target is None or not ours:
        return tuple(ours)
    present_names = {i.name.rpartition("/")[2] for i in _segments(target)}
    if any(map(is_compacted, present_names)):
        present_names |= Ledger.load(target).originals
    return tuple(i for i in ours if i.name.rpartition("/")[2] not in present_names)


def _segments(store: base.Store) -> list[FileInfo]:
    return sorted(
        i
        for i in store.list(LEDGER_DIR)
        if i.type == "file" and i.size_bytes <= MAX_SEGMENT_BYTES and is_segment(i.name)
    )


def carry_segments(
    source: base.Store,
    target: base.Store,
    segments: Sequence[FileInfo],
    written: Sequence[plans.Step],
) -> int:
    """Copy the records of a ledger as imported ones; return the number of segments written.

    Segments that this user wrote go over as they are, without pins and digests. Of any other, only
    the records of entries that were carried go over, and of those nothing that the target records
    already. Nothing depends on a ledger, so what fails is left.

    Args:
        written: the entries and side files that were written, each with what the source's ledger
            records of it.
    """
    now_ns = time.time_ns()
    foreign: list[Event] = []
    own: list[tuple[FileInfo, bytes]] = []
    if source.remote:  # nothing there is known to be this user's
        events = (event.imported(now_ns) for step in written for event in step.item.events)
        foreign += filter(None, events)
        segments = ()
    carried = {step.key for step in written}
    for read in read_segments(source, segments):
        if isinstance(read, base.StoreError):
            continue
        if is_own(source, read.info):
            data = import_lines(read.data, now_ns)
            own += [(read.info, data)] if data else []
        elif carried:
            events = (event.imported(now_ns) for event in read_lines("", read.data).events)
            foreign += [event for event in events if event and event.key in carried]

    def carry(segment: tuple[FileInfo, bytes]) -> bool:
        info, data = segment
        try:
            target.write(info.name, [data], mtime_ns=info.mtime_ns, replace=False)
        except base.StoreError:
            return False
        return True

    count = sum(map_ordered(carry, own))
    ledger = Ledger.load(target) if foreign else Ledger()
    count += append(target, new) if (new := [e for e in foreign if e.key not in ledger]) else 0
    if count and len(_segments(target)) > COMPACT_ABOVE:
        compact(target)
    return count


@dataclass(frozen=True, slots=True)
class StoreParcel:
    """An entry or a side file as stored."""

    step: plans.Step
    info: FileInfo
    file: BinaryIO
    checked: plans.CheckedItem
    changes: bool = True
    """Whether another process may write to an open file."""

    @property
    def facts(self) -> plans.ItemFacts:
        """Its contents."""
        return self.checked.facts

    @property
    def mtime_ns(self) -> int:
        """The time of its file."""
        return self.info.mtime_ns

    def frame(self) -> Iterator[Any]:
        """Yield its own bytes; a checksum is added where the file has none."""
        self.file.seek(0)
        if not self.checked.sealed:
            yield from self._seal(self.file.read())
        elif isinstance(self.file, io.BytesIO):
            yield self.file.read()  # which copies nothing
        else:
            yield from read_chunks(self.file)
        self._check_unchanged()

    def _seal(self, frame: bytes) -> Sequence[bytes | memoryview]:
        content = self.checked.content
        if content is not None and content.payload_bytes <= BUFFERED_BYTES:
            return add_checksum(frame, content.compile_seconds.to_bytes(4, "big"), content.buffered)
        try:
            return (seal_entry(frame),)
        except CodecError as error:
            raise base.ChangedError(self.info.name) from error

    def payload(self) -> Iterator[Any]:
        """Yield its payload, or the bytes of a side file."""
        if self.checked.content is None:
            self.file.seek(0)
            return read_chunks(self.file)
        return self.checked.content.chunks(self.file)

    def _check_unchanged(self) -> None:
        """Raise ``ChangedError`` where JAX has written to an open file."""
        if self.changes and not isinstance(self.file, io.BytesIO):
            now = base.file_info(self.info.name, os.fstat(self.file.fileno()))
            if not base.same_file(now, self.info):
                raise base.ChangedError(self.info.name)

    def close(self) -> None:
        """Close the file."""
        self.file.close()


class StoreSource:
    """A cache directory or a bucket that entries come from, each read at any time."""

    budget_bytes = 256 << 20

    def __init__(self, store: base.Store, check: plans.Check) -> None:
        self.store = store
        self._check = check
        self._formats = UnknownFormats(store)
        self.remote = store.remote

    def run_records(self) -> Mapping[str, bytes]:
        """Return the records of programs' runs, by name."""
        return read_records(self.store)

    def take(self, step: plans.Step) -> None:
        """Nothing must be read in order."""

    def open(self, step: plans.Step, taken: None = None) -> StoreParcel:  # noqa: ARG002
        """Read a file and check it."""
        file, info = self._read(step.item)
        with contextlib.ExitStack() as opened, base.name_errors(info.name):
            opened.callback(file.close)
            own = is_own_or_roots(info.owner) and not info.mode & (stat.S_IWGRP | stat.S_IWOTH)
            if not own and not isinstance(file, io.BytesIO):
                self._check.check_size(step.item, info)
                file = opened.enter_context(_copy_privately(file, info))
            try:
                checked = self._check.read(step.item, file, info)
            except CodecError as error:
                if not self._formats.covers(error):
                    raise
                file.seek(0)
                checked = self._check.read(replace(step.item, key=None), file, info)
            opened.pop_all()
        return StoreParcel(step, info, file, checked, changes=own)

    def _read(self, item: plans.Item) -> tuple[BinaryIO, FileInfo]:
        if self.remote or item.size_bytes <= BUFFERED_BYTES:
            data, info = self.store.fetch(item.name, limit=plans.MAX_ENTRY_BYTES)
            return io.BytesIO(data), info
        file = self.store.open(item.name)
        return file, base.file_info(item.name, os.fstat(file.fileno()))


def _copy_privately(file: BinaryIO, info: FileInfo) -> BinaryIO:
    """Copy a large file that another user may change between its check and its writing.

    Raises:
        ChangedError: it has another size than when it was opened.
        OSError: the directory for temporary files has no room.
    """
    with contextlib.ExitStack() as opened, file:
        copy: BinaryIO = opened.enter_context(tempfile.TemporaryFile())
        window: Any = Window(file, 0, info.size_bytes + 1)
        copy.writelines(read_chunks(window))
        if copy.tell() != info.size_bytes:
            raise base.ChangedError(info.name)
        copy.seek(0)
        opened.pop_all()
    return copy


def make_source(store: base.Store, plan: plans.Plan) -> StoreSource:
    """Return the source of a plan, which checks each entry as the plan requires."""
    return StoreSource(store, plan.check or plans.Check(ImportPolicy(), Ledger.load(store)))


class StoreTarget(plans.MoveTarget):
    """A cache directory or a bucket that entries go into, each atomically and after its date.

    Args:
        then: called when it is over, with the steps that were written and their files, by name.
    """

    def __init__(
        self,
        store: base.Store,
        plan: plans.Plan,
        then: Callable[[Mapping[str, plans.Step], Mapping[str, FileInfo]], None] = lambda *_: None,
    ) -> None:
        self._store = store
        self._plan = plan
        self._then = then
        self.remote = store.remote
        self.files: dict[str, FileInfo] = {}
        """The files that were written, by name."""

    def put(self, parcels: Sequence[plans.Parcel]) -> Generator[base.StoreError | None, None, None]:
        """Write dates, and then the entries whose dates are there; nothing is replaced unseen."""
        undated = self._put_dates([parcel.step for parcel in parcels])
        dated = [parcel for parcel in parcels if parcel.step.name not in undated]
        files = [
            base.NewFile(p.step.name, p.frame(), p.mtime_ns, replace=False, expected=p.step.there)
            for p in dated
        ]
        written = iter(self._store.write_many(files))
        for parcel in parcels:
            name = parcel.step.name
            end = undated[name] if name in undated else next(written)
            if isinstance(end, base.StoreError):
                yield end
            else:
                self.files[name] = end
                yield None

    def settle(self, written: Mapping[str, plans.Step]) -> None:
        """Do what depends on all of them: one sync for all names, for each costs as much again."""
        self._store.sync_names(self.files)
        self._then(written, self.files)

    def _put_dates(self, steps: list[plans.Step]) -> dict[str, base.StoreError]:
        """Write ``-atime`` files; return the entries whose date could not be written."""
        dates = {s.name: d for s in steps if (d := new_date(self._plan, s))}
        ends = zip(dates, self._store.write_many(list(dates.values())), strict=True)
        return {
            name: end
            for name, end in ends
            if isinstance(end, base.StoreError) and not isinstance(end, base.ExistsError)
        }


def new_date(plan: plans.Plan, step: plans.Step) -> base.NewFile | None:
    """Return the ``-atime`` file that an entry gets; None where it gets none."""
    item = step.item
    if not plan.with_atimes or item.key is None:
        return None
    used_ns = item.created_ns if item.used_ns is None else item.used_ns
    new = new_atime(item.name, used_ns, mtime_ns=used_ns)
    return new and new._replace(replace=False)


def _remove_date(store: base.Store, date: str, entry: str) -> None:
    """Remove a date without an entry; an interrupt can follow right after its rename."""
    if find(store, entry) is None:
        base.or_error(partial(store.delete, date))


class StagedTarget(plans.MoveTarget):
    """A cache that gets all files of a plan or none of them.

    Args:
        stage: a prefix for the names of temporary files in the store.
    """

    def __init__(self, store: base.Store, plan: plans.Plan, stage: str) -> None:
        self._store = store
        self._plan = plan
        self._stage = stage
        self.remote = store.remote
        self._numbers = {step.name: number for number, step in enumerate(plan.steps)}
        self._steps: dict[str, plans.Step] = {}

    def put(self, parcels: list[plans.Parcel]) -> Iterator[base.StoreError | None]:
        """Write files under temporary names."""
        files = []
        for parcel in parcels:
            name = f"{self._stage}-{self._numbers[parcel.step.name]}"
            self._steps[name] = parcel.step
            files.append(base.NewFile(name, parcel.frame(), parcel.mtime_ns))
        done = self._store.write_many(files)
        return (end if isinstance(end, base.StoreError) else None for end in done)

    def commit(self) -> base.StoreError | None:
        """Move all files to their names; on a failure put back what was there, and return it.

        What is there is copied and then replaced in one step: moved away first, it would be
        missing for a moment, and for ever after a kill. Putting it back takes no room on the disk.
        """
        names = sorted(self._steps, key=lambda name: self._numbers[self._steps[name].name])
        with contextlib.ExitStack() as tidy, contextlib.ExitStack() as undo:
            try:
                for name in names:
                    self._commit_one(name, self._steps[name], tidy, undo)
            except base.StoreError as error:
                return error
            undo.pop_all()
        return None

    def _commit_one(
        self, name: str, step: plans.Step, tidy: contextlib.ExitStack, undo: contextlib.ExitStack
    ) -> None:
        store = self._store
        date = new_date(self._plan, step)
        if date is not None and find(store, date.name) is None:
            store.write(date.name, date.chunks, mtime_ns=date.mtime_ns, replace=False)
            undo.callback(_remove_date, store, date.name, step.name)
        if step.there is None:
            store.rename(name, step.name)
            undo.callback(base.or_error, partial(store.delete, step.name))
            return
        present = find(store, step.name)
        if present is None or not base.same_file(present, step.there):
            raise base.ChangedError(step.name)
        old = f"{name}-old"
        tidy.callback(base.or_error, partial(store.delete, old))
        with store.open(step.name) as file:
            store.write(old, read_chunks(file), mtime_ns=present.mtime_ns)
        undo.callback(base.or_error, partial(store.rename, old, step.name, replace=True))
        store.rename(name, step.name, replace=True)

    def remove(self) -> None:
        """Remove the temporary files."""
        for name in self._steps:
            base.or_error(partial(self._store.delete, name))


# The records of runs -----------------------------------------------------------------------------

#: Programs whose records travel, those that ran last; and the bytes of all of them.
_MAX_PROGRAMS = 64
_MAX_BYTES = 16 << 20


def read_records(
    store: base.Store, names: Collection[str] | None = None, keys: Collection[str] | None = None
) -> dict[str, bytes]:
    """Return the records of a cache by name, from a directory those of this user and of root.

    Args:
        names: of the records; None for all.
        keys: only the records in which one of these keys occurs.
    """
    try:
        files = [i for i in store.list(RUNS_DIR) if i.type == "file" and is_record(i.name)]
    except JaxcacheError:  # no directory
        return {}
    files = [i for i in files if store.remote or is_own(store, i)]
    files.sort(key=lambda i: -i.mtime_ns)
    records: dict[str, bytes] = {}
    left_bytes = _MAX_BYTES
    wanted = [i.name for i in files if names is None or _base(i.name) in names][:_MAX_PROGRAMS]
    for name, data in zip(
        wanted, store.read_many(wanted, limit=runs.MAX_RECORD_BYTES + 1), strict=True
    ):
        if isinstance(data, base.StoreError) or len(data) > left_bytes:
            continue
        if keys is None or _names_any(data, keys):
            records[_base(name)] = data
            left_bytes -= len(data)
    return records


def portable_records(store: base.Store, keys: Collection[str]) -> dict[str, bytes]:
    """Return the records in which one of these keys occurs, as they may leave the cache."""
    records = read_records(store, keys=keys)
    taken = {name: runs.take_over(data) for name, data in records.items()}
    return {name: data for name, data in taken.items() if data}


def receive_records(store: base.Store, brought: Mapping[str, bytes]) -> int:
    """Add the runs of another cache's records to those of a cache; return how many changed."""
    records = [*brought.items()][:_MAX_PROGRAMS]
    own = read_records(store, [name for name, _ in records]) if records else {}
    changed = 0
    for name, data in records:
        if is_record(name) and (merged := runs.take_over(data, own.get(name, b""))):
            with contextlib.suppress(JaxcacheError):
                store.write(f"{RUNS_DIR}/{name}", [merged])
                changed += 1
    return changed


def _base(name: str) -> str:
    return name.rpartition("/")[2]


def _names_any(data: bytes, keys: Collection[str]) -> bool:
    record = runs.decode(data)
    return record is not None and any(row.key in keys for run in record.runs for row in run.rows)
