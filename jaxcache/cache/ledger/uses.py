"""Hits and misses, as far as the ledger has recorded them."""

import json
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from typing import NamedTuple

from jaxcache.cache.ledger.segments import Ledger
from jaxcache.core.ledger import add_totals, sum_uses
from jaxcache.core.names import OWN_DIR, live_directory
from jaxcache.core.refusals import MAX_RECORD_BYTES, RECORD, TierRefusal, read_record
from jaxcache.errors import JaxcacheError
from jaxcache.store.base import Store
from jaxcache.store.local import LocalStore
from jaxcache.units import format_compiling, format_count

#: Reasons of compile requests that are neither a hit nor a miss: the cache was not to serve them.
_NO_MISS = frozenset(
    {"verified", "same-hlo", "not-deterministic", "collected", "interrupted", "shared-by-process-0"}
)


def is_miss(outcome: str, reason: str, key: str | None) -> bool:
    """Whether a compile request is a miss: it has a key, and the cache did not serve it.

    JAX makes no key where its cache is off or the platform has none. What a guard refused was never
    compiled, and JAX counts no miss.
    """
    return key is not None and outcome not in ("hit", "refused") and reason not in _NO_MISS


def hit_rate(hits: int, misses: int) -> float | None:
    """Return hits over hits and misses; None without any."""
    return hits / (hits + misses) if hits + misses else None


@dataclass(frozen=True, slots=True)
class Uses:
    """The recorded uses of a cache; every field is None where nothing was recorded."""

    hits: int | None = None
    misses: int | None = None
    """Compiles that the cache did not serve, whether or not they were written."""
    hit_rate: float | None = None
    """Hits over hits and misses."""
    saved_seconds: float | None = None
    """Compile seconds of the hits less their retrieval; hits of one run at the same time count
    once."""

    def __str__(self) -> str:
        if self.hits is None or self.misses is None:
            return "hits not recorded"
        of = f"{self.hits:,} of {format_count(self.hits + self.misses, 'compile')} hit"
        return f"{of}, saved {format_compiling(self.saved_seconds or 0.0, self.hits)}"


def count_uses(ledger: Ledger) -> Uses:
    """Sum up the hits and misses of a ledger, those of entries that are gone included."""
    counted = add_totals(ledger.totals, sum_uses(e.to_json() for e in ledger.events()))
    if not counted:
        return Uses()
    hits = int(counted.get("hits", 0))
    misses = int(counted.get("misses", 0))
    return Uses(hits, misses, hit_rate(hits, misses), float(counted.get("saved_seconds", 0.0)))


class LiveStats(NamedTuple):
    """What the live layer has counted in a cache, and what it has refused."""

    totals: dict[str, int | float] | None
    """Its counts, by name; None where it has not been on."""
    refusals: tuple[TierRefusal, ...]
    """What it has refused from tiers, and what is still to be mended."""


def read_refusals(store: Store) -> tuple[TierRefusal, ...]:
    """Return what the live layer has refused from tiers, and what is still to be mended.

    The record is in the local directory; that of a bucket is the one that JAX puts before it.
    """
    # A bundle's store reads no other file; without a home directory there is no local one.
    with suppress(JaxcacheError, AttributeError, FileNotFoundError):
        local = LocalStore(live_directory(store.url)) if store.remote else store
        return read_record(local.read(f"{OWN_DIR}/{RECORD}", limit=MAX_RECORD_BYTES))
    return ()


def live_totals(store: Store) -> dict[str, int | float] | None:
    """Return the live layer's counts in this cache, by name; None where it has not been on."""
    try:
        counts = json.loads(store.read(f"{OWN_DIR}/live/totals", limit=1 << 16))
        totals = {str(n): v for n, v in counts.items() if type(v) in (int, float) and 0 <= v < inf}
    except (JaxcacheError, OSError, ValueError, AttributeError, RecursionError):
        return None
    return {n: v if n.endswith("_seconds") else int(v) for n, v in sorted(totals.items())}
