"""Read the cheap facts of every entry: sizes, codec, compile seconds, last use.

Reading 100,000 small files is bound by the interpreter and the zstd decoder where the page cache
holds them, and by the disk's latency where it does not. More processes than cores help both;
threads would take turns at the interpreter (four of them were 2.5 times slower than one).

A newer JAX may put something before the compressed frame, or use another codec. Then a known codec
begins a little later in the file (:mod:`jaxcache.entry.codec` finds it), or several entries share a
start that no known codec has. What is in an unknown format stays, and travels as it is.
"""

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from jaxcache.cache.files import ATIME_BYTES, EntryFile, Inventory, require_objects, take_inventory
from jaxcache.core import eviction
from jaxcache.core.names import ATIME_SUFFIX, HEADER_BYTES, ZSTD_MAGIC
from jaxcache.entry import codec
from jaxcache.entry.names import FileKind, key_of
from jaxcache.entry.summary import Entry, EntrySummary, read_summary
from jaxcache.model import Depth, FileInfo, Problem, ProblemKind, report_progress
from jaxcache.store.base import MissingError, Store, StoreError

if TYPE_CHECKING:
    from jaxcache.cache.ledger.record import LedgerRecord
    from jaxcache.cache.ledger.segments import Ledger

#: Fewer entries than this are read before another process has started.
PARALLEL_ABOVE = 8_000
#: Fewer are decoded before other processes have started.
_DECODED_ABOVE = 3_000
#: The largest first block a zstd frame can have, with room for its headers.
_FIRST_BLOCK_BYTES = 128 * 1024 + 64


class HeaderRequest(NamedTuple):
    """An entry to be read."""

    name: str
    size_bytes: int
    atime_name: str | None = None
    """Its ``-atime`` file, if it has one."""
    module: str = ""
    """The module's name in the name of the file."""


class HeaderFacts(NamedTuple):
    """The facts that opening an entry gave."""

    header: codec.EntryHeader | None = None
    problem: tuple[ProblemKind, str] | None = None
    stamp: bytes | None = None
    """The ``-atime`` file's bytes, nine at the most: eight are right."""
    gone: bool = False
    stamp_problem: str | None = None
    """The reason why the ``-atime`` file could not be read."""
    summary: EntrySummary | None = None
    """None where the entry was not decoded."""


def read_facts(
    store: Store,
    requests: Sequence[HeaderRequest],
    depth: Depth = Depth.OPENED,
    *,
    workers: int = 1,
) -> Iterator[HeaderFacts]:
    """Yield the facts of each request, in order; ``workers`` as for :func:`spread`."""
    if depth < Depth.OPENED:  # dates are read before a process has started
        yield from _read_dates(store, requests)
        return
    from jaxcache.store.concurrency import map_ordered, spread

    if depth is Depth.DECODED:
        yield from spread(_decode, store, requests, workers=workers, above=_DECODED_ABOVE)
    elif store.remote:  # one that takes a second read must not keep the others waiting
        yield from map_ordered(lambda request: next(_open(store, [request])), requests)
    else:
        yield from spread(_open, store, requests, workers=workers, above=PARALLEL_ABOVE)


def _read_dates(store: Store, requests: Sequence[HeaderRequest]) -> Iterator[HeaderFacts]:
    names = [r.atime_name for r in requests if r.atime_name]
    stamps = store.read_many(names, limit=ATIME_BYTES + 1)
    for request in requests:
        stamp = next(stamps) if request.atime_name else None
        if isinstance(stamp, StoreError):
            lost = not isinstance(stamp, MissingError)
            yield HeaderFacts(stamp_problem=stamp.reason if lost else None)
        else:
            yield HeaderFacts(stamp=stamp)


def _open(store: Store, requests: Sequence[HeaderRequest]) -> Iterator[HeaderFacts]:
    """Read the first bytes of each entry, and its date."""
    starts = store.read_many([r.name for r in requests], limit=codec.HEAD_BYTES)
    for request, start, facts in zip(requests, starts, _read_dates(store, requests), strict=True):
        try:
            if isinstance(start, StoreError):
                raise start
            header = codec.read_entry_header(start, request.size_bytes)
            if header.compile_seconds is None:
                whole_block = store.read(request.name, limit=_FIRST_BLOCK_BYTES)
                header = codec.read_entry_header(whole_block, request.size_bytes)
            facts = facts._replace(header=header)
        except (StoreError, codec.CodecError) as error:
            facts = _failed(facts, error)
        yield facts


