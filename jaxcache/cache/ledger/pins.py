"""Pins: entries that only their own name removes. They live in the cache's ledger."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from jaxcache.cache.ledger.record import PIN, UNPIN, Event
from jaxcache.cache.ledger.segments import Ledger
from jaxcache.cache.ledger.write import append
from jaxcache.cache.scan import NO_AIDS
from jaxcache.cache.selection import fits_key, select_by_keys
from jaxcache.core.ledger import PINNING
from jaxcache.errors import JaxcacheError
from jaxcache.store.base import Store

if TYPE_CHECKING:
    from jaxcache.layouts.base import Layout


def pinned_keys(ledger: Ledger) -> list[str]:
    """Every pinned key, whether or not its entry is there, sorted."""
    return sorted(k for k in ledger if (record := ledger.record(k)) and record.pinned)


def pin(store: Store, layout: "Layout", keys: Sequence[str], *, now_ns: int) -> list[str]:
    """Pin the entries that KEY arguments name and return their full keys, sorted.

    Raises:
        JaxcacheError: ``no-match``, ``ambiguous-key`` or ``read-only``.
    """
    scan_result = layout.scans.scan(store, NO_AIDS, headers=False, details=False, deep=False)
    chosen = sorted({e.key for e in select_by_keys(scan_result.entries, keys)})
    _record(store, chosen, PIN, now_ns)
    return chosen


def unpin(store: Store, keys: Sequence[str], *, now_ns: int) -> list[str]:
    """Unpin what KEY arguments name among the pinned keys; return their full keys, sorted.

    Raises:
        JaxcacheError: ``not-pinned`` or ``read-only``.
    """
    pinned = pinned_keys(Ledger.load(store))
    chosen = sorted({key for text in keys for key in _match(pinned, text)})
    _record(store, chosen, UNPIN, now_ns)
    return chosen


def _match(pinned: Sequence[str], text: str) -> list[str]:
    """Pins by full key, or all that the text fits."""
    matches = [k for k in pinned if k == text] or [k for k in pinned if fits_key(k, text)]
    if not matches:
        raise JaxcacheError(
            f"no pinned entry matches {text!r}",
            code="not-pinned",
            hint="jaxcache pin lists the pins",
        )
    return matches


def _record(store: Store, keys: Sequence[str], kind: str, now_ns: int) -> None:
    """Write it down as later than what was said before, whatever the clock has done since."""
    last_ns = {e.key: e.at_ns for e in Ledger.load(store).events() if e.kind in PINNING}
    at_ns = {key: max(now_ns, last_ns.get(key, -1) + 1) for key in keys}
    if not append(store, [Event(key, kind, at_ns[key]) for key in keys]):
        raise JaxcacheError(
            f"the ledger of {store.url} cannot be written",
            code="read-only",
            hint="name keys to be kept with prune --keep instead",
        )
