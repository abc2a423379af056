"""Keep a directory below its bounds, in the background and in bulk.

A write only adds to a running total. A sweep looks at the directory again when the total says that
a bound is exceeded, after many writes (other processes write, too), or after a minute, and takes
the directory to 90 % of its bound, so that the next sweep is far away. One process sweeps at a
time. The order of ``cost`` is that of ``jaxcache prune`` (docs/eviction.md)::

    value = compile_seconds / size_bytes * sqrt(1 + hits) / (age + median age + 5 minutes)
"""

import contextlib
import math
import operator
import os
import time
from typing import Any, NamedTuple

from .files import (
    ATIME_SUFFIX,
    CACHE_SUFFIX,
    TEMP_PREFIX,
    delete_entry,
    jax_lock,
    own_folder,
    read_file,
    try_lock,
)
from .frame import HEADER_BYTES, Rotten, decode
from .uses import Known, read_ledger

_LOW_WATER = 0.9
_SWEEP_WRITES = 1_000
_SWEEP_SECONDS = 60.0
#: Entries to delete at a stretch; far less than the 50 ms for which JAX may wait.
_BATCH = 16
_ABANDONED_SECONDS = 3600.0
_ONE_RUN_SECONDS = 300.0
#: The header counts whole seconds, rounded down.
_ROUNDED_AWAY_SECONDS = 0.5


class _Item(NamedTuple):
    used_ns: int
    key: str
    size_bytes: int
    mtime_ns: int


_used = operator.itemgetter(0)


