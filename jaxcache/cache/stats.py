"""``stats``: everything in a cache directory, counted."""

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from jaxcache.cache.files import UNCOUNTED_KINDS
from jaxcache.cache.ledger.segments import Ledger, Uses, count_uses
from jaxcache.cache.listing import Group, ReadCache, Summary, group_entries, summarize
from jaxcache.entry.summary import Entry
from jaxcache.model import Depth, FileInfo, result_repr
from jaxcache.units import NS_PER_SECOND, format_size

_DAY_SECONDS = 86_400
#: Upper ends of the age classes, in seconds since last use.
AGE_CLASSES: tuple[tuple[str, float], ...] = (
    ("1h", 3600),
    ("1d", _DAY_SECONDS),
    ("7d", 7 * _DAY_SECONDS),
    ("30d", 30 * _DAY_SECONDS),
    ("90d", 90 * _DAY_SECONDS),
    ("older", float("inf")),
)


@dataclass(frozen=True, slots=True)
class FileCount:
    """The number and bytes of the files of one kind."""

    kind: str
    """The kind of the files, as the layout names it."""
    files: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Stats:
    """The contents of a cache directory, counted."""

    __repr__ = result_repr

    cache_dir: str
    total: Summary
    """Over entries, legacy ones too."""
    files: tuple[FileCount, ...]
    """Every file below the directory, by kind."""
    by_platform: tuple[Group, ...]
    by_module: tuple[Group, ...]
    by_codec: tuple[Group, ...]
    by_age: tuple[tuple[str, Summary], ...]
    """By time since last use; each class holds what does not fit the one before it."""
    sealed: int
    orphan_atimes: int
    problems: tuple[tuple[str, int], ...]
    """The number of problems of each kind."""
    uses: Uses
    """Recorded hits and misses."""
    never_used: Summary
    """Over entries that a move brought and of which nothing recorded a use since."""

    def __str__(self) -> str:
        return f"{self.uses}; {self.total}; cache size {format_size(self.size_bytes)}"

    @property
    def directory_bytes(self) -> int:
        """The bytes of every file, entries or not."""
        return sum(f.size_bytes for f in self.files)

    @property
    def size_bytes(self) -> int:
        """The size that a limit counts: every file but those that ``prune`` never removes."""
        return sum(f.size_bytes for f in self.files if f.kind not in UNCOUNTED_KINDS)


def count_cache(cache: ReadCache, *, read: bool = True) -> Stats:
    """Count everything in a cache directory.

    Platforms come from the index, or from decoding if the remaining entries are few enough to be
    decoded at once; the others count as unknown.

    Args:
        cache: its index spares reading what has not changed.
        read: whether entries may be opened; if not, facts inside them come from the index alone.

    Raises:
        NoCacheError: the directory cannot be listed.
    """
    store = cache.store
    at_once = Depth.DECODED if store.remote else Depth.AT_HAND  # one request for head and payload
    scan_result = cache.scan(at_once if read else Depth.DATED)
    ledger: Ledger | None = getattr(scan_result, "ledger", None)
    if ledger is None:  # a bucket without one is asked nothing more
        ledger = Ledger() if store.remote else Ledger.load(store)
    entries = scan_result.entries
    kinds = Counter(problem.kind for problem in scan_result.problems)
    del kinds["unknown-directory"]  # which is a row of the files
    return Stats(
        cache_dir=store.url,
        total=summarize(entries),
        files=_count_files(scan_result.inventory.files()),
        by_platform=tuple(group_entries(entries, "platform")),
        by_module=tuple(group_entries(entries, "module")),
        by_codec=tuple(group_entries(entries, "codec")) if cache.layout.has_headers else (),
        by_age=group_by_age(entries, cache.now_ns),
        sealed=sum(entry.sealed for entry in entries),
        orphan_atimes=kinds["orphan-atime"],
        problems=tuple(sorted(kinds.items())),
        uses=count_uses(ledger),
        never_used=summarize(e for e in entries if e.last_used_from == "arrival"),
    )


def _count_files(files: Iterable[tuple[StrEnum, FileInfo]]) -> tuple[FileCount, ...]:
    sizes: defaultdict[StrEnum, list[int]] = defaultdict(list)
    for kind, info in files:
        sizes[kind].append(info.size_bytes if info.type == "file" else 0)
    order = list(type(next(iter(sizes)))) if sizes else []
    return tuple(FileCount(k, len(sizes[k]), sum(sizes[k])) for k in order if k in sizes)


def group_by_age(entries: Iterable[Entry], now_ns: int) -> tuple[tuple[str, Summary], ...]:
    """Sum up entries by :data:`AGE_CLASSES`."""
    classes: defaultdict[str, list[Entry]] = defaultdict(list)
    for entry in entries:
        unused_seconds = (now_ns - entry.last_used_ns) / NS_PER_SECOND
        name = next(name for name, end in AGE_CLASSES if unused_seconds < end)
        classes[name].append(entry)
    return tuple((name, summarize(classes[name])) for name, _ in AGE_CLASSES)
