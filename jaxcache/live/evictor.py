"""Keep a directory below its bounds, in the background and in bulk.

A write only adds to a running total. A sweep lists the directory again when the total exceeds a
limit, after many writes (other processes write, too), or after a minute. It reduces the directory
to 90 % of its limit, so that the next sweep is far away. One process sweeps at a time. The order of
``cost`` is that of ``jaxcache prune`` (docs/eviction.md).
"""

import contextlib
import heapq
import math
import os
import shlex
import stat
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from ..core import eviction
from ..core.atomic import hold_lock, hold_lockfile, open_directory, remove_if_abandoned
from ..core.names import ATIME_SUFFIX, CACHE_SUFFIX, LOCKFILE, TEMP_PREFIX, ends_key
from .files import own_directory_of, read_start, remove_entry
from .frame import HEAD_BYTES, DamagedEntryError, read_header
from .uses import KnownUses, read_ledger

_LOW_WATER = 0.9
_SWEEP_WRITES = 1_000
_SWEEP_SECONDS = 60.0
#: Background work lets go of Python after so many entries, and of JAX's lock after this long.
_CHUNK = 128
_LOCK_SECONDS = 0.002
_PAUSE_SECONDS = 0.002
#: A sweep keeps entries that are used while it runs; a second look chooses others.
_LOOKS = 2
_ABANDONED_SECONDS = 600.0
#: JAX waits this long for its lock (lock_timeout_secs in jax/_src/lru_cache.py).
_JAX_LOCK_SECONDS = 10.0


#: Key, size, and the times of writing, reading and the last change of a file. The garbage collector
#: forgets plain tuples of such at once; a hundred thousand objects of a class would make it walk
#: through the user's heap.
_File = tuple[str, int, int, int, int]
#: An entry with its last use.
_Item = tuple[int, _File]
_T = TypeVar("_T")


def _unhurried(items: "Iterator[_T]") -> "Iterator[_T]":
    """Yield the items, with pauses in which the user's threads run."""
    for number, item in enumerate(items):
        if number % _CHUNK == _CHUNK - 1:
            time.sleep(_PAUSE_SECONDS)
        yield item


def _gently(items: "list[_T]") -> "Iterator[list[_T]]":
    """Parts of a list, with pauses in which the user's threads run."""
    for start in range(0, len(items), _CHUNK):
        yield items[start : start + _CHUNK]
        time.sleep(_PAUSE_SECONDS)


