"""Record uses and compile times in the cache's ledger, and read back what an eviction needs.

The ledger is a directory of segments, ``.jaxcache/ledger/<time_ns>-<16 hex>.jsonl``, each written
once and whole; each line is one event with ``key``, ``kind`` and ``at_ns`` (docs/entry-format.md).

The tiers also record what this client uses, so that ``prune`` of a tier keeps it. Each client has
one segment a day in the tier's ledger, ``.jaxcache/ledger/<midnight>-<client>.jsonl``. Each process
of the client rewrites it with what its own directory has noted of that day. It is bounded, and a
``prune`` of the tier reads one object per client and day for any number of entries and programs.
"""

import contextlib
import hashlib
import os
import socket
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from ..core import ledger
from ..core.atomic import locked_name, remove_if_abandoned
from ..core.call_site import name_program
from ..core.configuration import report_once, working_directory
from ..core.names import CACHE_SUFFIX, LEDGER_DIR, TEMP_PREFIX
from ..core.system import is_own_or_roots
from .files import own_directory_of, read_entry, read_file, write_whole

_MAX_SEGMENT_BYTES = 32 << 20
_MAX_EVENTS = 5_000
#: A process that goes on running writes what it has so often.
_FLUSH_SECONDS = 300.0
#: Readings of a ledger that is compacted meanwhile; a later one waits so much longer.
_ATTEMPTS = 20
_PAUSE_SECONDS = 0.005
#: A larger ledger is left to the command line: no program waits for its compaction.
_MAX_COMPACTED_BYTES = 4 << 20
#: The same that the command line holds while it compacts.
_COMPACT_LOCK = f"{TEMP_PREFIX}compact"


class KnownUses(NamedTuple):
    """The ledger's facts about one entry."""

    seconds: "float | None"
    hits: int
    last_use_ns: "int | None"
    """The last hit or arrival."""
    compiled_ns: "int | None"
    pinned: bool


class UseLog:
    """Events of this process, kept in memory until the next segment."""

    def __init__(self, root: str, facts: "dict[str, str]") -> None:
        self._root = root
        self._facts = facts
        self._began_at = time.time()
        self._argv = [str(word) for word in sys.argv]
        self._program = name_program(self._argv, working_directory())
        self.reset()
        self._due = time.monotonic() + _FLUSH_SECONDS

    def reset(self) -> None:
        """Reset in a forked child: the parent writes its own events."""
        self._lock = threading.RLock()
        self._events = ledger.EventFold()
        self._outcomes: dict[str, tuple[str, float]] = {}

    def hit(self, key: str, took_seconds: float = 0.0) -> bool:
        """Note a hit; whether a segment is due."""
        return self._note(key, "hit", "hit", {"retrieval_seconds": took_seconds})

    def missed(self, key: str) -> None:
        """Note a compile that was not written."""
        self._note(key, "miss", "skipped", {})

    def compiled(self, key: str, seconds: float) -> bool:
        """Note how long the compile of a new entry took; whether a segment is due."""
        facts = {"compile_seconds": seconds, **self._facts}
        return self._note(key, "compile", "written", facts, seconds)

    def _note(
        self, key: str, kind: str, outcome: str, facts: "dict[str, Any]", seconds: float = 0.0
    ) -> bool:
        with self._lock:
            if len(self._outcomes) < _MAX_EVENTS:
                self._outcomes.setdefault(key, (outcome, seconds))
            self._events.add(ledger.Event(key, kind, time.time_ns(), facts))
            return time.monotonic() > self._due or len(self._events) >= _MAX_EVENTS

    def take(self) -> "list[ledger.Event]":
        """Return the events that were noted, and forget them."""
        with self._lock:
            events = self._events
            self._events = ledger.EventFold()
            self._due = time.monotonic() + _FLUSH_SECONDS
        return [*events.events()]

    def flush(self) -> None:
        """Write one segment with all that was noted.

        Raises:
            OSError: the directory cannot be written; the events are dropped.
        """
        events = self.take()
        if not events:
            return
        name = f"{time.time_ns():020d}-{os.urandom(8).hex()}.jsonl"
        with own_directory_of(self._root, "ledger") as directory:
            write_whole(directory, name, b"".join(ledger.segment_line(e.to_json()) for e in events))

    def record_run(self) -> None:
        """Add this run to the history of its program, without what only a listener knows.

        Raises:
            OSError: the directory cannot be written.
        """
        if not self._outcomes or _is_observed():
            return
        # Of no use before the program ends.
        from ..core import runs
        from ..core.remote import hide_secrets
        from ..core.seams import changed_settings, current_settings
        from ..core.sketching import hash_seed

        settings: dict[str, list[Any]] = {}
        with contextlib.suppress(Exception):  # a JAX whose registry of settings is another
            changed = changed_settings(current_settings(), are_defaults_known=False)
            settings = {name: [*one] for name, one in changed.items()}
        run = runs.Run(
            at=self._began_at,
            program=self._program.name,
            argv=runs.hide_values(hide_secrets(self._argv)[1:], runs.read_salt(self._root)),
            hash_seed=hash_seed(),
            versions={n: self._facts.get(f"{n}_version", "") for n in ("jax", "jaxlib")},
            machine={},
            settings=settings,
            xla_flags=tuple(sorted(os.environ.get("XLA_FLAGS", "").split())),
            cache_path="",
            sources={},
            rows=tuple(
                runs.CompileRow(key[:-65], key, outcome, seconds=round(seconds, 6))
                for key, (outcome, seconds) in self._outcomes.items()
            ),
        )
        runs.record_run(self._root, runs.identify(self._program.place), run)


