"""A cache that is read; and ``ls`` as data: select, sort, sum up, group."""

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from jaxcache.cache.files import count_bytes
from jaxcache.cache.scan import ScanAids
from jaxcache.entry.summary import Entry, ScanResult
from jaxcache.errors import UsageError
from jaxcache.model import Depth, Problem, result_repr
from jaxcache.options import ListOptions
from jaxcache.store.base import Store
from jaxcache.units import format_compiling, format_count, format_duration, format_size

if TYPE_CHECKING:
    from jaxcache.layouts import Layout

#: Unread entries beyond a limit that are opened all the same, for the sums: 0.1 s of work.
_READ_AT_ONCE = 2_000


class ReadCache(NamedTuple):
    """A cache that an operation reads, and how its entries are read."""

    store: Store
    layout: "Layout"
    now_ns: int
    index_directory: str | None = None
    """The directory of indexes; None: without one."""
    workers: int = 1
    """Processes to read with in a large directory."""

    def aids(self, depth: Depth) -> ScanAids:
        """Return the aids of a scan, with the index of this cache where it spares reading."""
        index = None
        if self.index_directory is not None and (depth >= Depth.OPENED or self.store.remote):
            index = self.layout.load_index(self.index_directory, self.store.url, now_ns=self.now_ns)
        return ScanAids(index, self.workers)

    def scan(self, depth: Depth) -> ScanResult:
        """Scan the whole cache, with the files in its directories, and keep the index.

        Raises:
            NoCacheError: the directory cannot be listed.
        """
        aids = self.aids(depth)
        scan_result = self.layout.scans.scan(self.store, aids, depth, deep=True)
        aids.keep(scan_result.entries)
        return scan_result


class Summary(NamedTuple):
    """Sums over entries; ``payload_bytes`` and ``compile_seconds`` over those that record them."""

    entries: int
    size_bytes: int
    payload_bytes: int
    compile_seconds: float
    unread: int = 0
    """Entries whose compile seconds are not known, because they were not opened."""
    is_least: bool = False
    """Whether some took less than a second, of which plain JAX stores 0, and others more."""

    @property
    def compile_total(self) -> str:
        """The compile time, for people; headers of entries hold whole seconds, rounded down."""
        if self.unread:
            return "?"
        if self.entries and not self.compile_seconds:
            return "<1 s" if self.entries == 1 else "<1 s each"
        return format_duration(self.compile_seconds)

    @property
    def compiling(self) -> str:
        """The compile time, in a sentence; empty where entries were not opened for it."""
        compiling = format_compiling(self.compile_seconds, self.entries)
        return "" if self.unread else ("at least " if self.is_least else "") + compiling

    def __str__(self) -> str:
        """Return one line of sums: ``7 entries, 46.2 kB, 12 s of compiling``."""
        count = format_count(self.entries, "entry")
        size = format_size(self.size_bytes)
        return f"{count}, {size}" + (f", {self.compiling}" if self.compiling else "")


@dataclass(frozen=True, slots=True)
class Listing:
    """The result of ``ls``."""

    __repr__ = result_repr

    cache_dir: str
    entries: tuple[Entry, ...]
    summary: Summary
    """Over all entries that match, those beyond the limit too."""
    problems: tuple[Problem, ...]
    cache_size_bytes: int | None = None
    """Everything that a bound on the size counts; None where it was not looked at."""
    record_bytes: int = 0
    """The ledger and other records of jaxcache, which no bound counts."""
    cache_entries: int = 0
    """All entries of the cache, those that do not match too."""

    def __str__(self) -> str:
        return str(self.summary)


def summarize(entries: Iterable[Entry]) -> Summary:
    """Sum up entries in one pass."""
    count = with_seconds = unread = size_bytes = payload_bytes = rounded = 0
    seconds = 0.0
    for entry in entries:
        count += 1
        size_bytes += entry.size_bytes
        payload_bytes += entry.payload_bytes or 0
        if entry.compile_seconds is not None:
            with_seconds += 1
            seconds += entry.compile_seconds
            rounded += not entry.compile_seconds
        elif not entry.problems:
            unread += 1
    unread = unread if with_seconds else count
    is_least = bool(rounded and seconds)
    return Summary(count, size_bytes, payload_bytes, seconds, unread, is_least)


