"""One tier after the local directory: a directory or a bucket, and when to stop using it.

Every request has a time limit, and another process carries it out: a network file system that hangs
must not hang the program, nor keep it from ending. A tier that fails is given up for a while, and
so is one whose misses and failures have taken long, even with hits in between.

:class:`Signatures` reads and writes those of ``jaxcache push --sign``. An upload from here writes
one file per entry, named by the entry, so that a look-up costs one
request more; files of ``push`` are read once. ``core/signing.py`` has the format.
"""

import os
import stat
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

from ..core import signing
from ..core.configuration import read_user_file
from ..core.ledger import MAX_LEDGER_BYTES
from ..core.remote import redact
from .files import MAX_ENTRY_BYTES, own_directory_of, read_file, write_whole
from .helper import AbsentError, DeniedError, TierClient

_MAX_FILES = 1000


class Signatures:
    """The keys whose signatures count, and the key that signs uploads.

    Raises:
        ImportError: the package cryptography is missing.
        OSError, ValueError: the key or the list of trusted keys cannot be used.
    """

    def __init__(self, settings: Any) -> None:
        from cryptography.hazmat.primitives.asymmetric import ed25519

        self._ed25519 = ed25519
        self._required: bool = settings["require-signed"]
        self._trusted = _trusted_keys() if self._required else frozenset()
        path = settings["signing-key"]
        self._private = self._read_private(path) if path else None
        self._names: dict[str, frozenset[str]] = {}
        self._bulk: dict[str, dict[str, set[str]]] = {}
        """By tier and file: digests of the files that ``push`` wrote."""

    def digests(self, tier: Any, name: str) -> "set[str]":
        """Return the digests of a file's content that trusted keys vouch for.

        Where no signature is required, only what a listing of the signatures names is read.
        """
        own = f"live-{name}.json"
        digests: set[str] = set()
        if self._required or own in self._list(tier):
            digests |= self._read(self._fetch(tier, own)).get(name, set())
        if tier.url not in self._bulk:
            self._bulk[tier.url] = self._read_bulk(tier)
        return digests | self._bulk[tier.url].get(name, set())

    def trust(self) -> bool:
        """Read the trusted keys although no setting requires them; whether there are any."""
        self._trusted = self._trusted or _trusted_keys()
        return bool(self._trusted)

    def sign(self, tier: Any, name: str, digest: str) -> bool:
        """Vouch for an entry before it goes up; whether the tier has the signature."""
        if self._private is None:
            return True
        where = f"{signing.SIGNATURES_DIR}/live-{name}.json"
        document = signing.sign_text(f"{digest} {name}\n", [self._private])
        written: bool = tier.write(where, document, replace=True)
        return written

    def _list(self, tier: Any) -> "frozenset[str]":
        """The names of the signatures of a tier, listed once."""
        if tier.url not in self._names:
            names = tier.attempt("names", signing.SIGNATURES_DIR) or ()
            self._names[tier.url] = frozenset(names)
        return self._names[tier.url]

    def _read_bulk(self, tier: Any) -> "dict[str, set[str]]":
        signers: dict[str, set[str]] = {}
        read_bytes = 0
        for name in sorted(n for n in self._list(tier) if not n.startswith("live-"))[-_MAX_FILES:]:
            data = self._fetch(tier, name)
            read_bytes += len(data)
            if read_bytes > MAX_LEDGER_BYTES:
                break
            for file, digests in self._read(data).items():
                signers.setdefault(file, set()).update(digests)
        return signers

    def _fetch(self, tier: Any, name: str) -> bytes:
        path = f"{signing.SIGNATURES_DIR}/{name}"
        return tier.read(path, fresh=True, limit=signing.MAX_SIGNATURES_BYTES) or b""

    def _read(self, data: bytes) -> "dict[str, set[str]]":
        return signing.read_signed(data, self._trusted)

    def _read_private(self, path: str) -> Any:
        with open(path, "rb") as file:
            if os.fstat(file.fileno()).st_mode & (stat.S_IRWXG | stat.S_IRWXO):
                raise PermissionError(f"others may read the private key {path}")
            seed = signing.parse_key(file.read(4096).decode(), signing.PRIVATE)
        if seed is None:
            raise ValueError(f"{path} holds no private key")
        return self._ed25519.Ed25519PrivateKey.from_private_bytes(seed)


def _trusted_keys() -> "frozenset[bytes]":
    """Return the keys of ``jaxcache trust add``; raise PermissionError if others may write them."""
    file = read_user_file(signing.TRUSTED_KEYS)
    if file is None:
        return frozenset()
    if file.unsafe:
        raise PermissionError(f"others may write {file.path}: {file.unsafe}")
    lines = file.text.decode("utf-8", "replace").splitlines()
    keys = (signing.parse_key(line.strip().rpartition(" ")[0], signing.PUBLIC) for line in lines)
    return frozenset(key for key in keys if key is not None)