def _is_observed() -> bool:
    """Return whether a listener of this process records the run."""
    modules = (sys.modules.get(f"{name}.injected.listener") for name in ("jaxcache", "_jaxcache"))
    return any(getattr(module, "LISTENER", None) is not None for module in modules)


def compact(root: str) -> None:
    """Make one segment of many, unless another process is at it.

    Only segments of this user count: what others wrote stays theirs.

    Raises:
        OSError: the directory cannot be read or changed.
    """
    with own_directory_of(root, "ledger", make=False) as directory:
        now_ns = time.time_ns()
        listed = os.listdir(directory)
        names = [n for n in listed if n.endswith(".jsonl") and not ledger.is_open(n, now_ns)]
        if sum(not ledger.is_compacted(n) for n in names) <= ledger.COMPACT_ABOVE:
            return
        with contextlib.suppress(OSError):  # of a compaction that was interrupted
            remove_if_abandoned(directory, _COMPACT_LOCK)
        with locked_name(directory, _COMPACT_LOCK):
            segments = list(_own_segments(directory, names))
            if sum(not ledger.is_compacted(s.name) for s in segments) <= ledger.COMPACT_ABOVE:
                return
            present = {
                n[: -len(CACHE_SUFFIX)] for n in os.listdir(root) if n.endswith(CACHE_SUFFIX)
            }
            parts = ledger.make_compaction(
                ledger.EventFold(segments), [s.name for s in segments], present
            )
            for name, lines in parts:
                write_whole(directory, name, b"".join(lines))
            for segment in segments:
                os.unlink(segment.name, dir_fd=directory)


def _own_segments(directory: int, names: "list[str]") -> "Iterator[ledger.Lines]":
    """Read segments of this user, as many as fit into a moment's work."""
    size_bytes = 0
    for name in sorted(names):
        try:
            data, status = read_entry(name, _MAX_COMPACTED_BYTES, directory=directory)
        except OSError:
            continue  # too large, or compacted meanwhile
        size_bytes += len(data)
        if size_bytes > _MAX_COMPACTED_BYTES:
            return
        if status.st_uid == os.geteuid():
            yield ledger.read_lines(name, data)


def read_ledger(root: str) -> "dict[str, KnownUses]":
    """Return the facts of all segments, by key; damaged lines and segments are skipped.

    It is read again where the command line compacts it meanwhile: no pin may be overlooked.
    """
    for attempt in range(_ATTEMPTS):
        time.sleep(_PAUSE_SECONDS * attempt)
        missed: list[str] = []
        segments = [ledger.read_lines(name, data) for name, data, _ in _segments(root, missed)]
        if not missed:
            break
    fold = ledger.EventFold(segments)
    return {key: _known_uses(fold.kinds_of(key)) for key in fold}