def _decode(store: Store, requests: Sequence[HeaderRequest]) -> Iterator[HeaderFacts]:
    """Read the same and the summary, opening each entry once: in a bucket that is a request."""
    files = store.open_many([r.name for r in requests])
    for request, opened, facts in zip(requests, files, _read_dates(store, requests), strict=True):
        if isinstance(opened, StoreError):
            yield _failed(facts, opened)
            continue
        with opened as file:
            try:
                start = file.read(_FIRST_BLOCK_BYTES)
                facts = facts._replace(header=codec.read_entry_header(start, request.size_bytes))
            except codec.CodecError as error:
                facts = _failed(facts, error)
            summary = read_summary(file, request.size_bytes, request.module or None)
        yield facts._replace(summary=summary)


def _failed(facts: HeaderFacts, error: StoreError | codec.CodecError) -> HeaderFacts:
    if isinstance(error, MissingError):
        return HeaderFacts(gone=True)
    if isinstance(error, StoreError):
        return facts._replace(problem=("unreadable", error.reason))
    return facts._replace(problem=(error.kind, error.detail))


START_BYTES = 4
#: Starts to compare with, of the newest entries: in a bucket each is a request.
_MOST_READ = 1_000


class UnknownFormats:
    """The starts that several entries of a store share, read when the first is doubtful."""

    def __init__(self, store: Store) -> None:
        self.store = store

    @cached_property
    def _shared(self) -> frozenset[bytes]:
        files = (i for i in self.store.list() if i.type == "file" and key_of(i.name))
        newest = sorted(files, key=lambda info: -info.mtime_ns)[:_MOST_READ]
        starts = self.store.read_many([info.name for info in newest], limit=START_BYTES)
        counts = Counter(start for start in starts if isinstance(start, bytes))
        return frozenset(s for s, count in counts.items() if count > 1 and _may_be_magic(s))

    def covers(self, error: codec.CodecError) -> bool:
        """Return whether an entry with this error may be in an unknown format."""
        return error.kind == "unknown-format" or error.start in self._shared

    def rename(self, problems: Iterable[Problem]) -> tuple[Problem, ...]:
        """Return findings in which ``bad-codec`` is ``unknown-format`` where that may be so."""
        return tuple(self._rename(p) if p.kind == "bad-codec" else p for p in problems)

    def _rename(self, problem: Problem) -> Problem:
        (start,) = self.store.read_many([problem.file], limit=START_BYTES)
        return problem._replace(kind="unknown-format") if start in self._shared else problem


def _may_be_magic(start: bytes) -> bool:
    """Return whether a start may be that of a format, and not a disk's zeros or a flipped byte."""
    differing = sum(byte != known for byte, known in zip(start, ZSTD_MAGIC, strict=False))
    return len({*start}) > 1 < differing and codec.detect_codec(start) == "unknown"


_PROGRESS_EVERY = 512
#: Undecoded entries that a command decodes by the way: 0.3 s of work.
_DECODED_AT_ONCE = 1_000


class ScanAids(NamedTuple):
    """The aids of a scan, of which none changes what it finds in a cache that is there."""

    index: Any = None
    """The facts that earlier scans read, so that fewer files are opened; new ones are added."""
    workers: int = 1
    """Processes to read with in a large directory."""
    unfilled: bool = False
    """Whether a prefix of a bucket that nobody has filled yet counts as an empty cache."""

    def keep(self, entries: Iterable[Entry]) -> None:
        """Save the index, with what was read of these entries and without any other."""
        if self.index is not None:
            self.index.save(entry.file for entry in entries)


#: No index, one process.
NO_AIDS = ScanAids()


class Scan(NamedTuple):
    """A cache as it was seen: its entries, everything else in it, and what is wrong."""

    entries: tuple[Entry, ...]
    inventory: Inventory
    problems: tuple[Problem, ...]
    ledger: "Ledger | None" = None
    """The ledger, already part of the entries; None if the cache has none."""
    records_reads: bool = True
    """Whether a read of an entry would show in its access time."""


