"""One cache directory as JAX sees it: what happens at a look-up and at a write."""

import contextlib
import functools
import os
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from ..core.atomic import open_directory
from ..core.names import CACHE_SUFFIX
from ..core.seams import process_index
from .evictor import Evictor
from .files import quarantine_entry, read_entry, read_file, touch, write_stamp, write_whole
from .frame import DamagedEntryError, DecodedEntry, open_entry, same_payload
from .loading import Leases, Loading, find_dead, forget_runs_with
from .process import LiveProcess
from .uses import LedgerDigest, UseLog, compact, read_digests

_TOTALS_SECONDS = 10.0
#: Processes that end at once wait for each other.
_LAST_TOTALS_SECONDS = 2.0


class ProvenEntry(NamedTuple):
    """An entry that was read before JAX requests it, and that a checksum or a digest proves."""

    value: bytes
    content: bytes
    file: "tuple[int, int, int]"
    """Time of the last change, size and inode."""


def _identity(status: os.stat_result) -> "tuple[int, int, int]":
    return status.st_mtime_ns, status.st_size, status.st_ino


class Directory:
    """The local directory of one cache that JAX has opened.

    Args:
        max_size: the size cap of JAX's cache, in bytes.
        open_tiers: returns the tiers of this directory; None without any.
        is_ahead: returns whether an executable is loaded ahead of its request.
    """

    def __init__(
        self,
        layer: LiveProcess,
        root: str,
        max_size: "int | None",
        open_tiers: "Callable[[Directory], Any]",
        is_ahead: "Callable[[str], bool]",
    ) -> None:
        self.root = root
        self._is_ahead = is_ahead
        self._layer = layer
        self._counters = layer.counters
        settings = layer.settings
        self.evictor = Evictor(root, settings, layer.counters, layer.say)
        self.set_cap(max_size)
        self.loading = Loading(root)
        dead = find_dead(root)
        self._deadly = dead.keys
        if dead.ahead:  # the next load is by request, and a death then is this entry's
            with contextlib.suppress(OSError):
                forget_runs_with(root, dead.ahead)
        self.uses = UseLog(root, layer.facts()) if settings["ledger"] is True else None
        self._served: set[str] = set()
        """Keys given to JAX; a put of one means that JAX could not use it."""
        self.brought: dict[str, str] = {}
        """Keys that were fetched before JAX looked them up, and the tier that each came from."""
        self.read_ahead: dict[str, ProvenEntry] = {}
        """Entries that JAX has not requested yet."""
        self._bad: set[str] = set()
        """Keys whose file must be replaced."""
        self._unproven: set[str] = set()
        """Keys given to JAX without a checksum or a digest that proves them."""
        self._touched: set[str] = set()
        self._digests: dict[str, list[LedgerDigest]] | None = None
        """SHA-256 of payloads that the ledger has recorded, by key; None until one is needed."""
        self._totals_at = time.monotonic() + _TOTALS_SECONDS
        self._leases = self._make_leases()
        self.tiers = open_tiers(self)
        self.evictor.pending = self.tiers.uploads.pending if self.tiers is not None else None
        self._is_unswept = False
        if self.evictor.is_due_at_opening(died=dead.died):
            self._begin_change()
            layer.background.submit(self._sweep)

    def _make_leases(self) -> "Leases | None":
        limit = self._layer.settings["single-flight"]
        return Leases(self.root, limit, self._counters) if limit else None

    def set_cap(self, max_size: "int | None") -> None:
        """Take the size cap that JAX opens its cache with."""
        own_limit = self._layer.settings["max-size"]
        self.evictor.max_bytes = max_size if own_limit is None else own_limit
        self.evictor.stamped = self.evictor.stamped or max_size is not None

    def path(self, key: str) -> str:
        """The file of an entry."""
        return os.path.join(self.root, key + CACHE_SUFFIX)

    def _note(self) -> None:
        """Let ``jaxcache stats`` see the counts from time to time."""
        if self._layer.settings["ledger"] and time.monotonic() > self._totals_at:
            self._totals_at = time.monotonic() + _TOTALS_SECONDS
            self._layer.background.submit(self._save_totals)

    def _save_totals(self) -> None:
        self._counters.save_totals(self.root)

    # Look-ups ---------------------------------------------------------------------------------

    def get(self, key: str) -> "bytes | None":
        """The entry of a key, checked; None where no place has a good one."""
        started = time.perf_counter()
        value, source = self._find(key)
        if value is None and self._leases is not None and self._layer.now.loading:
            with contextlib.suppress(OSError):  # a directory that only others may write
                value, source = self._wait(self._leases, key)
        took = time.perf_counter() - started
        self._note()
        if value is None:
            self._counters.count("misses")
            self._counters.add("miss_seconds", took)
            if self._layer.now.loading:
                self._layer.now.missed = (self, key)
            return None
        source = self.brought.pop(key, source)
        self._served.add(key)
        self._counters.count("hits_local" if source == "local" else "hits_tier")
        if source != "local":
            self._counters.hit_in(source)
        self._counters.add("retrieval_seconds", took)
        self._counters.add("read_bytes", len(value))
        self._use(key, took)
        if self._layer.now.loading:
            if self._is_ahead(key):  # nothing may be left to load
                self._layer.now.unmarked = self
            else:
                self.mark_load(key)
        return value

    def mark_load(self, key: str) -> None:
        """Mark an entry as being loaded, until :meth:`loaded`."""
        with contextlib.suppress(OSError):  # a directory that only others may write
            self.loading.begin(key)

    def read_proven(self, key: str) -> "bytes | None":
        """Return an entry's content; None unless a checksum or a recorded digest proves it.

        A request for the same file is answered with what was read. Counts nothing: whoever asks
        for the entry reports what is wrong with it.
        """
        if key in self._deadly or key in self._bad:
            return None
        try:
            value, status = read_entry(self.path(key), is_use=False)
            decoded = open_entry(key, value, is_foreign=False)
        except (OSError, DamagedEntryError):
            return None
        if not self._is_proven(key, decoded, status):
            return None
        self.read_ahead[key] = ProvenEntry(value, decoded.content, _identity(status))
        return decoded.content

    def _find(self, key: str) -> "tuple[bytes | None, str]":
        if key in self._deadly:
            self._remove_deadly(key)
            return None, ""
        value = self.read_local(key)
        if self.tiers is None:
            return value, "local"
        if value is not None:
            self.tiers.used(key)
            return value, "local"
        answer: tuple[bytes | None, str] = self.tiers.lookup(key)
        return answer

    def _wait(self, leases: Leases, key: str) -> "tuple[bytes | None, str]":
        """Wait for another process that compiles this; None where it is this one's turn."""

        def look() -> "bytes | None":
            return self.read_local(key) if os.path.exists(self.path(key)) else None

        self._layer.now.leases.append((self, key))
        return leases.take_or_wait(key, look, self.tiers), "local"

    def release(self, key: str) -> None:
        """Let other processes compile a key, or read what this one has written."""
        if self._leases is not None:
            self._leases.release(key, self.tiers)

    def _remove_deadly(self, key: str) -> None:
        self._deadly.discard(key)
        self._bad.add(key)
        self._counters.count("died_loading")
        self._layer.say(f"{key} is in quarantine: a process died while loading it")
        with (
            contextlib.suppress(OSError),
            open_directory(self.root) as directory,
            self.evictor.lock(directory),
        ):
            quarantine_entry(self.root, key)

    def read_local(self, key: str) -> "bytes | None":
        """The entry in the local directory, checked; a bad one is noted."""
        ahead = self.read_ahead.pop(key, None)
        try:
            if ahead is not None and ahead.file == _identity(os.stat(self.path(key))):
                self._layer.now.decoded = (ahead.value, ahead.content)
                return ahead.value
            value, status = read_entry(self.path(key))
        except FileNotFoundError:
            return None
        except OSError:
            self._bad.add(key)
            return None
        if self._accepts(key, value, status):
            return value
        self._bad.add(key)
        return None

    def _accepts(self, key: str, value: bytes, status: os.stat_result) -> bool:
        decoded = self.decode(key, value)
        if decoded is None:
            return False
        is_proven = self._is_proven(key, decoded, status)
        if is_proven is not None:
            if not is_proven:
                self._counters.count("rotten")
            return is_proven
        if self._layer.settings["require-seal"] == "always":
            self._counters.count("unsealed")
            return False
        self._unproven.add(key)
        return True

    def _is_proven(self, key: str, decoded: DecodedEntry, status: os.stat_result) -> "bool | None":
        """Whether a checksum or a recorded digest proves an entry, or disproves it; else None."""
        if decoded.sealed:
            return True
        digest = decoded.digest() if self._recorded(key) else ""
        records = [r for r in self._recorded(key) if r.is_of(status)]
        if records and max(records, key=lambda r: r.at_ns).sha256 != digest:
            return False
        return self.is_recorded(key, digest) or None

    def decode(self, key: str, value: bytes, *, tier: bool = False) -> "DecodedEntry | None":
        """Decode an entry once, so that JAX's decoder is given the content; None if damaged."""
        try:
            decoded = open_entry(key, value, is_foreign=tier)
        except DamagedEntryError:
            self._counters.count("rotten_tier" if tier else "rotten")
            return None
        self._layer.now.decoded = (value, decoded.content)
        return decoded

    def loaded(self, key: str, executable: Any) -> None:
        """Note the end of a load.

        An executable that neither a checksum nor a recorded digest proves stays noted until its
        first execution is over: damaged code may end the process there.

        Args:
            executable: the one loaded; None where the load failed.
        """
        if executable is None or key not in self._unproven:
            self.loading.end(key)
        else:
            self._layer.first_runs.watch(executable, functools.partial(self.loading.end, key))

    def is_recorded(self, key: str, digest: str) -> bool:
        """Whether the ledger of this directory has recorded this payload under this key."""
        return any(record.sha256 == digest for record in self._recorded(key))

    def _recorded(self, key: str) -> "Sequence[LedgerDigest]":
        if self._digests is None:
            self._digests = read_digests(self.root)
        return self._digests.get(key, ())

    def _use(self, key: str, took_seconds: float) -> None:
        if self.tiers is not None:
            self.tiers.hit(key)
        if self.uses is not None and self.uses.hit(key, took_seconds):
            self._layer.background.submit(self.uses.flush)
        if key in self._touched:
            return
        self._touched.add(key)
        with contextlib.suppress(OSError):  # a file of another user
            touch(self.path(key))
        if self.evictor.stamped:
            with contextlib.suppress(OSError), open_directory(self.root) as directory:
                write_stamp(directory, key)

    # Writes -----------------------------------------------------------------------------------

    def put(self, key: str, value: bytes) -> None:
        """Write a new entry, or replace one that JAX could not use.

        Raises:
            OSError: it could not be written; JAX reports it in its own words.
        """
        if self.evictor.max_bytes is not None and len(value) > self.evictor.max_bytes:
            warnings.warn(
                f"Cache value for key {key!r} of size {len(value)} bytes exceeds the maximum "
                f"cache size of {self.evictor.max_bytes} bytes",
                stacklevel=2,
            )
            return
        is_bad = key in self._bad
        if key in self._served and not is_bad and self._holds(key, value):
            return
        # A key that was served and is compiled again all the same is one that JAX could not load.
        replacing = is_bad or key in self._served
        if not replacing and os.path.exists(self.path(key)):
            self._counters.count("present")
            return
        if self.tiers is not None:
            self.tiers.used(key)
            self.tiers.uploads.mark(key, replacing=replacing)
        try:
            self.write(key, value)
        except OSError:
            self._counters.count("write_failed")
            raise
        self._bad.discard(key)
        self._served.discard(key)
        self._counters.count("replaced" if replacing else "written")
        if self.uses is not None and self._layer.now.seconds is not None:
            self._layer.now.missed = None
            if self.uses.compiled(key, self._layer.now.seconds):
                self._layer.background.submit(self.uses.flush)
        if self.tiers is not None:
            self.tiers.compiled(key, self._layer.now.seconds)
            self.tiers.uploads.add(key)

    def _holds(self, key: str, value: bytes) -> bool:
        """Whether the file has the same executable: ``VerificationCache`` puts what it has read."""
        try:
            return same_payload(read_file(self.path(key)) or b"", value)
        except OSError:
            return False

    def write(self, key: str, value: bytes) -> None:
        """Write the file of an entry, its stamp first where a capped JAX needs one.

        Raises:
            OSError
        """
        # No process may evict an entry between its two files: JAX fails on one without a stamp.
        self._begin_change()
        with open_directory(self.root) as directory, self.evictor.lock(directory):
            if self.evictor.stamped:
                write_stamp(directory, key)
            write_whole(directory, key + CACHE_SUFFIX, value)
        self._counters.add("written_bytes", len(value))
        if self.evictor.active and self.evictor.wrote(len(value)):
            self._layer.background.submit(self._sweep)

    def _begin_change(self) -> None:
        """Let the next process learn where this one dies before the limits hold again."""
        if self.evictor.active:
            with contextlib.suppress(OSError):  # a directory without locks
                self.loading.begin()

    def _sweep(self) -> None:
        self._is_unswept = True
        self.evictor.evict()
        self._is_unswept = False

    # The end ----------------------------------------------------------------------------------

    def close(self, deadline: float) -> None:
        """Write what is still in memory.

        Args:
            deadline: until when to wait for uploads, on the monotonic clock.
        """
        if self.tiers is not None:
            self.tiers.close(deadline)
        with contextlib.suppress(OSError):
            if self._layer.settings["ledger"]:
                self._counters.save_totals(self.root, _LAST_TOTALS_SECONDS)
            if self.uses is not None:
                self.uses.flush()
                if not process_index():
                    self.uses.record_run()
                if time.monotonic() < deadline:  # unless another process is at it
                    compact(self.root)
        self.loading.close(is_unswept=self._is_unswept)

    def reset(self) -> None:
        """Reset in a forked child, which uses the local directory only."""
        if self.tiers is not None:
            self.tiers.abandon()
        self.tiers = None
        self.read_ahead = {}
        self.evictor.reset()
        self.loading = Loading(self.root)
        self._leases = self._make_leases()
        if self.uses is not None:
            self.uses.reset()
