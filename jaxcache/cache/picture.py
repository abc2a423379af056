"""Everything that a report of a cache draws, gathered in one scan."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from jaxcache.cache.explain.churn import Churn, find_churn
from jaxcache.cache.prune.foresight import Step, foresee
from jaxcache.cache.prune.removable import Lookup, total_bytes
from jaxcache.cache.scan import Progress, scan
from jaxcache.eviction import POLICIES
from jaxcache.model import Entry, Problem
from jaxcache.store.base import Store

if TYPE_CHECKING:
    from jaxcache.cache.index import Index

#: Modules whose churn is explained: finding a cause decodes several entries of each.
_EXPLAINED_MODULES = 15


@dataclass(frozen=True, slots=True)
class Picture:
    """A cache as a report shows it."""

    cache_dir: str
    made_ns: int
    directory_bytes: int
    entries: tuple[Entry, ...]
    """The largest first; with the ledger's exact compile seconds where it has them."""
    exact: frozenset[str]
    """Keys whose seconds were measured, not read from a header of whole seconds."""
    problems: tuple[Problem, ...]
    foresight: tuple[tuple[str, tuple[Step, ...]], ...]
    """By policy: what pruning to smaller and smaller sizes would drop."""
    churn: tuple[Churn, ...]


def take_picture(
    store: Store,
    *,
    now_ns: int,
    lookup: Lookup | None = None,
    index: "Index | None" = None,
    workers: int = 1,
    progress: Progress | None = None,
) -> Picture:
    """Look at a cache for a report.

    Args:
        lookup: the ledger.
        index: see :func:`jaxcache.cache.scan.scan`.

    Raises:
        NoCacheError
    """
    seen = scan(store, deep=True, details=True, index=index, workers=workers, progress=progress)
    if index is not None:
        index.save(file.info.name for file in seen.inventory.entries)
    entries, exact = [], set()
    for entry in sorted(seen.entries, key=lambda e: (-e.size_bytes, e.key)):
        known = lookup(entry.key) if lookup else None
        if known and known.compile_seconds is not None:
            exact.add(entry.key)
        entries.append(entry)
    return Picture(
        cache_dir=store.url,
        made_ns=now_ns,
        directory_bytes=total_bytes(seen),
        entries=tuple(entries),
        exact=frozenset(exact),
        problems=seen.problems,
        foresight=tuple(
            (policy, foresee(seen, policy, lookup=lookup, now_ns=now_ns)) for policy in POLICIES
        ),
        churn=find_churn(store, explained=_EXPLAINED_MODULES, seen=seen),
    )