class Evictor:
    """Evicts entries of one directory that exceeds its limits."""

    def __init__(
        self, root: str, settings: Any, counters: Any, say: "Callable[[str], None]"
    ) -> None:
        self._root = root
        self.max_bytes: int | None = settings["max-size"]
        self._max_entries = settings["max-entries"]
        self._unused_seconds = settings["unused-for"]
        self._policy = settings["policy"]
        self._counters = counters
        self.pending: Any = None
        """Returns the keys that wait for their upload; they go last."""
        self.stamped = _is_stamped(root)
        """Whether a capped JAX shares the directory: stamps are kept, its lock is taken."""
        self._say = say
        self._wait_seconds = _JAX_LOCK_SECONDS
        """How long to wait for JAX's lock; 0 after a wait in vain."""
        self._holders: set[int] = set()
        """The threads that hold JAX's lock or wait for it."""
        self._lock = threading.RLock()
        self._bytes = self._entries = self._since = 0
        self._next = 0.0
        self._first = True
        self._headers: dict[str, int] = {}
        """Compile seconds that a sweep has read, by key."""

    @property
    def active(self) -> bool:
        """Whether anything is bounded."""
        return not (self.max_bytes is self._max_entries is self._unused_seconds is None)

    @contextlib.contextmanager
    def lock(self, directory: int) -> "Iterator[bool]":
        """JAX's lock, where a capped JAX shares the directory; yields whether it was obtained.

        A process waits for it in vain once: a holder may be stopped, or another user's.
        """
        thread = threading.get_ident()
        if not self.stamped or thread in self._holders:  # a signal handler has interrupted it
            yield True
            return
        self._holders.add(thread)
        try:
            with self._wait_for_lock(directory) as is_held:
                yield is_held
        finally:
            self._holders.discard(thread)

    @contextlib.contextmanager
    def _wait_for_lock(self, directory: int) -> "Iterator[bool]":
        with hold_lockfile(directory, timeout_seconds=self._wait_seconds, keep=True) as is_held:
            if not is_held and self._wait_seconds:
                self._wait_seconds = 0.0
                self._say(
                    f"live: another process held {self._root}/{LOCKFILE} for "
                    f"{_JAX_LOCK_SECONDS:g} s: this program no longer waits for it, and evicts "
                    f"nothing while it is held; jaxcache doctor -C {shlex.quote(self._root)} names "
                    "its holder"
                )
            yield is_held

    def reset(self) -> None:
        """Reset in a forked child, which has no tiers."""
        self._lock = threading.RLock()
        self.pending = None

    def is_due_at_opening(self, *, died: bool) -> bool:
        """Whether to sweep before anything is written: after a writer died, or to find disuse."""
        return self._unused_seconds is not None or (died and self.active)

    def wrote(self, size_bytes: int) -> bool:
        """Add a write to the total; whether a sweep is due."""
        self._add(size_bytes, 1)
        self._since += 1
        if self._first or self._since >= _SWEEP_WRITES or time.monotonic() > self._next:
            return True
        return self._is_over(self._bytes, self._entries)

    def _add(self, size_bytes: int, entries: int) -> None:
        with self._lock:
            self._bytes += size_bytes
            self._entries += entries

    def _is_over(self, size_bytes: int, entries: int, share: float = 1.0) -> bool:
        return (self.max_bytes is not None and size_bytes > self.max_bytes * share) or (
            self._max_entries is not None and entries > self._max_entries * share
        )

    def evict(self) -> None:
        """Look at the directory, and evict what exceeds its bounds.

        Raises:
            OSError: the directory cannot be read or changed.
        """
        self._first = False
        self._since = 0
        self._next = time.monotonic() + _SWEEP_SECONDS
        with (
            own_directory_of(self._root, "live") as directory,
            hold_lock(directory, "sweep") as is_held,
        ):
            if not is_held:
                return  # another process is at it
            for _ in range(_LOOKS):
                before = self._bytes, self._entries
                files, stamps = self._look()
                # What is written during the look counts too, seen or not.
                size_bytes = sum(f[1] for f in files)
                self._add(size_bytes - before[0], len(files) - before[1])
                if self._is_over(self._bytes, self._entries) or self._unused_seconds is not None:
                    self._evict(files, stamps)
                if not self._is_over(self._bytes, self._entries):
                    break

    def _look(self) -> "tuple[list[_File], dict[str, int]]":
        """The entries, and the dates of their stamps by key."""
        files: list[_File] = []
        stamps: dict[str, int] = {}
        now = time.time()
        with open_directory(self._root) as directory, os.scandir(directory) as entries:
            for number, entry in enumerate(entries):
                if number % _CHUNK == 0:
                    time.sleep(_PAUSE_SECONDS)
                name = entry.name
                try:
                    if name.endswith(CACHE_SUFFIX):
                        key = name[: -len(CACHE_SUFFIX)]
                        status = entry.stat(follow_symlinks=False)
                        if not ends_key(key, len(key)) or not stat.S_ISREG(status.st_mode):
                            continue  # not a file that JAX has written
                        times = (status.st_mtime_ns, status.st_atime_ns, status.st_ctime_ns)
                        files.append((key, status.st_size, *times))
                    elif name.endswith(ATIME_SUFFIX):
                        # JAX writes the file at each use; reading all of them takes long.
                        stamps[name[: -len(ATIME_SUFFIX)]] = entry.stat().st_mtime_ns
                    elif name.startswith(TEMP_PREFIX):
                        status = entry.stat(follow_symlinks=False)
                        if now - status.st_mtime > _ABANDONED_SECONDS:
                            remove_if_abandoned(directory, name)
                except OSError:
                    continue
        self.stamped = self.stamped or bool(stamps)
        return files, stamps

    def _evict(self, files: "list[_File]", stamps: "dict[str, int]") -> None:
        ledger = read_ledger(self._root)
        pinned = {key for key, uses in ledger.items() if uses.pinned}
        waiting = self.pending() if self.pending else ()
        items = self._date(files, stamps, ledger)
        rank = self._make_rank(items, ledger)
        limit_ns = 0
        if self._unused_seconds is not None:
            limit_ns = time.time_ns() - int(self._unused_seconds * 1e9)
        victims: list[_File] = []
        ranked = []  # sorted in parts: one large sort would hold every other thread up
        size_bytes = 0
        entries = len(items)
        for part in _gently(items):
            size_bytes += sum(file[1] for _, file in part)
            free = [i for i in part if i[1][0] not in pinned]
            victims += [file for used_ns, file in free if used_ns < limit_ns]
            remaining = (i for i in free if i[0] >= limit_ns)
            ranked.append(sorted((i[1][0] in waiting, rank(i), i[1]) for i in remaining))
        size_bytes -= sum(file[1] for file in victims)
        entries -= len(victims)
        if self._is_over(size_bytes, entries):
            victims += self._choose(heapq.merge(*ranked), size_bytes, entries)
        self._delete(victims)

    def _choose(
        self, order: "Iterator[tuple[bool, Any, _File]]", size_bytes: int, entries: int
    ) -> "list[_File]":
        """Return the entries to remove, as ``prune`` would choose them."""
        if self._policy == "cost" and self.max_bytes is not None and self._max_entries is None:
            weighed = (
                ((is_waiting, rank[0]), file[1], rank[1] * max(1, file[1]), file)
                for is_waiting, rank, file in _unhurried(order)
            )
            excess_bytes = math.ceil(size_bytes - self.max_bytes * _LOW_WATER)
            return eviction.choose_cheapest(weighed, excess_bytes)
        chosen = []
        for _, _, file in _unhurried(order):
            if not self._is_over(size_bytes, entries, _LOW_WATER):
                break
            chosen.append(file)
            size_bytes -= file[1]
            entries -= 1
        return chosen

    def _date(
        self, files: "list[_File]", stamps: "dict[str, int]", ledger: "dict[str, KnownUses]"
    ) -> "list[_Item]":
        """Add the last use to each entry."""
        reads = eviction.find_reads((written_ns, read_ns) for _, _, written_ns, read_ns, _ in files)
        time.sleep(_PAUSE_SECONDS)
        writes = eviction.find_writes(written_ns for _, _, written_ns, _, _ in files)
        time.sleep(_PAUSE_SECONDS)
        rule = eviction.LastUses(time.time_ns(), reads, writes)
        items: list[_Item] = []
        for part in _gently(files):
            for file in part:
                key, _, written_ns, read_ns, changed_ns = file
                use = rule.of(eviction.FileDates(written_ns, read_ns, stamps.get(key), changed_ns))
                record = ledger.get(key)
                if record is not None:
                    use = rule.with_record(
                        use, hit_ns=record.last_use_ns, compiled_ns=record.compiled_ns
                    )
                items.append((use.at_ns, file))
        return items

    def _make_rank(self, items: "list[_Item]", ledger: "dict[str, KnownUses]") -> Any:
        """The function by which the policy sorts entries."""
        if self._policy == "lru":
            return lambda item: (item[0], item[1][0])
        now_ns = time.time_ns()
        per_byte = self.max_bytes is not None
        records = (ledger.get(file[0]) for _, file in items)
        means = eviction.mean_seconds(r.seconds for r in records if r and r.seconds is not None)

        def rank(item: _Item) -> "tuple[int, float, int, str]":
            used_ns, (key, size_bytes, written_ns, *_) = item
            record = ledger.get(key)
            measured = record.seconds if record else None
            header = self._header_seconds(key) if measured is None else None
            damaged = measured is None and header is None
            candidate = eviction.Candidate(
                key,
                size_bytes,
                used_ns,
                0.0 if damaged else eviction.saved_seconds(measured, header, means),
                eviction.estimate_hits(record.hits if record else 0, written_ns, used_ns),
            )
            return eviction.rank_by_value(candidate, now_ns, per_byte=per_byte)

        return rank

    def _header_seconds(self, key: str) -> "int | None":
        """Whole seconds, as the entry itself has them; None where it is damaged."""
        if key not in self._headers:
            try:
                path = os.path.join(self._root, key + CACHE_SUFFIX)
                self._headers[key] = read_header(read_start(path, HEAD_BYTES))
            except (OSError, DamagedEntryError):
                return None
        return self._headers[key]

    def _delete(self, victims: "list[_File]") -> None:
        """Delete, with pauses in which writers get JAX's lock and the file system's."""
        remaining = iter(victims)
        while True:
            with open_directory(self._root) as directory, self.lock(directory) as held:
                until = time.monotonic() + _LOCK_SECONDS
                while held and time.monotonic() < until:
                    file = next(remaining, None)
                    if file is None:
                        return
                    self._delete_one(file)
            if not held:
                return  # the next sweep goes on
            time.sleep(_PAUSE_SECONDS)

    def _delete_one(self, file: _File) -> None:
        key, size_bytes, written_ns, read_ns, _ = file
        try:
            status = os.stat(os.path.join(self._root, key + CACHE_SUFFIX))
        except FileNotFoundError:
            return
        if (status.st_mtime_ns, status.st_atime_ns) != (written_ns, read_ns):
            return  # written or used since
        remove_entry(self._root, key)
        self._headers.pop(key, None)
        self._add(-size_bytes, -1)
        self._counters.count("evicted")
        self._counters.add("evicted_bytes", size_bytes)


def _is_stamped(root: str) -> bool:
    """Whether a capped JAX has left its lock or stamps in a directory; looks at the first names."""
    if os.path.exists(os.path.join(root, LOCKFILE)):
        return True
    with contextlib.suppress(OSError), os.scandir(root) as entries:
        for number, entry in enumerate(entries):
            if entry.name.endswith(ATIME_SUFFIX):
                return True
            if number > 200:
                break
    return False
