"""The tiers behind one local directory: look-ups, uploads, prefetch.

An entry that a tier lacks has an empty marker in ``.jaxcache/live/spool/<tier>/``, written before
the entry and removed after the upload, so that no end of the process loses an upload: the next
process finds the markers. The keys of a program's last run are in ``.jaxcache/live/runs/``, here
and in the writable tiers, and are fetched at the start of the next.
"""

import contextlib
import os
import queue
import threading
import time
from typing import TYPE_CHECKING, Any

from ..core.live_directory import spool_name
from ..core.lock import open_lock, try_lock_where_possible
from ..core.names import CACHE_SUFFIX, OWN_DIR, is_key
from .entry_check import open_entry
from .files import own_directory_of, read_file, write_whole
from .frame import DamagedEntryError, DecodedEntry, add_checksum
from .refusals import Refusals
from .shared_uses import SharedUses
from .tier import Tier

if TYPE_CHECKING:
    from .directory import Directory

_MAX_KEYS = 4096
_MAX_RUN_BYTES = 1 << 20
#: The content of a marker where the upload replaces what the tier has; else it is empty.
_REPLACE = b"replace"
_MAX_MARKER_BYTES = 64
_PREFETCH_THREADS = 8
_UPLOAD_THREADS = 2
#: Entries that one process uploads because a tier has lost them.
_MAX_BROUGHT_BACK = 64
_RESUME_SECONDS = 60.0


