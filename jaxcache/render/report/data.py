"""An overview of a cache as the columns that the page's script draws."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

from jaxcache.cache.explain.churn import Churn
from jaxcache.cache.overview import Overview, SizeForecast
from jaxcache.cache.prune.removal import Removal
from jaxcache.model import Entry
from jaxcache.render.columns import removal_name
from jaxcache.render.typeset import SHOWN_HASH_DIGITS
from jaxcache.units import NS_PER_SECOND

#: Entries that are drawn one by one; the smallest beyond count in every sum all the same.
MOST_DRAWN = 20_000
_CHURN_ROWS = 40


class _Names:
    """Numbers names in the order in which they first come."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def number(self, name: str) -> int:
        """The number of a name."""
        return self._numbers.setdefault(name, len(self._numbers))

    def __iter__(self) -> Iterator[str]:
        return iter(self._numbers)


def page_data(overview: Overview, *, version: str) -> dict[str, Any]:
    """Return the data of the page's script: bytes, seconds, times in epoch seconds."""
    entries = overview.entries
    modules = _Names()
    platforms = _Names()
    drawn = entries[:MOST_DRAWN]
    return {
        "jaxcache": version,
        "cache_dir": overview.cache_dir,
        "made": overview.made_ns // NS_PER_SECOND,
        "totals": {
            "entries": len(entries),
            "size": sum(e.size_bytes for e in entries),
            "seconds": math.fsum(e.compile_seconds or 0.0 for e in entries),
            # The header's whole seconds, rounded down: a 0 is unknown unless recorded exactly.
            "unknown": sum(not e.compile_seconds and e.key not in overview.exact for e in entries),
            "directory": overview.directory_bytes,
            "sealed": sum(e.sealed for e in entries),
            "problems": len(overview.problems),
            "modules": len({e.module for e in entries}),
            "hits": overview.uses.hits,
            "misses": overview.uses.misses,
            "saved": overview.uses.saved_seconds,
        },
        "entries": {
            "hash": "".join(e.hash[:SHOWN_HASH_DIGITS] for e in drawn),
            "module": [modules.number(e.module or "(no module)") for e in drawn],
            "platform": [platforms.number(e.platform) for e in drawn],
            "size": [e.size_bytes for e in drawn],
            "seconds": [_seconds(e) for e in drawn],
            "exact": [n for n, e in enumerate(drawn) if e.key in overview.exact],
            "created": [e.created_ns // NS_PER_SECOND for e in drawn],
            "used": [e.last_used_ns // NS_PER_SECOND for e in drawn],
        },
        "undrawn": {
            "entries": len(entries) - len(drawn),
            "size": sum(e.size_bytes for e in entries[MOST_DRAWN:]),
        },
        "modules": list(modules),
        "platforms": list(platforms),
        "prune": {policy: _forecasts(steps) for policy, steps in overview.forecasts},
        "churn": [_churn(c) for c in overview.churn[:_CHURN_ROWS]],
    }


def _seconds(entry: Entry) -> float | None:
    return None if entry.compile_seconds is None else round(entry.compile_seconds, 3)


def _forecasts(steps: Sequence[SizeForecast]) -> list[dict[str, Any]]:
    return [
        {
            "bound": s.max_size_bytes,
            "entries": s.entries,
            "freed": s.freed_bytes,
            "lost": round(s.lost_compile_seconds, 3),
            "costliest": [_removal(r) for r in s.costliest],
        }
        for s in steps
    ]


def _removal(removal: Removal) -> list[Any]:
    """Name, bytes, seconds, last use."""
    return [
        removal_name(removal),
        removal.size_bytes,
        removal.compile_seconds,
        removal.last_used_ns // NS_PER_SECOND,
    ]


def _churn(churn: Churn) -> dict[str, Any]:
    return {
        "module": churn.module,
        "keys": churn.keys,
        "size": churn.size_bytes,
        "seconds": round(churn.compile_seconds, 3),
        "causes": [f"{c.component}: {c.meaning}" for c in churn.causes[:2]],
    }
