"""Watch a cache in use: what is new, what was hit, what went, one look after the other.

A look lists the directory and opens only what is new or has changed. JAX dates a use in an
entry's ``-atime`` file (``jax/_src/lru_cache.py``: always up to 0.5.0, then under a size cap
only); ``jaxcache run`` and ``warm`` put hits into the ledger while they run. Other uses do not
show, and those between two looks count as one.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from jaxcache.cache.inventory import EntryFile, Inventory, take_inventory
from jaxcache.cache.ledger.record import TOO_QUICK
from jaxcache.cache.ledger.segments import Ledger
from jaxcache.cache.ledger.uses import Uses, count_uses, live_totals
from jaxcache.cache.listing import Summary, summarize
from jaxcache.cache.scan import ScanAids, make_rule, read_entries, with_ledger
from jaxcache.core.names import LEDGER_DIR
from jaxcache.core.use import LastUses
from jaxcache.entry.names import FileKind
from jaxcache.model import Entry, FileInfo, Progress
from jaxcache.store.base import Store, same_file

if TYPE_CHECKING:
    from jaxcache.cache.index import Index

ChangeKind = Literal["new", "hit", "gone"]
#: JAX writes an entry in place: one that grew so lately may not be whole.
_SETTLED_NS = 1_000_000_000
#: A ledger that grew so lately belongs to a program that is running; it adds every 2 s.
_RECENT_NS = 10_000_000_000


@dataclass(frozen=True, slots=True)
class Change:
    """Something that happened to one entry between two looks."""

    kind: ChangeKind
    at_ns: int
    """By the file's own date; for removed files, the time of the look."""
    entry: Entry


@dataclass(frozen=True, slots=True)
class CacheSnapshot:
    """A cache at one moment."""

    cache_dir: str
    total: Summary
    changes: tuple[Change, ...]
    """Since the look before, in the order of time; none in the first of a cache that was there."""
    dates_uses: bool
    """Whether there are ``-atime`` files, without which only hits in the ledger show."""
    live: dict[str, int | float] | None = None
    """All counts of the live layer (:func:`jaxcache.cache.ledger.uses.live_totals`)."""
    records_uses: bool = False
    """Whether ``run`` or ``warm`` has added to the ledger since the first look, or just before."""
    uses: Uses | None = None
    """What the ledger has recorded since the first look; None while it records nothing."""
    timed: tuple[Entry, ...] = ()
    """Entries whose compile seconds in the ledger have changed since the last look."""
    too_quick: int = 0
    """Compiles since the first look that JAX's threshold of seconds kept from being written, by the
    ledger."""


