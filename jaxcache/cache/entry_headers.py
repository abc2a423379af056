"""Open entries to read their headers, or all: the costly part of a scan, in several processes.

Reading 100,000 small files is bound by the interpreter and the zstd decoder where the page cache
holds them, and by the disk's latency where it does not. More processes than cores help both;
threads would take turns at the interpreter (four of them were 2.5 times slower than one).
"""

from collections.abc import Iterator, Sequence
from typing import BinaryIO, NamedTuple

from jaxcache.cache.entry_files import ATIME_BYTES
from jaxcache.cache.inventory import EntryFile
from jaxcache.entry.codec import HEAD_BYTES, CodecError, EntryHeader, read_entry_header
from jaxcache.entry.summary import EntrySummary, read_summary
from jaxcache.model import ProblemKind
from jaxcache.store.base import MissingError, Store, StoreError

#: Fewer entries than this are read before another process has started.
PARALLEL_ABOVE = 8_000
#: Fewer are decoded before other processes have started.
_DECODED_ABOVE = 3_000
#: The largest first block a zstd frame can have, with room for its headers.
_FIRST_BLOCK_BYTES = 128 * 1024 + 64


class HeaderRequest(NamedTuple):
    """An entry whose header is wanted."""

    name: str
    size_bytes: int
    atime_name: str | None
    """Its ``-atime`` file, if it has one."""
    open_entry: bool
    """Whether to read the entry itself, or only its ``-atime``."""


class HeaderFacts(NamedTuple):
    """The facts that opening an entry gave."""

    header: EntryHeader | None
    problem: tuple[ProblemKind, str] | None
    stamp: bytes | None
    """The ``-atime`` file's bytes, nine at the most: eight are right."""
    gone: bool = False
    stamp_problem: str | None = None
    """The reason why the ``-atime`` file could not be read."""


def read_facts(
    store: Store, requests: Sequence[HeaderRequest], *, workers: int = 1
) -> Iterator[HeaderFacts]:
    """Yield the facts of each request, in order; ``workers`` as for :func:`spread`."""
    if not any(r.open_entry for r in requests):  # dates are read before a process has started
        yield from _read(store, requests)
        return
    from jaxcache.store.concurrency import map_ordered, spread

    if store.remote:  # one that takes a second read must not keep the others waiting
        yield from map_ordered(lambda request: next(_read(store, [request])), requests)
    else:
        yield from spread(_read, store, requests, workers=workers, above=PARALLEL_ABOVE)


def _read(store: Store, requests: Sequence[HeaderRequest]) -> Iterator[HeaderFacts]:
    stamps = store.read_many(
        [r.atime_name for r in requests if r.atime_name], limit=ATIME_BYTES + 1
    )
    starts = store.read_many([r.name for r in requests if r.open_entry], limit=HEAD_BYTES)
    for request in requests:
        start = next(starts) if request.open_entry else None
        stamp = next(stamps) if request.atime_name else None
        known_stamp = stamp if isinstance(stamp, bytes) else None
        lost = isinstance(stamp, StoreError) and not isinstance(stamp, MissingError)
        reason = stamp.reason if lost and isinstance(stamp, StoreError) else None
        if start is None:
            yield HeaderFacts(None, None, known_stamp, stamp_problem=reason)
        elif isinstance(start, MissingError):
            yield HeaderFacts(None, None, None, gone=True)
        else:
            header, problem = _header(store, request, start)
            yield HeaderFacts(header, problem, known_stamp, stamp_problem=reason)


def _facts_of_file(file: BinaryIO, size_bytes: int) -> HeaderFacts:
    try:
        return HeaderFacts(read_entry_header(file.read(_FIRST_BLOCK_BYTES), size_bytes), None, None)
    except CodecError as error:
        return HeaderFacts(None, (error.kind, error.detail), None)


def _header(
    store: Store, request: HeaderRequest, start: bytes | StoreError
) -> tuple[EntryHeader | None, tuple[ProblemKind, str] | None]:
    if isinstance(start, StoreError):
        return None, ("unreadable", start.reason)
    try:
        header = read_entry_header(start, request.size_bytes)
        if header.compile_seconds is None:
            whole_block = store.read(request.name, limit=_FIRST_BLOCK_BYTES)
            header = read_entry_header(whole_block, request.size_bytes)
    except CodecError as error:
        return None, (error.kind, error.detail)
    except StoreError as error:
        return None, ("unreadable", error.reason)
    return header, None


def read_summaries(
    store: Store, files: Sequence[EntryFile], *, workers: int = 1
) -> Iterator[EntrySummary]:
    """Yield the summary of each file, in order; ``workers`` as for :func:`spread`."""
    from jaxcache.store.concurrency import spread

    wanted = [(f.info.name, f.info.size_bytes, f.key.module) for f in files]
    yield from spread(_decode, store, wanted, workers=workers, above=_DECODED_ABOVE)


def read_facts_and_summaries(
    store: Store, files: Sequence[EntryFile]
) -> Iterator[tuple[HeaderFacts, EntrySummary]]:
    """Yield both of each file, in order, opening it once: for stores where that is what costs."""
    opened = store.open_many([file.info.name for file in files])
    for file, opened_file in zip(files, opened, strict=True):
        if isinstance(opened_file, MissingError):
            yield HeaderFacts(None, None, None, gone=True), EntrySummary()
        elif isinstance(opened_file, StoreError):
            problem: tuple[ProblemKind, str] = ("unreadable", opened_file.reason)
            yield HeaderFacts(None, problem, None), EntrySummary(problem=problem)
        else:
            with opened_file:
                facts = _facts_of_file(opened_file, file.info.size_bytes)
                yield (
                    facts,
                    read_summary(opened_file, file.info.size_bytes, file.key.module or None),
                )


_Wanted = tuple[str, int, str]


def _decode(store: Store, wanted: Sequence[_Wanted]) -> Iterator[EntrySummary]:
    files = store.open_many([name for name, _, _ in wanted])
    for (_, size_bytes, module), opened in zip(wanted, files, strict=True):
        if isinstance(opened, StoreError):
            yield EntrySummary(problem=("unreadable", opened.reason))
            continue
        with opened as file:
            yield read_summary(file, size_bytes, module or None)