def scan(
    store: Store, aids: ScanAids = NO_AIDS, depth: Depth = Depth.OPENED, *, deep: bool = False
) -> Scan:
    """Scan a cache directory.

    A bad entry is an entry with problems; a file that vanishes while the scan runs is left out.

    Args:
        depth: how much is read. Codec, payload size, seal and seconds are in the start of an entry;
            platform, target, signature and source take decoding; without ``-atime`` files, the last
            use comes from the file system.
        deep: also take inventory of side caches (see :func:`take_inventory`).

    Raises:
        NoCacheError: the directory cannot be listed, or nobody has filled the prefix of a bucket.
    """
    inventory = take_inventory(store, deep=deep)
    if not aids.unfilled:
        require_objects(store, inventory.entries)
    rule = make_rule(store, inventory)
    first = Depth.OPENED if depth is Depth.AT_HAND else depth
    entries, problems = read_entries(
        store, inventory.entries, inventory.atimes, aids, first, rule=rule
    )
    ledger = load_ledger(store, inventory)
    scan_result = Scan(
        entries=with_ledger(entries, ledger, rule),
        inventory=inventory,
        problems=(*inventory.problems(), *problems),
        ledger=ledger,
        records_reads=store.keeps_atime and not rule.reads,
    )
    return decode(store, scan_result, entries, aids, depth) if depth > first else scan_result


def make_rule(store: Store, inventory: Inventory) -> eviction.LastUses:
    """Return the rule of the last use for the entries of an inventory.

    Args:
        inventory: of the whole directory; a part of it does not show what reads every file.
    """
    now_ns = time.time_ns()
    if store.remote:
        return eviction.LastUses(now_ns)
    infos = [file.info for file in inventory.entries]
    reads = eviction.find_reads((i.mtime_ns, i.atime_ns) for i in infos)
    writes = eviction.find_writes(i.mtime_ns for i in infos)
    return eviction.LastUses(now_ns, reads, writes)


def decode(
    store: Store,
    scan_result: Scan,
    wanted: Iterable[Entry],
    aids: ScanAids = NO_AIDS,
    depth: Depth = Depth.DECODED,
) -> Scan:
    """Read more of some entries of a scan; the others stay as they are.

    Args:
        depth: how much of them to read.
    """
    is_decoded = depth > Depth.OPENED
    names = {e.file for e in wanted if (e.platform if is_decoded else e.codec) == "unknown"}
    if not names or (depth is Depth.AT_HAND and len(names) > _DECODED_AT_ONCE):
        return scan_result
    depth = Depth.DECODED if is_decoded else depth
    files = [file for file in scan_result.inventory.entries if file.info.name in names]
    rule = make_rule(store, scan_result.inventory)
    entries, problems = read_entries(
        store, files, scan_result.inventory.atimes, aids, depth, rule=rule
    )
    decoded = {entry.file: entry for entry in with_ledger(entries, scan_result.ledger, rule)}
    return scan_result._replace(
        entries=tuple(decoded.get(entry.file, entry) for entry in scan_result.entries),
        problems=(*(p for p in scan_result.problems if p.file not in decoded), *problems),
    )


def load_ledger(store: Store, inventory: Inventory) -> "Ledger | None":
    """Read the ledger where there can be one; a plain cache needs not even the import."""
    if FileKind.OWN not in inventory.directories:
        return None
    from jaxcache.cache.ledger.segments import Ledger

    ours = [file.info for file in inventory.others if file.kind is FileKind.LEDGER]
    return Ledger.load(store, listed=ours if store.remote else ())


def with_ledger(
    entries: Iterable[Entry], ledger: "Ledger | None", rule: eviction.LastUses
) -> tuple[Entry, ...]:
    """Add exact compile seconds, the last use and the tuning that a ledger has of entries."""
    if not ledger:
        return tuple(entries)
    return tuple(
        entry if (record := ledger.record(entry.key)) is None else with_record(entry, record, rule)
        for entry in entries
    )


def with_record(entry: Entry, record: "LedgerRecord", rule: eviction.LastUses) -> Entry:
    """Add what the ledger has of one entry."""
    from dataclasses import replace

    seconds = record.compile_seconds
    use = rule.with_record(
        eviction.LastUse(entry.last_used_ns, entry.last_used_from),
        hit_ns=record.last_hit_ns,
        arrived_ns=record.arrived_ns,
        compiled_ns=record.compiled_ns,
    )
    return replace(
        entry,
        compile_seconds=entry.compile_seconds if seconds is None else seconds,
        tuning=record.tuning_of(entry.created_ns, entry.size_bytes),
        jaxlib=record.jaxlib_version,
        last_used_ns=use.at_ns,
        last_used_from=use.source,
    )