class Tiers:
    """All tiers of one directory, the nearest first."""

    def __init__(self, directory: "Directory", addresses: "tuple[str, ...]", layer: Any) -> None:
        self._directory = directory
        self._layer = layer
        self._counters = layer.counters
        self._tiers = [Tier(address, layer) for address in addresses]
        self._signatures = _signatures(layer.settings)
        self._in_flight: dict[str, threading.Event] = {}
        self._lock = threading.Lock()
        self._used: dict[str, None] = {}
        self._local: dict[str, None] = {}
        """Keys that were hit in the local directory."""
        is_told = layer.settings["ledger"] and any(t.writable for t in self._tiers)
        self._shared = SharedUses(directory.root) if is_told else None
        self._queue: queue.Queue[tuple[Tier, str]] = queue.Queue(layer.settings["queue"])
        self._queued: set[tuple[str, str]] = set()
        self._uploaded: set[tuple[str, str]] = set()
        self._uploaders: list[threading.Thread] = []
        self.refusals = Refusals()
        """Entries that are damaged or not vouched for: the next upload replaces them."""
        self._trusts: bool | None = None
        """Whether a signature can vouch for an entry that needs none; None until one is read."""
        self._after: dict[str, Any] = {}
        """Callbacks for when an entry is uploaded, by key."""
        self._resumer = -1
        self._closed = False
        self._run_file = f"{OWN_DIR}/live/runs/{layer.program()}"
        self._last_run: tuple[str, ...] = ()
        if any(t.writable for t in self._tiers):
            layer.background.submit(self._resume)
        self._start("prefetch", self._prefetch if layer.settings["prefetch"] else self._list)

    def _start(self, name: str, call: Any) -> "threading.Thread | None":
        thread = threading.Thread(target=call, name=f"jaxcache-{name}", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the interpreter is ending
            return None
        return thread

    # Look-ups ---------------------------------------------------------------------------------

    def lookup(self, key: str, *, fresh: bool = False) -> "tuple[bytes | None, str]":
        """An entry from the first tier that has a good one, and that tier; kept locally."""
        self.used(key)
        event = self._claim(key)
        if event is not None:
            # Somebody is fetching it; twice the limit of one request is more than that may take.
            event.wait(2 * self._layer.settings["timeout"])
            value = self._directory.read_local(key)
            if value is not None:
                return value, self._tiers[0].url if len(self._tiers) == 1 else "prefetch"
            if not fresh:
                return None, ""
        try:
            return self._fetch(key, fresh=fresh)
        finally:
            self._release(key)

    def _claim(self, key: str) -> "threading.Event | None":
        with self._lock:
            event = self._in_flight.get(key)
            if event is None:
                self._in_flight[key] = threading.Event()
            return event

    def _release(self, key: str) -> None:
        with self._lock:
            event = self._in_flight.pop(key, None)
        if event is not None:
            event.set()

    def _fetch(self, key: str, *, fresh: bool = False) -> "tuple[bytes | None, str]":
        for tier in self._tiers:
            if (tier.url, key) in self.refusals and not fresh:
                continue
            value = tier.read(key + CACHE_SUFFIX, fresh=fresh)
            if value is None:
                continue
            decoded = self._admit(tier, key, value)
            if isinstance(decoded, str):
                self.refusals.add(tier.url, key, decoded)
                continue
            self.refusals.accept(tier.url, key)
            with contextlib.suppress(OSError):
                sealed = value if decoded.sealed else add_checksum(value, decoded.content)
                self._directory.write(key, sealed)
            return value, tier.url
        return None, ""

    def _admit(self, tier: Tier, key: str, value: bytes) -> "DecodedEntry | str":
        """Decode an entry of a tier; the reason where it is refused.

        Where signatures are required, only what one vouches for is decoded. Otherwise a signature,
        or a digest that was recorded here, is as good as a checksum.
        """
        settings = self._layer.settings
        name = key + CACHE_SUFFIX
        is_signed_only: bool = settings["require-signed"]
        signed = self._signatures.digests(tier, name) if is_signed_only else ()
        if is_signed_only and not signed:
            self._counters.count("unsigned")
            return "unsigned"
        decoded = self._directory.decode(key, value, tier=True)
        if decoded is None:
            return "damaged"
        if is_signed_only:
            if decoded.digest() in signed:
                return decoded
            self._counters.count("unsigned")
            return "unsigned"
        if decoded.sealed or settings["require-seal"] == "never":
            return decoded
        digest = decoded.digest()
        if self._directory.is_recorded(key, digest) or self._is_signed(tier, name, digest):
            return decoded
        self._counters.count("unsealed")
        return "unsealed"

    def _is_signed(self, tier: Tier, name: str, digest: str) -> bool:
        """Whether a trusted key vouches for an entry although no setting requires it."""
        if self._trusts is None:
            try:
                from .signing import Signatures

                self._signatures = self._signatures or Signatures(self._layer.settings)
                self._trusts = self._signatures.trust()
            except Exception:  # the package cryptography is missing, or others may write the keys
                self._trusts = False
        signed: bool = self._trusts and digest in self._signatures.digests(tier, name)
        return signed

    def used(self, key: str, *, is_local: bool = False) -> None:
        """Note that this run uses a key, for the prefetch of the next.

        Args:
            is_local: the entry is here; a tier that has lost it gets it back.
        """
        if len(self._used) < _MAX_KEYS:
            self._used[key] = None
            if is_local:
                self._local[key] = None

    def hit(self, key: str) -> None:
        """Note a hit, which the tiers are told of at the end."""
        if self._shared is not None:
            self._shared.hit(key)

    def compiled(self, key: str, seconds: "float | None") -> None:
        """Note the compile of a new entry, which the tiers are told of at the end."""
        if self._shared is not None and seconds is not None:
            self._shared.compiled(key, seconds)

    def last_writable(self) -> "Tier | None":
        """The tier that most machines share."""
        return next((t for t in reversed(self._tiers) if t.writable), None)

    # Prefetch ---------------------------------------------------------------------------------

    def _list(self) -> None:
        for tier in self._tiers:
            self._start("list", tier.list)

    def _prefetch(self) -> None:
        """Fetch the keys of the last run that are not here, several at a time."""
        text = None
        with contextlib.suppress(OSError):
            *directories, name = self._run_file.split("/")[1:]
            with own_directory_of(self._directory.root, *directories, make=False) as directory:
                text = read_file(name, _MAX_RUN_BYTES, directory=directory)
        for tier in self._tiers:
            if text is None:
                text = tier.read(self._run_file, limit=_MAX_RUN_BYTES)
        lines = (text or b"").decode("utf-8", "replace").splitlines()
        keys = [line for line in lines if is_key(line)][:_MAX_KEYS]
        self._last_run = tuple(keys)
        wanted = iter([k for k in keys if not os.path.exists(self._directory.path(k))])
        turn = threading.Lock()

        def fetch() -> None:
            while True:
                with turn:
                    key = next(wanted, None)
                if key is None:
                    return
                if self._claim(key) is not None:
                    continue
                try:
                    value, source = self._fetch(key)
                    if value is not None:
                        self._directory.brought[key] = source
                        self._counters.count("prefetched")
                finally:
                    self._release(key)

        for _ in range(min(_PREFETCH_THREADS, len(keys))):
            self._start("prefetch", fetch)
        self._list()

    # Uploads ----------------------------------------------------------------------------------

    def mark_pending(self, key: str, *, replacing: bool) -> None:
        """Write the markers of an entry that is about to be written."""
        self.used(key)
        for tier in self._tiers:
            if tier.writable:
                tier.prepare()
                word = _REPLACE if replacing or (tier.url, key) in self.refusals else b""
                with contextlib.suppress(OSError), self._spool(tier) as directory:
                    write_whole(directory, key, word)

    def upload(self, key: str) -> None:
        """Queue an entry for each writable tier; where the queue is full, its marker waits."""
        for tier in self._tiers:
            if tier.writable:
                self._offer(tier, key)

    def _offer(self, tier: Tier, key: str) -> None:
        with self._lock:
            if (tier.url, key) in self._queued:
                return
            with contextlib.suppress(queue.Full):
                self._queue.put_nowait((tier, key))
                self._queued.add((tier.url, key))
            if not self._uploaders:
                threads = (self._start("upload", self._run_uploads) for _ in range(_UPLOAD_THREADS))
                self._uploaders = [t for t in threads if t is not None]

    def after_upload(self, key: str, call: Any) -> None:
        """Call when an entry is up, or at once where it does not wait for its upload."""
        with self._lock:
            waits = any(k == key for _, k in self._queued)
            if waits:
                self._after[key] = call
        if not waits:
            call()

    def _run_uploads(self) -> None:
        while True:
            try:
                tier, key = self._queue.get(timeout=_RESUME_SECONDS)
            except queue.Empty:
                if self._closed:
                    return
                self._layer.background.submit(self._resume)
                continue
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
                self._queue.task_done()

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
            self._uploaded.add((tier.url, key))
            self.refusals.replace(tier.url, key)
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
        for tier in self._tiers:
            if tier.writable:
                with contextlib.suppress(OSError), self._spool(tier) as directory:
                    keys.update(filter(is_key, os.listdir(directory)))
        return keys

    def _resume(self) -> None:
        """Offer what other processes left behind; one process of a directory does so."""
        if self._closed:
            return
        if self._resumer < 0:
            with own_directory_of(self._directory.root, "live", "spool") as directory:
                fd, _ = open_lock(directory, "lock")
            if not try_lock_where_possible(fd):
                os.close(fd)
                return
            self._resumer = fd
        for tier in self._tiers:
            if not tier.can_write():
                continue
            with self._spool(tier) as directory:
                for key in filter(is_key, os.listdir(directory)):
                    if self._queue.full():
                        return
                    if os.path.exists(self._directory.path(key)):
                        self._offer(tier, key)
                    else:  # it is gone, or about to be written
                        with contextlib.suppress(OSError):
                            _remove_marker(directory, key, unless_young=True)

    def abandon(self) -> None:
        """End the connections of this process; a forked child has those of its parent, too."""
        for tier in self._tiers:
            tier.abandon()

    def close(self, deadline: float) -> None:
        """Upload what waits until a deadline; what is left keeps its marker."""
        self._closed = True
        self._bring_back()
        self._write_run(deadline)
        self._write_uses(deadline)
        while self._queue.unfinished_tasks and self._uploaders and time.monotonic() < deadline:
            if not any(tier.can_write() for tier in self._tiers):
                break
            time.sleep(0.005)
        unfinished = self._queue.unfinished_tasks
        if unfinished:
            self._counters.count("uploads_left", unfinished)
        if self._resumer >= 0:
            os.close(self._resumer)
            self._resumer = -1
        self.abandon()
        for line in self.refusals.lines():
            self._layer.say(line)
        with contextlib.suppress(OSError):
            self.refusals.save(self._directory.root)

    def _bring_back(self) -> None:
        """Upload what was hit here and a tier has lost: somebody removed what is in use."""
        for tier in self._tiers:
            if not tier.can_write():
                continue
            keys = [key for key in self._local if (tier.url, key) not in self._uploaded]
            lost = [key for key in keys if tier.has_lost(key + CACHE_SUFFIX)]
            for key in lost[:_MAX_BROUGHT_BACK]:
                with contextlib.suppress(OSError, DamagedEntryError):
                    data = read_file(self._directory.path(key))
                    # Others refuse an entry without a checksum.
                    if data is not None and open_entry(key, data, is_foreign=False).sealed:
                        self._offer(tier, key)

    def _write_uses(self, deadline: float) -> None:
        """Tell the writable tiers what this client has used today."""
        with contextlib.suppress(OSError):
            segment = self._shared.segment() if self._shared is not None else None
            if segment is not None:
                self._write_to_tiers(*segment, deadline)

    def _write_run(self, deadline: float) -> None:
        """Remember the keys of this run, here and in the tiers."""
        keys = tuple(self._used)
        if not keys or set(keys) == set(self._last_run):
            return
        data = "\n".join(keys).encode()
        *directories, name = self._run_file.split("/")[1:]
        with (
            contextlib.suppress(OSError),
            own_directory_of(self._directory.root, *directories) as directory,
        ):
            write_whole(directory, name, data)
        self._write_to_tiers(self._run_file, data, deadline)

    def _write_to_tiers(self, name: str, data: bytes, deadline: float) -> None:
        for tier in self._tiers:
            left_seconds = deadline - time.monotonic()
            if tier.can_write() and left_seconds > 0:
                tier.write(name, data, replace=True, limit_seconds=left_seconds)


def _remove_marker(directory: int, key: str, *, unless_young: bool = False) -> None:
    """Remove the marker of an entry; a file that is none stays.

    Raises:
        OSError
    """
    if unless_young:
        status = os.stat(key, dir_fd=directory, follow_symlinks=False)
        if time.time() - status.st_mtime <= _RESUME_SECONDS:
            return
    if read_file(key, _MAX_MARKER_BYTES, directory=directory) in (b"", _REPLACE):
        os.unlink(key, dir_fd=directory)


def _signatures(settings: Any) -> Any:
    if not settings["require-signed"] and not settings["signing-key"]:
        return None
    from .signing import Signatures

    return Signatures(settings)
