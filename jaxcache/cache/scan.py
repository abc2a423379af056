"""Read the cheap facts of every entry: sizes, codec, compile seconds, last use."""

import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import tee
from typing import TYPE_CHECKING, Any, NamedTuple

from jaxcache.cache.entry_files import ATIME_BYTES
from jaxcache.cache.entry_headers import (
    HeaderFacts,
    HeaderRequest,
    read_facts,
    read_facts_and_summaries,
    read_summaries,
)
from jaxcache.cache.inventory import EntryFile, Inventory, take_inventory
from jaxcache.cache.unknown_format import UnknownFormats
from jaxcache.core.names import ATIME_SUFFIX, HEADER_BYTES
from jaxcache.core.use import FileDates, LastUse, LastUses, find_reads, find_writes, is_possible
from jaxcache.entry.names import FileKind
from jaxcache.entry.summary import EntrySummary
from jaxcache.model import Depth, Entry, FileInfo, Problem, Progress
from jaxcache.store.base import Store

if TYPE_CHECKING:  # a plain listing uses neither
    from jaxcache.cache.index import Index, KnownEntry
    from jaxcache.cache.ledger.record import LedgerRecord
    from jaxcache.cache.ledger.segments import Ledger

_PROGRESS_EVERY = 512
#: Undecoded entries that a command decodes by the way: 0.3 s of work.
_DECODED_AT_ONCE = 1_000


class ScanAids(NamedTuple):
    """The aids of a scan, of which none changes what it finds."""

    index: Any = None
    """The facts that earlier scans read, so that fewer files are opened; new ones are added."""
    workers: int = 1
    """Processes to read with in a large directory."""
    progress: Progress | None = None

    def keep(self, entries: Iterable[Entry]) -> None:
        """Save the index, with what was read of these entries and without any other."""
        if self.index is not None:
            self.index.save(entry.file for entry in entries)


#: No index, one process, no progress.
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
    store: Store,
    aids: ScanAids = NO_AIDS,
    depth: Depth = Depth.OPENED,
    *,
    deep: bool = False,
) -> Scan:
    """Scan a cache directory.

    A bad entry is an entry with problems; a file that vanishes while the scan runs is left out.

    Args:
        depth: how much is read. Codec, payload size, seal and seconds are in the start of an entry;
            platform, target, signature and source take decoding; without ``-atime`` files, the last
            use comes from the file system.
        deep: also take inventory of side caches (see :func:`take_inventory`).

    Raises:
        NoCacheError: the directory cannot be listed.
    """
    inventory = take_inventory(store, deep=deep)
    rule = make_rule(store, inventory)
    entries, problems = read_entries(
        store, inventory.entries, inventory.atimes, aids, depth, rule=rule
    )
    problems.extend(inventory.problems())
    ledger = load_ledger(store, inventory)
    return Scan(
        entries=with_ledger(entries, ledger, rule),
        inventory=inventory,
        problems=tuple(problems),
        ledger=ledger,
        records_reads=store.keeps_atime and not rule.reads,
    )


def make_rule(store: Store, inventory: Inventory) -> LastUses:
    """Return the rule of the last use for the entries of an inventory.

    Args:
        inventory: of the whole directory; a part of it does not show what reads every file.
    """
    now_ns = time.time_ns()
    if store.remote:
        return LastUses(now_ns)
    infos = [file.info for file in inventory.entries]
    reads = find_reads((i.mtime_ns, i.atime_ns) for i in infos)
    writes = find_writes(i.mtime_ns for i in infos)
    return LastUses(now_ns, reads, writes)


def decode(
    store: Store,
    scan_result: Scan,
    wanted: Iterable[Entry],
    aids: ScanAids = NO_AIDS,
    *,
    hurried: bool = False,
    depth: Depth = Depth.DECODED,
) -> Scan:
    """Read more of some entries of a scan; the others stay as they are.

    Args:
        hurried: decode none of them if that takes time to speak of.
        depth: how much of them to read.
    """
    names = {
        e.file for e in wanted if (e.platform if depth is Depth.DECODED else e.codec) == "unknown"
    }
    if not names or (hurried and len(names) > _DECODED_AT_ONCE):
        return scan_result
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
    entries: Iterable[Entry], ledger: "Ledger | None", rule: LastUses
) -> tuple[Entry, ...]:
    """Add exact compile seconds, the last use and the tuning that a ledger has of entries."""
    if not ledger:
        return tuple(entries)
    return tuple(
        entry if (record := ledger.record(entry.key)) is None else with_record(entry, record, rule)
        for entry in entries
    )