class Watcher:
    """Looks at one cache again and again.

    Args:
        from_empty: it was not there a moment ago, so all that the first look sees is new.
    """

    def __init__(self, store: Store, *, from_empty: bool = False) -> None:
        self._store = store
        self._entries: dict[str, Entry] = {}
        self._files: dict[str, FileInfo] = {}
        self._uses: dict[str, FileInfo] = {}
        self._hit_ns: dict[str, int] = {}
        self._segments: list[FileInfo] = []
        self._ledger = Ledger()
        self._started = from_empty
        self._recording = False
        self._too_quick = self._too_quick_before = 0
        self._uses_now = Uses()
        self._uses_before = Uses()

    @property
    def entries(self) -> tuple[Entry, ...]:
        """The entries of the last look."""
        return tuple(self._entries.values())

    @property
    def has_record(self) -> bool:
        """Whether the last look found a ledger."""
        return bool(self._ledger)

    def look(
        self,
        *,
        now_ns: int,
        index: "Index | None" = None,
        workers: int = 1,
        progress: Progress | None = None,
    ) -> CacheSnapshot:
        """Look at the cache, and return what happened since the last look.

        Args:
            index: spares opening entries at the first look (:func:`jaxcache.cache.scan.scan`).

        Raises:
            NoCacheError: the directory cannot be listed.
        """
        inventory = take_inventory(self._store)
        changes = self._gone(inventory, now_ns)
        changed = [f for f in inventory.entries if self._is_news(f, now_ns)]
        aids = ScanAids(index, workers, progress)
        rule = make_rule(self._store, inventory)
        read, _ = read_entries(self._store, changed, inventory.atimes, aids, rule=rule)
        infos = {f.info.name: f.info for f in changed}
        learnt = self._read_ledger(inventory)
        if learnt:
            newest_ns = max((s.mtime_ns for s in self._segments), default=0)
            self._recording |= self._started or now_ns - newest_ns < _RECENT_NS
            quick = (e.count for e in self._ledger.events() if e.kind == TOO_QUICK)
            self._too_quick = sum(quick)
            self._uses_now = count_uses(self._ledger)
            if not self._started:
                self._too_quick_before = self._too_quick
                self._uses_before = self._uses_now
        for entry in with_ledger(read, self._ledger, rule):
            self._entries[entry.file], self._files[entry.file] = entry, infos[entry.file]
            changes.append(Change("new", entry.created_ns, entry))
        timed = self._timed(rule) if learnt else ()
        changes += self._hits(inventory, {e.file for e in read})
        if learnt:
            changes += self._hits_in_ledger(rule)
        self._uses = inventory.atimes
        first = not self._started
        self._started = True
        return CacheSnapshot(
            cache_dir=self._store.url,
            total=summarize(self._entries.values()),
            changes=() if first else tuple(sorted(changes, key=lambda c: c.at_ns)),
            dates_uses=bool(inventory.atimes),
            live=live_totals(self._store) if FileKind.OWN in inventory.directories else None,
            records_uses=self._recording,
            uses=self._uses_now.since(self._uses_before) if self._recording else None,
            timed=timed,
            too_quick=max(0, self._too_quick - self._too_quick_before),
        )

    def _is_news(self, file: EntryFile, now_ns: int) -> bool:
        earlier = self._files.get(file.info.name)
        if earlier is not None and same_file(file.info, earlier):
            return False
        return not self._started or now_ns - file.info.mtime_ns >= _SETTLED_NS

    def _gone(self, inventory: Inventory, now_ns: int) -> list[Change]:
        here = {f.info.name for f in inventory.entries}
        gone = [name for name in self._entries if name not in here]
        for name in gone:
            del self._files[name]
        return [Change("gone", now_ns, self._entries.pop(name)) for name in gone]

    def _hits(self, inventory: Inventory, fresh: set[str]) -> list[Change]:
        """Entries whose ``-atime`` file was written again; writing an entry dates it, too."""
        hits = []
        for file in inventory.entries:
            now = inventory.atimes.get(file.key_text)
            then = self._uses.get(file.key_text)
            entry = self._entries.get(file.info.name)
            if now and then and entry and file.info.name not in fresh and not same_file(now, then):
                hits.append(Change("hit", now.mtime_ns, entry))
                self._hit_ns[entry.key] = now.mtime_ns
        return hits

    def _read_ledger(self, inventory: Inventory) -> bool:
        """Read the ledger again if it has changed since the last look."""
        if FileKind.OWN not in inventory.directories:
            return False
        segments = sorted(self._store.list(LEDGER_DIR))
        changed = segments != self._segments
        if changed:
            self._segments = segments
            self._ledger = Ledger.load(self._store)
        return changed

    def _timed(self, rule: LastUses) -> tuple[Entry, ...]:
        """Take over the compile seconds that the ledger has learnt since the last look."""
        entries = with_ledger(list(self._entries.values()), self._ledger, rule)
        changed = [e for e in entries if e != self._entries[e.file]]
        self._entries.update((e.file, e) for e in changed)
        return tuple(changed)

    def _hits_in_ledger(self, rule: LastUses) -> list[Change]:
        """Entries with a hit that no ``-atime`` file has shown already."""
        hits = []
        for file, entry in self._entries.items():
            record = self._ledger.record(entry.key)
            hit_ns = record.last_hit_ns if record else None
            if hit_ns is None or hit_ns <= self._hit_ns.get(entry.key, 0):
                continue
            self._hit_ns[entry.key] = hit_ns
            if self._started:
                (entry,) = with_ledger([entry], self._ledger, rule)
                self._entries[file] = entry
                hits.append(Change("hit", hit_ns, entry))
        return hits
