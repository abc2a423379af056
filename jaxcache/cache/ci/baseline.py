"""The state of a cache before the job ran, kept in ``.jaxcache/ci.json`` until it is over."""

import json
import os
import tempfile
from dataclasses import dataclass, field, fields
from typing import Literal, NamedTuple

from jaxcache.cache.inventory import EntryFile, Inventory, take_inventory
from jaxcache.cache.ledger.segments import Ledger
from jaxcache.cache.ledger.uses import count_uses
from jaxcache.cache.untrusted_json import ManyNamed, Seconds, build, parse_json
from jaxcache.core.names import OWN_DIR
from jaxcache.entry.names import FileKind
from jaxcache.model import FileInfo
from jaxcache.store.base import Store, StoreError

BASELINE = f"{OWN_DIR}/ci.json"
_MAX_BYTES = 256 << 20
#: JSON values take far more memory than their text; an entry is four of them.
_MAX_VALUES = 4 << 20
_DAY_NS = 86_400 * 10**9


class EntryBefore(NamedTuple):
    """One entry as it was; times are nanoseconds since the epoch."""

    mtime_ns: int
    atime_ns: int
    stamp_ns: int | None
    """Time of the last use as JAX dated it: that of the ``-atime`` file, or of the entry where that
    has no suffix (JAX 0.4.30 touches what it reads); None where it dates none."""

    @property
    def fresh(self) -> bool:
        """Return whether the next read shows, even if only the first of a day does (relatime)."""
        return self.atime_ns <= self.mtime_ns


@dataclass(frozen=True, slots=True)
class Baseline:
    """A cache right before a job."""

    started_ns: int
    source: str
    """The source it was restored from; empty if from nothing."""
    records_reads: bool
    """Whether a read of a file showed in its access time when that was tried here."""
    entries: ManyNamed[EntryBefore] = field(default_factory=dict)
    """By key."""
    saved_seconds: Seconds = 0.0
    """What hits had saved by then, as the ledger counts it."""
    format: Literal[1] = 1


def take_baseline(store: Store, *, source: str, now_ns: int) -> Baseline:
    """Look at a cache as it is now, and try whether reads will show."""
    inventory = take_inventory(store)
    entries = {}
    for file in inventory.entries:
        stamp = dating_file(file, inventory)
        info = file.info
        stamp_ns = stamp.mtime_ns if stamp else None
        entries[file.key_text] = EntryBefore(info.mtime_ns, info.atime_ns, stamp_ns)
    saved_seconds = count_uses(Ledger.load(store)).saved_seconds or 0.0
    return Baseline(now_ns, source, records_reads(store), entries, saved_seconds)


def dating_file(file: EntryFile, inventory: Inventory) -> FileInfo | None:
    """The file whose time JAX sets when it reads an entry; None where it sets none."""
    if file.kind is FileKind.LEGACY_ENTRY:
        return file.info
    return inventory.atimes.get(file.key_text)


def records_reads(store: Store) -> bool:
    """Try whether reading a file there changes its access time.

    Mount options do not tell: containers and network file systems have their own mind.
    """
    directory = getattr(store, "path", None)
    if directory is None or not store.writable:
        return False
    try:
        with tempfile.NamedTemporaryFile(prefix=".jaxcache-tmp-", dir=directory) as file:
            file.write(b"read me")
            file.flush()
            old_ns = os.fstat(file.fileno()).st_mtime_ns - 2 * _DAY_NS
            os.utime(file.name, ns=(old_ns, old_ns))
            with open(file.name, "rb") as reader:
                reader.read()
            return os.stat(file.name).st_atime_ns != old_ns
    except OSError:
        return False


def write_baseline(store: Store, baseline: Baseline) -> None:
    """Keep a baseline in the cache.

    Raises:
        StoreError
    """
    document = {f.name: getattr(baseline, f.name) for f in fields(baseline)}
    store.write(BASELINE, [json.dumps(document, separators=(",", ":")).encode()])


def read_baseline(store: Store) -> Baseline | None:
    """The baseline of a cache; None if it is missing or invalid."""
    try:
        data = store.read(BASELINE, limit=_MAX_BYTES)
        return build(Baseline, parse_json(data, ValueError, max_values=_MAX_VALUES))
    except (StoreError, ValueError):
        return None