def _known_uses(kinds: "Mapping[str, ledger.Event]") -> KnownUses:
    timed = [
        (event.at_ns, seconds)
        for event in kinds.values()
        if (seconds := ledger.read_seconds(event.facts.get("compile_seconds"))) is not None
    ]
    return KnownUses(
        seconds=max(timed)[1] if timed else None,
        hits=ledger.count_of(kinds["hit"].facts) if "hit" in kinds else 0,
        last_use_ns=max((kinds[k].at_ns for k in ("hit", "arrived") if k in kinds), default=None),
        compiled_ns=kinds["compile"].at_ns if "compile" in kinds else None,
        pinned="pin" in kinds,
    )


class LedgerDigest(NamedTuple):
    """The SHA-256 of a payload that the ledger has, and the file that it was taken of."""

    sha256: str
    at_ns: int
    file: "tuple[Any, Any, Any]"
    """Time, size and inode."""

    def is_of(self, status: os.stat_result) -> bool:
        """Whether it was taken of this very file, so that other bytes are damage."""
        same = self.file == (status.st_mtime_ns, status.st_size, status.st_ino)
        return same and is_own_or_roots(status.st_uid)


def read_digests(root: str) -> "dict[str, list[LedgerDigest]]":
    """Return the digests that this user, or root, recorded in this cache, by key.

    Digests of other users and of other caches count for nothing: they neither accuse an entry nor
    prove one.
    """
    latest_ns = time.time_ns() + ledger.MAX_AHEAD_NS
    digests: dict[str, list[LedgerDigest]] = {}
    for name, data, owner in _segments(root, []):
        if not is_own_or_roots(owner):
            continue
        lines = (line for line in data.split(b"\n") if b'"payload_sha256"' in line)
        for event in ledger.read_lines(name, b"\n".join(lines)).events:
            get = event.facts.get
            digest = get("payload_sha256")
            if isinstance(digest, str) and event.at_ns <= latest_ns and not get(ledger.IMPORTED):
                file = (get("file_mtime_ns"), get("file_size_bytes"), get("file_inode"))
                record = LedgerDigest(digest, event.at_ns, file)
                digests.setdefault(event.key, []).append(record)
    return digests


def _segments(root: str, missed: "list[str]") -> "Iterator[tuple[str, bytes, int]]":
    """Yield name, content and owner of each segment that can be read, the oldest first.

    Args:
        missed: receives the names of segments that came or went meanwhile.
    """
    with contextlib.suppress(OSError), own_directory_of(root, "ledger", make=False) as directory:
        read_bytes = 0
        names = [n for n in os.listdir(directory) if n.endswith(".jsonl")]
        for name in sorted(names):
            try:
                data, status = read_entry(name, _MAX_SEGMENT_BYTES, directory=directory)
            except FileNotFoundError:
                missed.append(name)
                continue
            except OSError:
                continue
            read_bytes += len(data)
            if read_bytes > ledger.MAX_LEDGER_BYTES:
                report_once(f"{root}: its ledger is too large, and the end of it is ignored")
                return
            yield name, data, status.st_uid
        now = (n for n in os.listdir(directory) if n.endswith(".jsonl"))
        missed += (n for n in now if "-c" in n and n not in names)


#: The most uses of a day that a client reports, the latest first.
_MAX_LINES = 8_192
_MAX_BYTES = 4 << 20
_DIRECTORY = "shared"


class SharedUses(UseLog):
    """The uses of this process, for the tiers of one directory."""

    def __init__(self, root: str) -> None:
        super().__init__(root, {})
        client = f"{socket.gethostname()}\0{os.path.abspath(root)}\0{os.getuid()}"
        self._client = hashlib.sha256(client.encode()).hexdigest()[:16]

    def segment(self) -> "tuple[str, bytes] | None":
        """The name and the content of today's segment; None where this process adds nothing.

        Raises:
            OSError: the directory cannot be written.
        """
        events = self.take()
        if not events:
            return None
        name = ledger.day_segment(time.time_ns() // ledger.DAY_NS, self._client)
        with own_directory_of(self._root, "live", _DIRECTORY) as directory:
            data = read_file(name, _MAX_BYTES, directory=directory)
            fold = ledger.EventFold()
            fold.add_all([*ledger.read_lines(name, data or b"").events, *events])
            lines = [ledger.segment_line(event.to_json()) for event in fold.events()][-_MAX_LINES:]
            data = b"".join(lines)
            write_whole(directory, name, data)
            for other in os.listdir(directory):
                if other != name and other.endswith(".jsonl"):
                    with contextlib.suppress(OSError):
                        os.unlink(other, dir_fd=directory)
        return f"{LEDGER_DIR}/{name}", data
