"""Uploads to the tiers of one local directory, in the background.

An entry that a tier lacks has an empty marker in ``.jaxcache/live/spool/<tier>/``, written before
the entry and removed after the upload, so that no end of the process loses an upload: the next
process finds the markers.
"""

import contextlib
import os
import queue
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

from ..core.atomic import open_lock
from ..core.names import CACHE_SUFFIX, is_key, spool_name
from ..core.system import try_lock_where_possible
from ..core.threads import start_thread
from .files import own_directory_of, read_file, write_whole
from .frame import DamagedEntryError, open_entry
from .process import LiveProcess
from .tier import Refusals, Tier

if TYPE_CHECKING:
    from .directory import Directory

#: The content of a marker where the upload replaces what the tier has; else it is empty.
_REPLACE = b"replace"
_MAX_MARKER_BYTES = 64
_THREADS = 2
_RESUME_SECONDS = 60.0


class Uploads:
    """The entries that wait for their upload, and the threads that upload them.

    Args:
        refusals: what the next upload replaces in a tier.
        signatures: what signs each upload; None where nothing is signed.
    """

    def __init__(
        self,
        directory: "Directory",
        tiers: "list[Tier]",
        layer: LiveProcess,
        refusals: Refusals,
        signatures: Any,
    ) -> None:
        self._directory = directory
        self._layer = layer
        self._counters = layer.counters
        self._refusals = refusals
        self._signatures = signatures
        self._lock = threading.RLock()
        self._queue: queue.SimpleQueue[tuple[Tier, str]] = queue.SimpleQueue()
        self._max_queued: int = layer.settings["queue"] or sys.maxsize
        self._queued: set[tuple[str, str]] = set()
        self._uploaders: list[threading.Thread] = []
        self._after: dict[str, Any] = {}
        """Callbacks for when an entry is uploaded, by key."""
        self._under_way = 0
        """Uploads whose thread, or callback, has not ended."""
        self._resumer = -1
        self._closed = False
        self._writable = [t for t in tiers if t.writable]
        if self._writable:
            layer.background.submit(self._resume)

    def mark(self, key: str, *, replacing: bool) -> None:
        """Write the markers of an entry that is about to be written."""
        for tier in self._writable:
            is_replaced = replacing or (tier.url, key) in self._refusals
            with contextlib.suppress(OSError), self._spool(tier) as directory:
                write_whole(directory, key, _REPLACE if is_replaced else b"")

    def add(self, key: str) -> None:
        """Queue an entry for each writable tier; where the queue is full, its marker waits."""
        for tier in self._writable:
            self._offer(tier, key)

    def _offer(self, tier: Tier, key: str) -> None:
        with self._lock:
            if (tier.url, key) in self._queued or len(self._queued) >= self._max_queued:
                return
            self._queued.add((tier.url, key))
            self._queue.put((tier, key))
            if not self._uploaders:
                threads = (start_thread("upload", self._run) for _ in range(_THREADS))
                self._uploaders = [t for t in threads if t is not None]

    def call_after(self, key: str, call: Any) -> None:
        """Call when an entry is up, or at once where it does not wait for its upload."""
        with self._lock:
            waits = any(k == key for _, k in self._queued)
            if waits:
                self._after[key] = call
        if not waits:
            call()

    def _run(self) -> None:
        while True:
            try:
                tier, key = self._queue.get(timeout=_RESUME_SECONDS)
            except queue.Empty:
                if self._closed:
                    return
                self._layer.background.submit(self._resume)
                continue
            self._finish_one(tier, key)

    def _finish_one(self, tier: Tier, key: str) -> None:
        with self._lock:
            self._under_way += 1
        try:
            self._upload(tier, key)
        except Exception as error:
            self._layer.trouble(error)
        finally:
            with self._lock:
                self._queued.discard((tier.url, key))
                is_up = not any(k == key for _, k in self._queued)
                after = self._after.pop(key, None) if is_up else None
            if after is not None:
                after()
            with self._lock:
                self._under_way -= 1

    def _upload(self, tier: Tier, key: str) -> None:
        if not tier.can_write():
            return  # the marker stays
        data = read_file(self._directory.path(key))
        try:
            decoded = None if data is None else open_entry(key, data, is_foreign=False)
        except DamagedEntryError:  # since it was written
            self._counters.count("rotten")
            decoded = None
        if data is not None and decoded is not None:
            with self._spool(tier) as directory:
                replace = read_file(key, _MAX_MARKER_BYTES, directory=directory) == _REPLACE
            name = key + CACHE_SUFFIX
            if self._signatures is not None and not self._signatures.sign(
                tier, name, decoded.digest()
            ):
                return
            if not tier.write(name, data, replace=replace):
                return
            self._refusals.replace(tier.url, key)
            self._counters.count("uploaded")
            self._counters.add("uploaded_bytes", len(data))
        with self._spool(tier) as directory:
            _remove_marker(directory, key)

    def _spool(self, tier: Tier) -> "contextlib.AbstractContextManager[int]":
        """A descriptor of the directory with the markers of a tier."""
        return own_directory_of(self._directory.root, "live", "spool", spool_name(tier.url))

    def pending(self) -> "set[str]":
        """Keys that some tier still lacks."""
        keys: set[str] = set()
        for tier in self._writable:
            with contextlib.suppress(OSError), self._spool(tier) as directory:
                keys.update(filter(is_key, os.listdir(directory)))
        return keys

    def _resume(self) -> None:
        """Offer the uploads that other processes left; one process of a directory does so."""
        if self._closed:
            return
        if self._resumer < 0:
            with own_directory_of(self._directory.root, "live", "spool") as directory:
                fd, _ = open_lock(directory, "lock")
            if not try_lock_where_possible(fd):
                os.close(fd)
                return
            self._resumer = fd
        for tier in self._writable:
            if not tier.can_write():
                continue
            with self._spool(tier) as directory:
                for key in filter(is_key, os.listdir(directory)):
                    if len(self._queued) >= self._max_queued:
                        return
                    if os.path.exists(self._directory.path(key)):
                        self._offer(tier, key)
                    else:  # it is gone, or about to be written
                        with contextlib.suppress(OSError):
                            _remove_marker(directory, key, unless_young=True)

    def close(self, deadline: float) -> None:
        """Resume nothing more, and wait until a deadline; what is left keeps its marker."""
        self._closed = True
        while (self._queued or self._under_way) and time.monotonic() < deadline:
            if not any(tier.can_write() for tier in self._writable):
                break
            if self._uploaders:
                time.sleep(0.005)
            else:  # Python 3.12 starts no thread at the end of the interpreter
                self._finish_one(*self._queue.get_nowait())
        unfinished = len(self._queued)
        if unfinished:
            self._counters.count("uploads_left", unfinished)
        if self._resumer >= 0:
            os.close(self._resumer)
            self._resumer = -1


def _remove_marker(directory: int, key: str, *, unless_young: bool = False) -> None:
    """Remove the marker of an entry; a file that is not a marker stays.

    Raises:
        OSError
    """
    if unless_young:
        status = os.stat(key, dir_fd=directory, follow_symlinks=False)
        if time.time() - status.st_mtime <= _RESUME_SECONDS:
            return
    if read_file(key, _MAX_MARKER_BYTES, directory=directory) in (b"", _REPLACE):
        os.unlink(key, dir_fd=directory)
