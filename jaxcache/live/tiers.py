"""The tiers of one local directory: look-ups and prefetch.

The keys of a program's last run are in ``.jaxcache/live/runs/``, here and in the writable tiers,
and are fetched at the start of the next.
"""

import contextlib
import os
import threading
import time
from typing import TYPE_CHECKING, Any

from ..core.names import CACHE_SUFFIX, OWN_DIR, is_key
from ..core.threads import ReentrantEvent, start_thread
from .files import own_directory_of, read_file, write_whole
from .frame import DecodedEntry, add_checksum
from .process import LiveProcess
from .tier import Refusals, Tier, report_to_parent
from .uploads import Uploads
from .uses import SharedUses

if TYPE_CHECKING:
    from .directory import Directory

_RUNS = ("live", "runs")
_MAX_KEYS = 4096
_MAX_RUN_BYTES = 1 << 20
_PREFETCH_THREADS = 8


class Tiers:
    """All tiers of one directory, the nearest first."""

    def __init__(
        self, directory: "Directory", addresses: "tuple[str, ...]", layer: LiveProcess
    ) -> None:
        self._directory = directory
        self._layer = layer
        self._counters = layer.counters
        self._tiers = [Tier(address, layer) for address in addresses]
        self._signatures = _signatures(layer.settings)
        self._in_flight: dict[str, ReentrantEvent] = {}
        self._lock = threading.RLock()
        self._used: dict[str, None] = {}
        is_told = layer.settings["ledger"] and any(t.writable for t in self._tiers)
        self._shared = SharedUses(directory.root) if is_told else None
        self.refusals = Refusals()
        """Entries that are damaged or not vouched for: the next upload replaces them."""
        self._trusts: bool | None = None
        """Whether a signature can vouch for an entry that needs none; None until one is read."""
        self._program = layer.program()
        self._run_file = "/".join((OWN_DIR, *_RUNS, self._program))
        self._last_run: tuple[str, ...] = ()
        self.uploads = Uploads(directory, self._tiers, layer, self.refusals, self._signatures)
        start_thread("prefetch", self._prefetch if layer.settings["prefetch"] else self._list)

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

    def _claim(self, key: str) -> "ReentrantEvent | None":
        """Return what to wait for where another thread is fetching a key."""
        with self._lock:
            event = self._in_flight.get(key)
            if event is not None and event.owner == threading.get_ident():
                return None  # this is a signal handler of the thread that fetches it
            if event is None:
                self._in_flight[key] = ReentrantEvent()
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
                if decoded != "damaged":  # which was counted where it was decoded
                    self._counters.count(decoded)
                self.refusals.add(tier.url, key, decoded)
                continue
            self.refusals.accept(tier.url, key)
            with contextlib.suppress(OSError):
                # No compile request may name it, and the parent of a run is to know its origin.
                report_to_parent(event="fetched", key=key)
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
            return "unsigned"
        decoded = self._directory.decode(key, value, tier=True)
        if decoded is None:
            return "damaged"
        if is_signed_only:
            return decoded if decoded.digest() in signed else "unsigned"
        if decoded.sealed or settings["require-seal"] == "never":
            return decoded
        digest = decoded.digest()
        if self._directory.is_recorded(key, digest) or self._is_signed(tier, name, digest):
            return decoded
        return "unsealed"

    def _is_signed(self, tier: Tier, name: str, digest: str) -> bool:
        """Whether a trusted key vouches for an entry although no setting requires it."""
        if self._trusts is None:
            try:
                from .tier import Signatures

                self._signatures = self._signatures or Signatures(self._layer.settings)
                self._trusts = self._signatures.trust()
            except Exception:  # the package cryptography is missing, or others may write the keys
                self._trusts = False
        signed: bool = self._trusts and digest in self._signatures.digests(tier, name)
        return signed

    def used(self, key: str) -> None:
        """Note that this run uses a key, for the prefetch of the next."""
        if len(self._used) < _MAX_KEYS:
            self._used[key] = None

    def hit(self, key: str) -> None:
        """Note a hit; at the end it is reported to the tiers."""
        if self._shared is not None:
            self._shared.hit(key)

    def compiled(self, key: str, seconds: "float | None") -> None:
        """Note the compile of a new entry; at the end it is reported to the tiers."""
        if self._shared is not None and seconds is not None:
            self._shared.compiled(key, seconds)

    def last_writable(self) -> "Tier | None":
        """The tier that most machines share."""
        return next((t for t in reversed(self._tiers) if t.writable), None)

    # Prefetch ---------------------------------------------------------------------------------

    def _list(self) -> None:
        for tier in self._tiers:
            start_thread("list", tier.list)

    def _prefetch(self) -> None:
        """Fetch the keys of the last run that are not here, several at a time."""
        text = None
        root = self._directory.root
        with contextlib.suppress(OSError), own_directory_of(root, *_RUNS, make=False) as directory:
            text = read_file(self._program, _MAX_RUN_BYTES, directory=directory)
        for tier in self._tiers:
            if text is None:
                text = tier.read(self._run_file, limit=_MAX_RUN_BYTES)
        lines = (text or b"").decode("utf-8", "replace").splitlines()
        keys = [line for line in lines if is_key(line)][:_MAX_KEYS]
        self._last_run = tuple(keys)
        wanted = iter([k for k in keys if not os.path.exists(self._directory.path(k))])
        turn = threading.RLock()

        def fetch() -> None:
            while True:
                with turn:
                    key = next(wanted, None)
                if key is None:
                    return
                self.fetch_ahead(key)

        for _ in range(min(_PREFETCH_THREADS, len(keys))):
            start_thread("prefetch", fetch)
        self._list()

    def fetch_ahead(self, key: str) -> None:
        """Fetch an entry before JAX looks it up, or wait for whoever is fetching it."""
        event = self._claim(key)
        if event is not None:
            event.wait(2 * self._layer.settings["timeout"])
            return
        try:
            value, source = self._fetch(key)
            if value is not None:
                self._directory.brought[key] = source
                self._counters.count("prefetched")
        finally:
            self._release(key)
            self._layer.now.decoded = None

    def is_given_up(self) -> bool:
        """Whether a tier refuses this process, or is left alone for now."""
        return not all(tier.reading.allows() for tier in self._tiers)

    def abandon(self) -> None:
        """End the connections of this process; a forked child has those of its parent, too."""
        for tier in self._tiers:
            tier.abandon()

    def close(self, deadline: float) -> None:
        """Upload what waits until a deadline; what is left keeps its marker."""
        self._write_run(deadline)
        self._write_uses(deadline)
        self.uploads.close(deadline)
        self.abandon()
        for line in self.refusals.lines():
            self._layer.say(line)
        with contextlib.suppress(OSError):
            self.refusals.save(self._directory.root)

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
        with (
            contextlib.suppress(OSError),
            own_directory_of(self._directory.root, *_RUNS) as directory,
        ):
            write_whole(directory, self._program, data)
        self._write_to_tiers(self._run_file, data, deadline)

    def _write_to_tiers(self, name: str, data: bytes, deadline: float) -> None:
        for tier in self._tiers:
            left_seconds = deadline - time.monotonic()
            if tier.can_write() and left_seconds > 0:
                tier.write(name, data, replace=True, limit_seconds=left_seconds)


def _signatures(settings: Any) -> Any:
    if not settings["require-signed"] and not settings["signing-key"]:
        return None
    from .tier import Signatures

    return Signatures(settings)