def with_record(entry: Entry, record: "LedgerRecord", rule: LastUses) -> Entry:
    """Add what the ledger has of one entry."""
    from dataclasses import replace

    seconds = record.compile_seconds
    use = rule.with_record(
        LastUse(entry.last_used_ns, entry.last_used_from),
        hit_ns=record.last_use_ns,
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
    rule: LastUses | None = None,
) -> tuple[list[Entry], list[Problem]]:
    """Read some files of an inventory as entries; see :func:`scan` for the arguments.

    Args:
        rule: of :func:`make_rule`; without it, each entry is dated by its own files alone.

    Returns:
        Entries in the order of ``files``, without those that have vanished, and what is wrong.
    """
    now_ns = time.time_ns()
    rule = rule or LastUses(now_ns)
    headers = depth >= Depth.OPENED
    details = depth is Depth.DECODED
    index: Index | None = aids.index
    recalled: Sequence[KnownEntry | None] = [None] * len(files)
    if index is not None:
        recalled = list(index.recall((f.info, _atime_of(f, atimes)) for f in files))
    unread = [
        f for f, recalled_facts in zip(files, recalled, strict=True) if recalled_facts is None
    ]
    # For objects, a request for each date would only repeat the listing: see _entry.
    stamps = {} if store.remote or depth < Depth.DATED else atimes
    dated = ((f.info, _atime_of(f, stamps)) for f in unread)
    requests = [
        HeaderRequest(i.name, i.size_bytes, stamp and stamp.name, headers) for i, stamp in dated
    ]
    facts_of: Iterator[HeaderFacts]
    summaries_of: Iterator[EntrySummary] = iter(())
    if details:
        facts_of, summaries_of = _read_and_decode(store, files, recalled, requests, aids.workers)
    else:
        facts_of = read_facts(store, requests, workers=aids.workers)
    formats = UnknownFormats(store)
    entries: list[Entry] = []
    problems: list[Problem] = []
    for done, (file, recalled_facts) in enumerate(zip(files, recalled, strict=True)):
        if aids.progress and done % _PROGRESS_EVERY == 0:
            aids.progress(done, len(files))
        facts = next(facts_of) if recalled_facts is None else recalled_facts.facts
        summary = recalled_facts.summary if recalled_facts else None
        learnt = recalled_facts is None
        if details and summary is None:
            summary = next(summaries_of)
            learnt = True
        if facts.gone:
            continue
        if learnt and headers and index is not None:
            index.learn(file.info, _atime_of(file, atimes), facts, summary)
        own_problems = formats.rename(_problems(file, facts, summary, now_ns))
        problems.extend(own_problems)
        stamp_ns = _stamp_ns(facts.stamp)
        if store.remote and (stamp := _atime_of(file, atimes)):
            stamp_ns = stamp.mtime_ns  # JAX puts it at every use
        entries.append(_entry(file, facts, summary, rule, stamp_ns, own_problems))
    if aids.progress:
        aids.progress(len(files), len(files))
    return entries, problems


def _read_and_decode(
    store: Store,
    files: Sequence[EntryFile],
    recalled: "Sequence[KnownEntry | None]",
    requests: Sequence[HeaderRequest],
    workers: int,
) -> "tuple[Iterator[HeaderFacts], Iterator[EntrySummary]]":
    """The facts of the files that the index lacks, and the summaries that it lacks."""
    undecoded = [
        (f, recalled_facts)
        for f, recalled_facts in zip(files, recalled, strict=True)
        if recalled_facts is None or recalled_facts.summary is None
    ]
    wanted = [f for f, _ in undecoded]
    if not store.remote:
        summaries = read_summaries(store, wanted, workers=workers)
        return read_facts(store, requests, workers=workers), summaries
    # One request returns both.
    both, again = tee(zip(undecoded, read_facts_and_summaries(store, wanted), strict=True))
    facts = (
        entry_facts for (_, recalled_facts), (entry_facts, _) in both if recalled_facts is None
    )
    return facts, (summary for _, (_, summary) in again)


def _atime_of(file: EntryFile, atimes: dict[str, FileInfo]) -> FileInfo | None:
    return atimes.get(file.key_text) if file.kind is FileKind.ENTRY else None


def _problems(
    file: EntryFile, facts: HeaderFacts, summary: "EntrySummary | None", now_ns: int
) -> Iterator[Problem]:
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
    elif (stamp_ns := _stamp_ns(facts.stamp)) is not None and not is_possible(stamp_ns, now_ns):
        detail = "its -atime file has a date in the future"
        yield Problem(file.info.name, "bad-atime", detail, file.key_text)


def _entry(
    file: EntryFile,
    facts: HeaderFacts,
    summary: "EntrySummary | None",
    rule: LastUses,
    stamp_ns: int | None,
    problems: tuple[Problem, ...],
) -> Entry:
    info = file.info
    key = file.key
    header = facts.header
    use = rule.of(FileDates(info.mtime_ns, info.atime_ns, stamp_ns, info.ctime_ns or None))
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
        **(summary.facts() if summary else {}),
    )


def _stamp_ns(stamp: bytes | None) -> int | None:
    """Return the date in an ``-atime`` file; None if it has none."""
    whole = stamp is not None and len(stamp) == ATIME_BYTES
    return int.from_bytes(stamp, "little") if stamp and whole else None
