"""Scan as deeply as a plan needs, then plan."""

from collections.abc import Sequence
from pathlib import Path

from jaxcache.cache.prune.plan import PrunePlan
from jaxcache.cache.scan import Progress
from jaxcache.cache.select import REMOVAL_PREFIX, select_by_keys
from jaxcache.layouts.torch.links import Links, link
from jaxcache.layouts.torch.prune import plan_graph_prune, plan_graph_removal
from jaxcache.layouts.torch.scan import GraphIndex, Scan, scan
from jaxcache.options import PruneOptions
from jaxcache.store.base import Store


def plan_prune(
    store: Store,
    options: PruneOptions,
    *,
    keep: Sequence[str],
    index_folder: Path | None,
    now_ns: int,
    workers: int = 1,
    progress: Progress | None = None,
) -> PrunePlan:
    """Plan what a cache can do without.

    Raises:
        NoCacheError, UsageError
        JaxcacheError: a KEY of ``keep`` fits nothing, or more than it may.
    """
    options.check()
    seen, links = _survey(store, index_folder, now_ns, workers, progress)
    kept = {e.key for e in select_by_keys(seen.entries, keep)} if keep else frozenset[str]()
    return plan_graph_prune(seen, links, options, cache_dir=store.url, now_ns=now_ns, keep=kept)


def plan_removal(
    store: Store,
    keys: Sequence[str],
    *,
    index_folder: Path | None,
    now_ns: int,
    workers: int = 1,
    progress: Progress | None = None,
) -> PrunePlan:
    """Plan to remove the graphs that KEY arguments name.

    Raises:
        NoCacheError
        UsageError: ``short-prefix``.
        JaxcacheError: ``no-match`` or ``ambiguous-key``.
    """
    seen, links = _survey(store, index_folder, now_ns, workers, progress)
    chosen = select_by_keys(seen.entries, keys, shortest_prefix=REMOVAL_PREFIX)
    return plan_graph_removal(seen, links, chosen, cache_dir=store.url, now_ns=now_ns)


def _survey(
    store: Store,
    index_folder: Path | None,
    now_ns: int,
    workers: int,
    progress: Progress | None,
) -> tuple[Scan, Links]:
    index = GraphIndex.load(index_folder, store.url, now_ns=now_ns) if index_folder else None
    seen = scan(store, index=index, workers=workers, progress=progress)
    if index is not None:
        index.save(g.info.name for g in seen.inventory.graphs)
    return seen, link(store, seen.inventory, seen.facts)