class Bound:
    """The bounds of one directory."""

    def __init__(self, root: str, settings: Any, max_size: "int | None", counters: Any) -> None:
        self._root = root
        self.max_bytes = max_size
        self._max_entries = settings["max-entries"]
        self._unused_seconds = settings["unused-for"]
        self._policy = settings["policy"]
        self._counters = counters
        self.pending: Any = None
        """Returns the keys that wait for their upload; they go last."""
        self.stamped = False
        """Whether a capped JAX shares the directory: stamps are kept, its lock is taken."""
        self._bytes = self._entries = self._since = 0
        self._next = 0.0
        self._first = True

    @property
    def active(self) -> bool:
        """Whether anything is bounded."""
        return not (self.max_bytes is self._max_entries is self._unused_seconds is None)

    @property
    def at_opening(self) -> bool:
        """Whether a sweep is due before anything is written."""
        return self._unused_seconds is not None

    def wrote(self, size_bytes: int) -> bool:
        """Add a write to the total; whether a sweep is due."""
        self._bytes += size_bytes
        self._entries += 1
        self._since += 1
        if self._first or self._since >= _SWEEP_WRITES or time.monotonic() > self._next:
            return True
        return self._is_over(self._bytes, self._entries)

    def _is_over(self, size_bytes: int, entries: int, share: float = 1.0) -> bool:
        return (self.max_bytes is not None and size_bytes > self.max_bytes * share) or (
            self._max_entries is not None and entries > self._max_entries * share
        )

    def sweep(self) -> None:
        """Look at the directory, and evict what exceeds its bounds.

        Raises:
            OSError: the directory cannot be read or changed.
        """
        self._first, self._since, self._next = False, 0, time.monotonic() + _SWEEP_SECONDS
        path = os.path.join(own_folder(self._root, "live"), "sweep")
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            if not try_lock(fd):
                return  # another process is at it
            items = self._look()
            self._bytes, self._entries = sum(i.size_bytes for i in items), len(items)
            if self._is_over(self._bytes, self._entries) or self._unused_seconds is not None:
                self._evict(items)
        finally:
            os.close(fd)

    def _look(self) -> "list[_Item]":
        items: list[_Item] = []
        stamps: dict[str, int] = {}
        now = time.time()
        with os.scandir(self._root) as entries:
            for number, entry in enumerate(entries):
                if number % 64 == 63:
                    time.sleep(0.002)  # let the user's threads run
                name = entry.name
                try:
                    if name.endswith(CACHE_SUFFIX):
                        status = entry.stat(follow_symlinks=False)
                        used_ns = max(status.st_atime_ns, status.st_mtime_ns)
                        key = name[: -len(CACHE_SUFFIX)]
                        items.append(_Item(used_ns, key, status.st_size, status.st_mtime_ns))
                    elif name.endswith(ATIME_SUFFIX):
                        # JAX writes the file at each use; reading all of them takes long.
                        stamps[name[: -len(ATIME_SUFFIX)]] = entry.stat().st_mtime_ns
                    elif name.startswith(TEMP_PREFIX):
                        status = entry.stat(follow_symlinks=False)
                        if now - status.st_mtime > _ABANDONED_SECONDS:
                            os.unlink(entry.path)
                except OSError:
                    continue
        if stamps:
            self.stamped = True
            items = [
                i._replace(used_ns=stamps[i.key]) if stamps.get(i.key, 0) > i.used_ns else i
                for i in items
            ]
        return items

    def _evict(self, items: "list[_Item]") -> None:
        cost = self._policy == "cost"
        ledger = read_ledger(self._root, pins_only=not cost)
        items = [i for i in items if not (i.key in ledger and ledger[i.key].pinned)]
        victims = self._unused(items)
        gone = {i.key for i in victims}
        left = [i for i in items if i.key not in gone]
        size_bytes = self._bytes - sum(i.size_bytes for i in victims)
        entries = self._entries - len(victims)
        if self._is_over(size_bytes, entries):
            # By a number: a sort holds every other thread up, and this is the fastest.
            order = self._by_cost(left, ledger) if cost else sorted(left, key=_used)
            waiting = self.pending() if self.pending else ()
            if waiting:
                order.sort(key=lambda i: i.key in waiting)
            for item in order:
                if not self._is_over(size_bytes, entries, _LOW_WATER):
                    break
                victims.append(item)
                size_bytes -= item.size_bytes
                entries -= 1
        self._delete(victims)

    def _unused(self, items: "list[_Item]") -> "list[_Item]":
        if self._unused_seconds is None:
            return []
        limit_ns = time.time_ns() - int(self._unused_seconds * 1e9)
        return [i for i in items if i.used_ns < limit_ns]

    def _by_cost(self, items: "list[_Item]", ledger: "dict[str, Known]") -> "list[_Item]":
        now_ns = time.time_ns()
        ages = sorted(max(0, now_ns - i.used_ns) / 1e9 for i in items)
        typical = (ages[len(ages) // 2] if ages else 0.0) + _ONE_RUN_SECONDS
        by_bytes = self.max_bytes is not None

        def worth(item: _Item) -> "tuple[float, int, str]":
            known = ledger.get(item.key)
            seconds = known.seconds if known else None
            if seconds is None:
                seconds = self._header_seconds(item) + _ROUNDED_AWAY_SECONDS
            hits = known.hits if known else 0
            used_ns = max(item.used_ns, known.last_hit_ns if known else 0)
            interval = max(0, now_ns - used_ns) / 1e9 + typical
            value = seconds * math.sqrt(1 + hits) / interval
            scale = max(1, item.size_bytes) if by_bytes else 1
            return value / scale, used_ns, item.key

        return sorted(items, key=worth)

    def _header_seconds(self, item: _Item) -> int:
        """Whole seconds, as the entry itself says; 0 where it is damaged."""
        try:
            data = read_file(os.path.join(self._root, item.key + CACHE_SUFFIX))
            return int.from_bytes(decode(data or b"").content[:HEADER_BYTES], "big")
        except (OSError, Rotten):
            return 0

    def _delete(self, victims: "list[_Item]") -> None:
        """Delete in small batches: each holds JAX's lock and the file system's for a moment."""
        for start in range(0, len(victims), _BATCH):
            lock = jax_lock(self._root) if self.stamped else contextlib.nullcontext(True)
            with lock as held:
                if not held:
                    return  # the next sweep goes on
                for item in victims[start : start + _BATCH]:
                    self._delete_one(item)
            time.sleep(0.002)  # let the user's threads run, and other processes

    def _delete_one(self, item: _Item) -> None:
        path = os.path.join(self._root, item.key + CACHE_SUFFIX)
        try:
            status = os.stat(path)
        except FileNotFoundError:
            return
        if status.st_mtime_ns != item.mtime_ns or status.st_atime_ns > max(
            item.used_ns, item.mtime_ns
        ):
            return  # written or used since
        delete_entry(self._root, item.key)
        self._bytes -= item.size_bytes
        self._entries -= 1
        self._counters.count("evicted")
        self._counters.add("evicted_bytes", item.size_bytes)