def list_cache(
    cache: ReadCache, options: ListOptions, *, depth: Depth, sums: bool = True
) -> Listing:
    """List a cache: the entries that fit every KEY and filter, sorted, at most ``limit``.

    Args:
        depth: how much must be read of the entries that are shown, without ``options.long``; of
            others, what a filter or the order needs. From what decoding shows on, a directory is
            measured, too.
        sums: whether the summary must include facts for which every entry must be opened; if not,
            a limit in a large cache opens only those that it shows.

    Raises:
        UsageError, NoCacheError
        JaxcacheError: a KEY fits nothing, or more than it may.
    """
    store = cache.store
    layout = cache.layout
    limit = options.limit
    if options.long:
        depth = Depth.DECODED
    elif depth >= Depth.OPENED and not layout.has_headers:
        depth = Depth.AT_HAND
    # Imported here because a plain listing, the most frequent, needs none of it.
    selection = None
    first = Depth.LISTED
    if options.keys or options.filters or options.sort != "key":
        from jaxcache.cache.selection import Selection

        selection = Selection.parse(options.keys, options.filters, options.sort)
        first = selection.scan_depth(has_headers=layout.has_headers)
    if limit is None and not (options.keys or options.filters):  # all of them are shown
        first = max(first, depth)
    aids = cache.aids(max(first, depth))
    is_measured = depth > Depth.OPENED and layout.keeps_index and not store.remote
    scan_result = layout.scans.scan(store, aids, first, deep=is_measured)
    if selection is None:
        chosen = sorted(scan_result.entries, key=lambda e: e.key)
    else:
        chosen = selection.pick_sorted(scan_result.entries, cache.now_ns)
    is_summed = limit is not None and (sums or store.remote or len(chosen) <= _READ_AT_ONCE)
    summed = min(depth, Depth.OPENED) if is_summed else Depth.LISTED
    for some, needed in ((chosen, summed), (chosen[:limit], depth)):
        if needed > first:
            scan_result = layout.scans.decode(store, scan_result, some, aids, needed)
            read = {entry.file: entry for entry in scan_result.entries}
            chosen = [read[entry.file] for entry in chosen if entry.file in read]
    problems = tuple(scan_result.problems)
    if options.keys or options.filters:
        files = {e.file for e in chosen}
        problems = tuple(p for p in problems if p.file in files)
    sizes = count_bytes(scan_result.inventory.files()) if is_measured else (None, 0)
    aids.keep(scan_result.entries)
    return Listing(
        cache_dir=store.url,
        entries=tuple(chosen[:limit]),
        summary=summarize(chosen),
        problems=problems,
        cache_size_bytes=sizes[0],
        record_bytes=sizes[1],
        cache_entries=len(scan_result.entries),
    )


class Group(NamedTuple):
    """Entries that share the value of one field."""

    name: str
    summary: Summary
    last_used_ns: int
    """The latest use of any of them."""


_GROUPS: dict[str, tuple[Callable[[Entry], str], Depth]] = {
    "module": (lambda e: e.module, Depth.LISTED),
    "platform": (lambda e: e.platform, Depth.DECODED),
    "target": (lambda e: e.target or "unknown", Depth.DECODED),
    "codec": (lambda e: e.codec, Depth.OPENED),
    "function": (lambda e: getattr(e, "function", None) or e.module, Depth.DECODED),
}


#: The fields by which groups have an order of their own.
_GROUP_SORTS: dict[str, Callable[[Group], float]] = {
    "size": lambda g: g.summary.size_bytes,
    "compile": lambda g: g.summary.compile_seconds,
    "used": lambda g: g.last_used_ns,
}


def group_depth(by: str) -> Depth:
    """Return how much must be read of entries to group them by a field.

    Raises:
        UsageError: ``bad-group``.
    """
    if by not in _GROUPS:
        raise UsageError(
            f"cannot group by {by!r}", code="bad-group", hint=f"one of {', '.join(_GROUPS)}"
        )
    return _GROUPS[by][1]


def group_entries(entries: Iterable[Entry], by: str, sort: str = "size") -> list[Group]:
    """Group entries by a field of :func:`group_depth`.

    Args:
        sort: as of entries; groups are sorted by their sums and their last use, and by any other
            field in the order of their first entries.
    """
    read, _ = _GROUPS[by]
    members: defaultdict[str, list[Entry]] = defaultdict(list)
    for entry in entries:
        members[read(entry)].append(entry)
    groups = [
        Group(name, summarize(some), max(e.last_used_ns for e in some))
        for name, some in members.items()
    ]
    field, _, order = sort.partition(":")
    if value := _GROUP_SORTS.get(field):
        groups.sort(key=lambda g: g.name)
        groups.sort(key=value, reverse=order != "asc")
    return groups
