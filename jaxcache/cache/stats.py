"""``stats``: everything in a cache directory, counted.

The last result holds as long as the directory is exactly as it was. Whether it is costs one
``stat`` per file: an order-free sum over name, inode, size, times, mode and owner of every file.
Where it differs, everything is counted again. What depends on the present time, the age classes, is
kept as columns and summed again.
"""

import contextlib
import json
import os
import zlib
from array import array
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxcache.cache.index import read_checked, side_path, write_checked
from jaxcache.cache.inventory import UNCOUNTED_KINDS, require_objects
from jaxcache.cache.ledger.segments import Ledger
from jaxcache.cache.ledger.uses import Uses, count_uses
from jaxcache.cache.listing import Group, Summary, group_entries, summarize
from jaxcache.cache.untrusted_json import Many, build
from jaxcache.model import Entry, FileInfo, result_repr
from jaxcache.store.base import Store
from jaxcache.units import NS_PER_SECOND, format_size

if TYPE_CHECKING:
    from jaxcache.layouts import Layout, ReadCache

_MAGIC = b"jaxcache-stats 7\n"
_MASK = (1 << 64) - 1
_SETTLED_NS = 2_000_000_000
#: An -atime file can contain a larger number than a column holds: it is any eight bytes.
_MAX_NS = (1 << 63) - 1
#: Fewer entries are counted again each time, which is fast enough.
_WORTH_KEEPING = 2_000

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
    by_module: Many[Group]
    by_codec: tuple[Group, ...]
    by_age: tuple[tuple[str, Summary], ...]
    """By time since last use; each class holds what does not fit the one before it."""
    sealed: int
    orphan_atimes: int
    problems: tuple[tuple[str, int], ...]
    """The number of problems of each kind."""
    uses: Uses
    """Recorded hits and misses."""

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


def count_cache(cache: "ReadCache", *, read: bool = True) -> Stats:
    """Count everything in a cache directory.

    Platforms come from the index, or from decoding if the remaining entries are few enough to be
    decoded at once; the others count as unknown.

    Args:
        cache: its index and the remembered result spare reading what has not changed; without
            them everything is counted.
        read: whether entries may be opened; if not, facts inside them come from the index alone.

    Raises:
        NoCacheError: the directory cannot be listed.
    """
    store = cache.store
    layout = cache.layout
    now_ns = cache.now_ns
    snapshot = None
    if cache.index_directory is not None and not store.remote:
        # The digest of a listing spares no request.
        snapshot = RememberedStats(cache.index_directory, store.url, layout, now_ns=now_ns)
        if (stats := snapshot.recall(store)) is not None:
            return stats
    aids = cache.aids()
    at_once = read and store.remote  # one request for head and payload
    scan_result = layout.scans.scan(store, aids, headers=read, details=at_once, deep=True)
    require_objects(store, scan_result.entries)
    if read and not at_once:
        scan_result = layout.scans.decode(
            store, scan_result, scan_result.entries, aids, hurried=True
        )
    aids.keep(scan_result.entries)
    ledger: Ledger | None = getattr(scan_result, "ledger", None)
    if ledger is None:  # a bucket without one is asked nothing more
        ledger = Ledger() if store.remote else Ledger.load(store)
    entries = scan_result.entries
    kinds = Counter(problem.kind for problem in scan_result.problems)
    del kinds["unknown-directory"]  # which is a row of the files
    stats = Stats(
        cache_dir=store.url,
        total=summarize(entries),
        files=_count_files(scan_result.inventory.files()),
        by_platform=tuple(group_entries(entries, "platform")),
        by_module=tuple(group_entries(entries, "module")),
        by_codec=tuple(group_entries(entries, "codec")) if layout.has_headers else (),
        by_age=group_by_age(entries, now_ns),
        sealed=sum(entry.sealed for entry in entries),
        orphan_atimes=kinds["orphan-atime"],
        problems=tuple(sorted(kinds.items())),
        uses=count_uses(ledger),
    )
    if snapshot is not None:
        snapshot.remember(stats, entries, [info for _, info in scan_result.inventory.files()])
    return stats


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


