"""The last ``stats`` of a cache, which holds as long as the directory is exactly as it was.

Whether it is costs one ``stat`` per file and nothing else: an order-free sum over name, inode,
size, times, mode and owner of every file. Where it differs, the snapshot is dropped and everything
is counted anew. What depends on the present time, the age classes, is kept as columns and summed
again.
"""

from __future__ import annotations

import contextlib
import json
import os
import zlib
from array import array
from bisect import bisect_left
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxcache.cache.listing import Summary
from jaxcache.cache.sidefile import read_checked, side_path, write_checked
from jaxcache.cache.stats import AGE_CLASSES, Stats
from jaxcache.cache.untrusted_json import build
from jaxcache.model import Entry, FileInfo
from jaxcache.store.base import Store
from jaxcache.units import NS_PER_SECOND

if TYPE_CHECKING:
    from jaxcache.layouts.base import Layout

_MAGIC = b"jaxcache-stats 7\n"
_MASK = (1 << 64) - 1
_SETTLED_NS = 2_000_000_000
#: An -atime file can say more than a column holds: it is eight bytes of anything.
_MAX_NS = (1 << 63) - 1
#: Below this counting anew takes no time to speak of.
_WORTH_KEEPING = 2_000


class RememberedStats:
    """The remembered ``stats`` of one cache; :meth:`recall` it, else :meth:`remember` the new."""

    def __init__(self, folder: Path, url: str, layout: Layout, *, now_ns: int) -> None:
        self._layout = layout
        self._path = side_path(folder, url, ".stats")
        self._index = side_path(folder, url, ".idx")
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
                digest = _digest_all(store, root, self._layout.folders)
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


def _digest_all(store: Store, root: str, folders: Collection[str] | None) -> int:
    """The same over a directory, without making an object per file.

    Args:
        folders: those that are walked; None for all.
    """
    digest = 0
    crc32 = zlib.crc32
    walked = None if folders is None else {os.fsencode(name) for name in folders}
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