def read_entries(
    store: Store,
    files: Sequence[EntryFile],
    atimes: dict[str, FileInfo],
    aids: ScanAids = NO_AIDS,
    depth: Depth = Depth.OPENED,
    *,
    rule: eviction.LastUses | None = None,
) -> tuple[list[Entry], list[Problem]]:
    """Read some files of an inventory as entries; see :func:`scan` for the arguments.

    Args:
        rule: of :func:`make_rule`; without it, each entry is dated by its own files alone.

    Returns:
        Entries in the order of ``files``, without those that have vanished, and what is wrong.
    """
    now_ns = time.time_ns()
    rule = rule or eviction.LastUses(now_ns)
    index = aids.index
    known: Sequence[HeaderFacts | None] = [None] * len(files)
    if index is not None:
        known = [*index.recall((f.info, _atime_of(f, atimes)) for f in files)]
    if depth is Depth.DECODED:
        known = [facts if facts and facts.summary else None for facts in known]
    # For objects, a request for each date would only repeat the listing: see _entry.
    stamps = {} if store.remote or depth < Depth.DATED else atimes
    unread = ((f, _atime_of(f, stamps)) for f, facts in zip(files, known, strict=True) if not facts)
    requests = [
        HeaderRequest(f.info.name, f.info.size_bytes, stamp and stamp.name, f.key.module)
        for f, stamp in unread
    ]
    facts_of = read_facts(store, requests, depth, workers=aids.workers)
    formats = UnknownFormats(store)
    entries: list[Entry] = []
    problems: list[Problem] = []
    for done, (file, recalled) in enumerate(zip(files, known, strict=True)):
        if done % _PROGRESS_EVERY == 0:
            report_progress(done, len(files))
        facts = recalled or next(facts_of)
        if facts.gone:
            continue
        if index is not None and recalled is None and depth >= Depth.OPENED:
            index.learn(file.info, _atime_of(file, atimes), facts)
        own_problems = formats.rename(_problems(file, facts, now_ns))
        problems.extend(own_problems)
        stamp_ns = _stamp_ns(facts.stamp)
        if store.remote and (stamp := _atime_of(file, atimes)):
            stamp_ns = stamp.mtime_ns  # JAX puts it at every use
        entries.append(_entry(file, facts, rule, stamp_ns, own_problems))
    report_progress(len(files), len(files))
    return entries, problems


def _atime_of(file: EntryFile, atimes: dict[str, FileInfo]) -> FileInfo | None:
    return atimes.get(file.key_text) if file.kind is FileKind.ENTRY else None


def _problems(file: EntryFile, facts: HeaderFacts, now_ns: int) -> Iterator[Problem]:
    summary = facts.summary
    if facts.problem:
        yield Problem(file.info.name, *facts.problem, file.key_text)
    elif summary and summary.problem:  # a damaged header damages the rest as well
        yield Problem(file.info.name, *summary.problem, file.key_text)
    if file.kind is FileKind.LEGACY_ENTRY:
        detail = "no -cache suffix: only JAX up to 0.4.30 reads it"
        yield Problem(file.info.name, "legacy-name", detail, file.key_text)
    if facts.stamp_problem:
        yield Problem(f"{file.key_text}{ATIME_SUFFIX}", "unreadable", facts.stamp_problem)
    if facts.stamp is not None and len(facts.stamp) != ATIME_BYTES:
        detail = "its -atime file does not hold 8 bytes"
        yield Problem(file.info.name, "bad-atime", detail, file.key_text)
    elif (stamp_ns := _stamp_ns(facts.stamp)) is not None and not eviction.is_possible(
        stamp_ns, now_ns
    ):
        detail = "its -atime file has a date in the future"
        yield Problem(file.info.name, "bad-atime", detail, file.key_text)


def _entry(
    file: EntryFile,
    facts: HeaderFacts,
    rule: eviction.LastUses,
    stamp_ns: int | None,
    problems: tuple[Problem, ...],
) -> Entry:
    info = file.info
    key = file.key
    header = facts.header
    use = rule.of(eviction.FileDates(info.mtime_ns, info.atime_ns, stamp_ns, info.ctime_ns or None))
    content = header.content_bytes if header else None
    seconds = header.compile_seconds if header else None
    return Entry(
        key=file.key_text,
        module=key.module,
        hash=key.hash,
        file=info.name,
        size_bytes=info.size_bytes,
        payload_bytes=None if content is None else content - HEADER_BYTES,
        codec=header.codec if header else "unknown",
        sealed=header.checksum if header else False,
        compile_seconds=None if seconds is None else float(seconds),
        created_ns=info.mtime_ns,
        last_used_ns=use.at_ns,
        last_used_from=use.source,
        problems=tuple(p.kind for p in problems) if problems else (),
        **(facts.summary.facts() if facts.summary else {}),
    )


def _stamp_ns(stamp: bytes | None) -> int | None:
    """Return the date in an ``-atime`` file; None if it has none."""
    whole = stamp is not None and len(stamp) == ATIME_BYTES
    return int.from_bytes(stamp, "little") if stamp and whole else None