class RememberedStats:
    """The remembered ``stats`` of one cache; :meth:`recall` it, else :meth:`remember` the new."""

    def __init__(self, directory: Path, url: str, layout: "Layout", *, now_ns: int) -> None:
        self._layout = layout
        self._path = side_path(directory, url, ".stats")
        self._index = side_path(directory, url, ".idx")
        self._now_ns = now_ns

    def recall(self, store: Store) -> Stats | None:
        """The statistics of before, if every file is as it was then; None if not."""
        root = getattr(store, "path", None)
        if root is None:
            return None
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError, RecursionError):
            body = read_checked(self._path, _MAGIC)
            size = int.from_bytes(body[:8], "big")
            header = json.loads(bytes(body[8 : 8 + size]))
            if header["index"] == _identity(self._index):
                digest = _digest_all(store, root, self._layout.directories)
                if header["digest"] == digest & _MASK and header["layout"] == self._layout.name:
                    ages = _sum_by_age(body[8 + size :], self._now_ns)
                    return replace(build(Stats, header["stats"]), by_age=ages)
        return None

    def remember(self, stats: Stats, entries: Sequence[Entry], infos: Sequence[FileInfo]) -> None:
        """Keep statistics for the next time, unless some file is too young to be sure of.

        Args:
            infos: every file of the cache.
        """
        newest = max((info.mtime_ns for info in infos), default=0)
        if len(entries) < _WORTH_KEEPING or newest > self._now_ns - _SETTLED_NS:
            return
        header = {
            "layout": self._layout.name,
            "digest": _digest(infos) & _MASK,
            "index": _identity(self._index),
            "stats": {f.name: getattr(stats, f.name) for f in fields(stats)},
        }
        text = json.dumps(header, default=asdict).encode()
        ordered = sorted(entries, key=lambda e: e.last_used_ns)
        columns = (
            array("q", [min(e.last_used_ns, _MAX_NS) for e in ordered]),
            array("q", [e.size_bytes for e in ordered]),
            array("q", [e.payload_bytes or 0 for e in ordered]),
            array("d", [e.compile_seconds or 0.0 for e in ordered]),
        )
        parts = (len(text).to_bytes(8, "big"), text, *(c.tobytes() for c in columns))
        write_checked(self._path, _MAGIC, parts)


def _identity(path: Path) -> list[int] | None:
    """Identify the index that gave the platforms: another one may know more."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return [status.st_ino, status.st_size, status.st_mtime_ns]


def _digest(infos: Iterable[FileInfo]) -> int:
    return sum(
        hash(
            (
                zlib.crc32(os.fsencode(i.name)),
                *(i.inode, i.size_bytes, i.mtime_ns, i.atime_ns, i.mode, i.owner),
            )
        )
        for i in infos
    )


def _digest_all(store: Store, root: str, directories: Collection[str] | None) -> int:
    """The same over a directory, without making an object per file.

    Args:
        directories: those that are walked; None for all.
    """
    digest = 0
    crc32 = zlib.crc32
    walked = None if directories is None else {os.fsencode(name) for name in directories}
    with os.scandir(os.fsencode(root)) as names:
        for item in names:
            name = item.name
            if (walked is None or name in walked) and item.is_dir(follow_symlinks=False):
                digest += _digest(store.walk(os.fsdecode(name)))
                continue
            with contextlib.suppress(FileNotFoundError):
                s = item.stat(follow_symlinks=False)
                times = s.st_mtime_ns, s.st_atime_ns
                digest += hash((crc32(name), s.st_ino, s.st_size, *times, s.st_mode, s.st_uid))
    return digest


def _sum_by_age(body: memoryview, now_ns: int) -> tuple[tuple[str, Summary], ...]:
    """Sum the columns of a snapshot by age class."""
    columns: list[array[Any]] = [array(kind) for kind in "qqqd"]
    used, *sums = columns
    width = len(body) // 4
    for number, column in enumerate(columns):
        column.frombytes(body[number * width : (number + 1) * width])
    ages = []
    end = len(used)
    for name, limit in AGE_CLASSES:
        age = lambda ns, limit=limit: (now_ns - ns) / NS_PER_SECOND < limit  # noqa: E731
        start = bisect_left(used, True, hi=end, key=age)
        ages.append((name, Summary(end - start, *(sum(column[start:end]) for column in sums))))
        end = start
    return tuple(ages)