class Refusals:
    """Why entries were refused, by tier and key."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._reasons: dict[tuple[str, str], str] = {}
        self._replaced: set[tuple[str, str]] = set()
        self._good_tiers: set[str] = set()

    def __contains__(self, tier_and_key: "tuple[str, str]") -> bool:
        return tier_and_key in self._reasons

    def add(self, tier: str, key: str, reason: str) -> None:
        """Note that an entry was refused."""
        with self._lock:
            self._reasons[tier, key] = reason

    def accept(self, tier: str, key: str) -> None:
        """Note that an entry was taken, maybe after it was refused."""
        with self._lock:
            self._reasons.pop((tier, key), None)
            self._good_tiers.add(tier)

    def replace(self, tier: str, key: str) -> None:
        """Note that this process has uploaded a good entry."""
        with self._lock:
            if (tier, key) in self._reasons:
                self._replaced.add((tier, key))

    def lines(self) -> Iterator[str]:
        """Name each tier whose entries were refused, and the command that mends it."""
        everything = self._count(set())
        remaining = self._count(self._replaced)
        for refusal in everything:
            is_mended = all(refusal[:2] != other[:2] for other in remaining)
            mend = "replaced there by this program" if is_mended else signing.refusal_fix(refusal)
            yield f"live: refused {signing.describe_refusal(refusal)}; {mend}"

    def save(self, root: str) -> None:
        """Keep what is still to be mended, for ``stats`` and ``doctor``.

        Raises:
            OSError: the directory cannot be written.
        """
        tiers = self._good_tiers | {tier for tier, _ in self._reasons}
        if not tiers:
            return
        directory, name = signing.RECORD.split("/")
        with own_directory_of(root, directory) as opened:
            before = signing.read_record(
                read_file(name, signing.MAX_RECORD_BYTES, directory=opened) or b""
            )
            others = tuple(refusal for refusal in before if refusal.tier not in tiers)
            after = (*others, *self._count(self._replaced))
            if {r[:3] for r in before} != {r[:3] for r in after}:
                write_whole(opened, name, signing.write_record(after))

    def _count(self, without: "set[tuple[str, str]]") -> "list[signing.TierRefusal]":
        with self._lock:
            numbers = Counter(
                (tier, reason)
                for (tier, key), reason in self._reasons.items()
                if (tier, key) not in without
            )
        at_ns = time.time_ns()
        return [
            signing.TierRefusal(*place, number, at_ns) for place, number in sorted(numbers.items())
        ]


#: Failures in a row before a tier is given up, and for how long; doubled each time, up to the last.
_FAILURES = 3
_PAUSE_SECONDS = 30.0
_MAX_PAUSE_SECONDS = 900.0
#: For so long a listing proves that a name does not exist.
_LISTING_SECONDS = 120.0


class CircuitBreaker:
    """Says whether to ask: not after failures in a row, nor when too much time was lost."""

    def __init__(self, budget: float) -> None:
        self._lock = threading.RLock()
        self._budget = budget
        self._row = 0
        self._lost = 0.0
        self._until = 0.0
        self._pause = _PAUSE_SECONDS
        self._denied = False

    def allows(self) -> bool:
        """Whether a request may be sent now."""
        return not self._denied and time.monotonic() >= self._until

    def stop(self) -> None:
        """Allow nothing from now on."""
        self._denied = True

    def good(self) -> None:
        """An answer with a body came."""
        with self._lock:
            self._row = 0
            self._pause = _PAUSE_SECONDS

    def missed(self, seconds: float) -> None:
        """Record that the tier answered, after so long, that it has nothing."""
        with self._lock:
            self._row = 0
            self._lose(seconds)

    def failed(self, seconds: float, *, final: bool = False) -> bool:
        """Record a failure after so long; return whether the tier is given up now."""
        with self._lock:
            self._row += 1
            self._denied = self._denied or final
            if self._lose(seconds):
                return True
            if self._row < _FAILURES and not final:
                return False
            self._row = _FAILURES - 1  # one more failure after the pause is enough
            self._open()
            return True

    def _lose(self, seconds: float) -> bool:
        """Add to the time lost, which hits do not reset; return whether the budget is spent now."""
        self._lost += seconds
        if self._lost <= self._budget:
            return False
        self._lost = 0.0
        self._open()
        return True

    def _open(self) -> None:
        self._until = time.monotonic() + self._pause
        self._pause = min(2 * self._pause, _MAX_PAUSE_SECONDS)


def report_to_parent(**event: str) -> None:
    """Send an event to the parent of a run, where the process has one."""
    hook = sys.modules.get("_jaxcache_hook")
    if hook is not None:
        hook.report(event)


class Tier:
    """One tier: asked with a time limit, never raising, counted."""

    def __init__(self, address: str, layer: Any) -> None:
        self.writable = not address.endswith(":ro")
        self._address = address.removesuffix(":ro")
        self.url = redact(self._address)
        """Without credentials, which :class:`~.helper.BucketStore` refuses."""
        self._layer = layer
        self._counters = layer.counters
        self._seconds: float = layer.settings["timeout"]
        self._client: TierClient | None = None
        self._opening = threading.RLock()
        self.reading = CircuitBreaker(layer.settings["miss-budget"])
        self._writing = CircuitBreaker(layer.settings["miss-budget"])
        self._known: frozenset[str] | None = None
        self._listed = 0.0

    def _ask(
        self,
        verb: str,
        name: str,
        data: "bytes | None" = None,
        *,
        seconds: "float | None" = None,
        **options: Any,
    ) -> Any:
        """Send a request with the time limit."""
        with self._opening:
            if self._client is None:
                self._client = TierClient(self._address, self._seconds)
        return self._client.ask(verb, name, data, seconds=seconds or self._seconds, **options)

    def read(
        self, name: str, *, fresh: bool = False, limit: int = MAX_ENTRY_BYTES
    ) -> "bytes | None":
        """An object's bytes; None where the tier has none, or no answer, or more than ``limit``.

        Args:
            fresh: send a request even if the last listing lacks the name.
        """
        if not self.reading.allows():
            self._counters.count("tier_skipped")
            return None
        if not fresh and self._is_absent(name):
            self._counters.count("tier_known_misses")
            return None
        started = time.monotonic()
        try:
            data: bytes = self._ask("read", name, limit=limit)
        except AbsentError:
            self._counters.count("tier_misses")
            self.reading.missed(time.monotonic() - started)
            return None
        except Exception as error:
            self._failed(self.reading, error, "read", time.monotonic() - started)
            return None
        self.reading.good()
        return data

    def write(
        self, name: str, data: bytes, *, replace: bool, limit_seconds: "float | None" = None
    ) -> bool:
        """Write an object; whether the tier has it now."""
        if not self._writing.allows():
            return False
        # A large upload may take longer than a question: as long as at 1 MB/s.
        seconds = self._seconds + len(data) / 1e6
        seconds = min(seconds, limit_seconds or seconds)
        try:
            self._ask("write", name, data, replace=replace, seconds=seconds)
        except Exception as error:
            self._failed(self._writing, error, "write", 0.0)  # uploads do not delay the program
            return False
        self._writing.good()
        return True

    def attempt(self, verb: str, name: str, data: "bytes | None" = None) -> Any:
        """Return what a method of the store returns; None where it fails."""
        if not self.reading.allows():
            return None
        started = time.monotonic()
        try:
            return self._ask(verb, name, data)
        except Exception as error:
            self._failed(self.reading, error, "read", time.monotonic() - started)
            return None

    def abandon(self) -> None:
        """Send no more requests, and end the connections of this process."""
        self.reading.stop()
        self._writing.stop()
        if self._client is not None:
            self._client.close()

    def can_write(self) -> bool:
        """Whether an upload makes sense now."""
        return self.writable and self._writing.allows()

    def _failed(self, breaker: CircuitBreaker, error: Exception, verb: str, seconds: float) -> None:
        self._counters.count("tier_errors")
        denied = isinstance(error, (DeniedError, PermissionError))
        missing = isinstance(error, ImportError)
        if breaker.failed(seconds, final=denied or missing):
            reason = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
            if missing:
                reason = f"{sys.executable} has no obstore, which a bucket needs"
            self._layer.say(f"live: cannot {verb} {self.url} ({reason}); going on without it")
            if missing or self._client is None or not getattr(error, "is_open", True):
                report_to_parent(event="no-tier", detail=f"{self.url}: {reason}")

    def list(self) -> None:
        """Learn what the tier has, so that the rest needs no request; for the background."""
        self._listed = time.monotonic()
        if not self.reading.allows():
            return
        try:
            self._known = frozenset(self._ask("names", "", seconds=15 * self._seconds))
        except Exception:
            self._known = None  # each request will find out by itself
        self._listed = time.monotonic()

    def _is_absent(self, name: str) -> bool:
        if self._known is None or "/" in name:
            return False
        if time.monotonic() - self._listed > _LISTING_SECONDS:
            self._layer.background.submit(self.list)
            return False
        return name not in self._known
