"""Facts that earlier looks read out of graphs, kept outside the cache to spare reading.

One file per cache directory, safe to delete. A row counts only while size, modification time and
inode of the graph's file are what they were.
"""

import contextlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from jaxcache.cache.sidefile import read_checked, side_path, write_checked
from jaxcache.layouts.torch.examine import Facts
from jaxcache.model import FileInfo

_MAGIC = b"jaxcache-torch-index 2\n"
#: A second write in the same tick of the clock would not show.
_SETTLED_NS = 2_000_000_000


class GraphIndex:
    """The index of one cache; :meth:`load` opens it, :meth:`save` writes what was learnt."""

    def __init__(self, path: Path, *, now_ns: int) -> None:
        self._path = path
        self._settled_ns = now_ns - _SETTLED_NS
        self._rows: dict[str, list[Any]] = {}
        self._learnt = 0

    @classmethod
    def load(cls, folder: Path, url: str, *, now_ns: int) -> "GraphIndex":
        """Open the index of the cache at ``url``; an empty one where there is none to trust."""
        index = cls(side_path(folder, url, ".graphs"), now_ns=now_ns)
        with contextlib.suppress(OSError, ValueError, TypeError, RecursionError):
            rows = json.loads(bytes(read_checked(index._path, _MAGIC)))
            index._rows = rows if isinstance(rows, dict) else {}
        return index

    def recall(self, info: FileInfo) -> Facts | None:
        """Return the facts of a file; None if it has changed since."""
        row = self._rows.get(info.name)
        if row is None or row[:3] != [info.size_bytes, info.mtime_ns, info.inode]:
            return None
        known = Facts(*row[3:])
        return known._replace(
            devices=tuple(known.devices),
            references=tuple(known.references),
            environment=tuple(known.environment),
            problems=tuple((kind, detail) for kind, detail in known.problems),
        )

    def learn(self, info: FileInfo, facts: Facts) -> None:
        """Remember what was read, if the file is settled and could be read."""
        unreadable = any(kind == "unreadable" for kind, _ in facts.problems)
        if facts.gone or unreadable or info.mtime_ns > self._settled_ns:
            return
        self._rows[info.name] = [info.size_bytes, info.mtime_ns, info.inode, *facts[:-1]]
        self._learnt += 1

    def save(self, present: Iterable[str]) -> None:
        """Write the index, without the files that are gone, if anything was learnt."""
        if not self._learnt:
            return
        rows = {name: self._rows[name] for name in present if name in self._rows}
        write_checked(self._path, _MAGIC, json.dumps(rows, separators=(",", ":")).encode())
