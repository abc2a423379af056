"""``stats``: everything in a cache directory, counted."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from jaxcache.cache.groups import Group, group_entries
from jaxcache.cache.listing import Summary, summarize
from jaxcache.cache.scan import Progress, decode_entries, scan
from jaxcache.model import Entry, FileInfo, Problem
from jaxcache.store.base import Store
from jaxcache.units import NS_PER_SECOND

if TYPE_CHECKING:
    from jaxcache.cache.index import Index
    from jaxcache.cache.snapshot import Snapshot

#: Undecoded entries that ``stats`` decodes by the way: 0.3 s of work.
_DECODED_AT_ONCE = 1_000
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

    kind: StrEnum
    """Of the layout: what a file is."""
    files: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Stats:
    """The contents of a cache directory, counted."""

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

    @property
    def directory_bytes(self) -> int:
        """The bytes of every file, entries or not."""
        return sum(f.size_bytes for f in self.files)


def count_cache(
    store: Store,
    *,
    now_ns: int,
    read: bool = True,
    index: "Index | None" = None,
    snapshot: "Snapshot | None" = None,
    workers: int = 1,
    progress: Progress | None = None,
) -> Stats:
    """Count everything in a cache directory.

    Platforms are told where the index knows them, or where few enough entries are left that
    decoding them takes no time to speak of; the others count as unknown.

    Args:
        read: whether entries may be opened; if not, what only they tell is what the index knows.
        index: see :func:`jaxcache.cache.scan.scan`.
        snapshot: takes the result, for a second look at an unchanged cache.

    Raises:
        NoCacheError: the directory cannot be listed.
    """
    seen = scan(store, heads=read, deep=True, index=index, workers=workers, progress=progress)
    unknown = [entry for entry in seen.entries if entry.platform == "unknown"]
    if read and len(unknown) <= _DECODED_AT_ONCE:
        seen = decode_entries(store, seen, unknown, index=index)
    if index is not None:
        index.save(file.info.name for file in seen.inventory.entries)
    stats = sum_up(
        store.url, seen.entries, seen.inventory.files(), seen.problems, now_ns, codecs=True
    )
    if snapshot is not None:
        snapshot.remember(stats, seen.entries, seen.inventory)
    return stats


def sum_up(
    url: str,
    entries: Sequence[Entry],
    files: Iterable[tuple[StrEnum, FileInfo]],
    problems: Iterable[Problem],
    now_ns: int,
    *,
    codecs: bool,
) -> Stats:
    """Sum up what was seen in a cache of any layout.

    Args:
        files: every file with what it is.
        codecs: whether its entries are compressed.
    """
    kinds = Counter(problem.kind for problem in problems)
    return Stats(
        cache_dir=url,
        total=summarize(entries),
        files=_count_files(files),
        by_platform=tuple(group_entries(entries, "platform")),
        by_module=tuple(group_entries(entries, "module")),
        by_codec=tuple(group_entries(entries, "codec")) if codecs else (),
        by_age=group_by_age(entries, now_ns),
        sealed=sum(entry.sealed for entry in entries),
        orphan_atimes=kinds["orphan-atime"],
        problems=tuple(sorted(kinds.items())),
    )


def _count_files(found: Iterable[tuple[StrEnum, FileInfo]]) -> tuple[FileCount, ...]:
    sizes: defaultdict[StrEnum, list[int]] = defaultdict(list)
    for kind, info in found:
        sizes[kind].append(info.size_bytes)
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
