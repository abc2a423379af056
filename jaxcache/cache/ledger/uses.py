"""Hits and misses, as far as the ledger has recorded them."""

import json
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass
from math import inf

from jaxcache.cache.ledger.record import COMPILE, HIT
from jaxcache.cache.ledger.segments import Ledger
from jaxcache.core.live_directory import live_directory
from jaxcache.core.names import OWN_DIR
from jaxcache.core.refusals import MAX_RECORD_BYTES, RECORD, TierRefusal, read_record
from jaxcache.errors import JaxcacheError
from jaxcache.store.base import Store
from jaxcache.store.local import LocalStore
from jaxcache.units import format_compiling, format_count


@dataclass(frozen=True, slots=True)
class Uses:
    """The recorded uses of a cache; every field is None where nothing was recorded."""

    hits: int | None = None
    misses: int | None = None
    """Compiles whose result was written."""
    hit_rate: float | None = None
    """Hits over hits and misses."""
    saved_seconds: float | None = None
    """Compile seconds that the hits did not take."""

    def __str__(self) -> str:
        if self.hits is None or self.misses is None:
            return "hits not recorded (to record them: jaxcache run -- CMD)"
        of = f"{self.hits:,} of {format_count(self.hits + self.misses, 'compile')} hit"
        return f"{of}, saved {format_compiling(self.saved_seconds or 0.0, self.hits)}"


def count_uses(ledger: Ledger) -> Uses:
    """Sum up the hits and compiles of a ledger, those of entries that are gone included."""
    counts: defaultdict[str, dict[str, int]] = defaultdict(dict)
    for event in ledger.events():
        if event.kind in (HIT, COMPILE):
            counts[event.key][event.kind] = event.count
    if not counts and not ledger.totals:
        return Uses()
    # What compactions have left out is in their sums.
    hits = int(ledger.totals.get("hits", 0)) + sum(c.get(HIT, 0) for c in counts.values())
    misses = int(ledger.totals.get("compiles", 0))
    misses += sum(c.get(COMPILE, 0) for c in counts.values())
    saved = float(ledger.totals.get("saved_seconds", 0.0))
    for key, of_key in counts.items():
        record = ledger.record(key)
        saved += of_key.get(HIT, 0) * (record.compile_seconds or 0.0 if record else 0.0)
    return Uses(hits, misses, hits / (hits + misses) if hits + misses else None, saved)


def read_refusals(store: Store) -> tuple[TierRefusal, ...]:
    """Return what the live layer has refused from tiers, and what is still to be mended.

    The record is in the local directory; that of a bucket is the one that JAX puts before it.
    """
    with suppress(JaxcacheError, AttributeError):  # a bundle's store reads no other file
        local = LocalStore(live_directory(store.url)) if store.remote else store
        return read_record(local.read(f"{OWN_DIR}/{RECORD}", limit=MAX_RECORD_BYTES))
    return ()


def live_totals(store: Store) -> dict[str, int | float] | None:
    """Return the live layer's counts in this cache, by name; None where it has not been on."""
    try:
        counts = json.loads(store.read(f"{OWN_DIR}/live/totals", limit=1 << 16))
        known = {str(n): v for n, v in counts.items() if type(v) in (int, float) and 0 <= v < inf}
    except (JaxcacheError, OSError, ValueError, AttributeError, RecursionError):
        return None
    return {n: v if n.endswith("_seconds") else int(v) for n, v in sorted(known.items())}
