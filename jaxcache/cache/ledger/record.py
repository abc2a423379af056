"""The record that the events of one key fold into."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Any

from jaxcache.cache.untrusted_json import Scalar, Seconds, read_fields
from jaxcache.core.ledger import DIGEST_FACTS, PINNING, SUMS, count_of
from jaxcache.core.ledger import Event as Event
from jaxcache.core.system import is_own_or_roots
from jaxcache.model import FileInfo

#: Kinds of events, for which the facts named are usual; any event may carry any fact.
#:
#: * ``payload``: payload_sha256, and of which file: file_mtime_ns, file_size_bytes, file_inode
#: * ``compile``: count, compile_seconds, versions, components, script, function
#: * ``sketch``: sketch, of the program before optimization (``jaxcache/core/sketch.py``)
#: * ``hit``: count (1 if absent) more uses of the entry; saved_seconds, what a run found that
#:   ``timed`` of them saved; retrieval_seconds, of those that no run has timed otherwise
#: * ``miss``: count compiles that the cache did not serve and that were not written
#: * ``too-quick``: count compiles that JAX's threshold of seconds kept from being written
#: * ``sealed``: the entry was sealed then
#: * ``removed``: the file was removed, or moved to quarantine
#: * ``arrived``: the entry came from another place, where nothing recorded its uses
#: * ``pin``, ``unpin``: the later one counts
PAYLOAD = "payload"
COMPILE = "compile"
HIT = "hit"
SEALED = "sealed"
PIN = "pin"
UNPIN = "unpin"
TOO_QUICK = "too-quick"
REMOVED = "removed"
SKETCH = "sketch"
ARRIVED = "arrived"
MISS = "miss"


@dataclass(frozen=True, slots=True)
class LedgerRecord:
    """The knowledge of one key; None where the ledger has nothing."""

    key: str
    payload_sha256: str | None = None
    """64 hexadecimal digits over the payload: the decompressed entry without its 4-byte header.
    Seal and recompression leave it as it is."""
    file_mtime_ns: int | None = None
    file_size_bytes: int | None = None
    file_inode: int | None = None
    """Time, size and inode of the file that the digest was taken of. Any other file of this name
    was written since, and may rightly hold another payload."""
    compile_seconds: Seconds | None = None
    """Exact, where the entry itself holds whole seconds."""
    entry_bytes: int | None = None
    """The size of the entry as JAX wrote or read it, which JAX's cap counts."""
    jax_version: str | None = None
    jaxlib_version: str | None = None
    platform_version: str | None = None
    device_kind: str | None = None
    components: Mapping[str, str] | None = None
    """Hash of each key component by JAX's own name for it (``jax/_src/cache_key.py``)."""
    xla_flags: str | None = None
    key_settings: Mapping[str, Scalar] | None = None
    """The settings of JAX that its environment set and that act on keys."""
    device_count: int | None = None
    """Devices that its process had."""
    process_count: int | None = None
    """Processes of the program."""
    script: str | None = None
    function: str | None = None
    file: str | None = None
    """The file of the function."""
    run: str | None = None
    """The process that used it last."""
    sketch: str | None = None
    tuning: str | None = None
    """``untuned`` where the entry was compiled for a GPU that was not there, ``tuned`` where
    nothing had to be measured or a real host's measurements were at hand; None for all others."""
    tuning_mtime_ns: int | None = None
    tuning_size_bytes: int | None = None
    """Time and size of the file that ``tuning`` describes; it does not apply to a rewritten one."""
    hits: int = 0
    last_hit_ns: int | None = None
    arrived_ns: int | None = None
    """The last time that the entry came from another place, without a record of its use there."""
    compiled_ns: int | None = None
    sealed_ns: int | None = None
    removed_ns: int | None = None
    pinned: bool = False
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Facts that have no field of their own."""

    @property
    def last_used_ns(self) -> int:
        """The latest compile or hit that was recorded; 0 without any."""
        return max(self.last_hit_ns or 0, self.compiled_ns or 0)

    def digest_of(self, mtime_ns: int) -> str | None:
        """Return :attr:`payload_sha256`, unless the file was written after its removal.

        A file that is restored from quarantine keeps its time, so ``verify`` reports it again.
        """
        anew = self.removed_ns is not None and mtime_ns > self.removed_ns
        return None if anew else self.payload_sha256

    def is_of(self, info: FileInfo) -> bool:
        """Whether the digest was taken of this very file, and the file is the user's or root's."""
        recorded = (self.file_mtime_ns, self.file_size_bytes, self.file_inode)
        same = recorded == (info.mtime_ns, info.size_bytes, info.inode)
        return same and is_own_or_roots(info.owner)

    def tuning_of(self, mtime_ns: int, size_bytes: int) -> str | None:
        """Return :attr:`tuning`, if the entry's file is still the one that was written then.

        When the real host writes the entry again, JAX does not record it in the ledger, but the
        file's time and size change. A copy may have another time and a sealed file another size,
        but neither has both.
        """
        same = mtime_ns == self.tuning_mtime_ns or size_bytes == self.tuning_size_bytes
        return self.tuning if same else None


#: The field with the date of the last event, by its kind.
_DATES = {
    COMPILE: "compiled_ns",
    ARRIVED: "arrived_ns",
    SEALED: "sealed_ns",
    REMOVED: "removed_ns",
}
_DERIVED = {"hits", "last_hit_ns", "pinned", "extra", "key", *_DATES.values()}
_FACTS_OF_A_FILE = frozenset(f.name for f in fields(LedgerRecord)) - _DERIVED
_FACTS = _FACTS_OF_A_FILE - set(DIGEST_FACTS)
_NOT_EXTRA = frozenset({*(f.name for f in fields(LedgerRecord)), "count", *SUMS})


def fold(key: str, events: Iterable[Event]) -> LedgerRecord:
    """Fold the events of one key into what is known now."""
    facts: dict[str, Any] = {}
    extra: dict[str, Any] = {}
    for event in sorted(events, key=lambda e: e.at_ns):
        if event.kind == HIT:
            facts["hits"] = facts.get("hits", 0) + count_of(event.facts)
            facts["last_hit_ns"] = event.at_ns
        elif date := _DATES.get(event.kind):
            facts[date] = event.at_ns
        elif event.kind in PINNING:
            facts["pinned"] = event.kind == PIN
        elif event.kind == PAYLOAD:
            facts.pop("removed_ns", None)
        names = _FACTS
        if "payload_sha256" in event.facts:  # what describes the file comes with its digest
            for name in DIGEST_FACTS:
                facts.pop(name, None)
            names = _FACTS_OF_A_FILE
        facts |= read_fields(LedgerRecord, event.facts, names)
        extra |= {n: v for n, v in event.facts.items() if n not in _NOT_EXTRA}
    return LedgerRecord(key, **facts, extra=MappingProxyType(extra))


def digest_facts(payload_sha256: str, info: FileInfo) -> dict[str, Any]:
    """Return the facts that bind a digest to the very file that it was taken of."""
    return {
        "payload_sha256": payload_sha256,
        "file_mtime_ns": info.mtime_ns,
        "file_size_bytes": info.size_bytes,
        "file_inode": info.inode,
    }
