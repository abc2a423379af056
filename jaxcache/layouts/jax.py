"""Operations on a cache of JAX with an index, a ledger or a choice that others lack."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxcache.store.base import Store

if TYPE_CHECKING:
    from jaxcache.cache.bundle.export import ExportPlan
    from jaxcache.cache.diff import Side
    from jaxcache.cache.explain.sides import Explanation
    from jaxcache.cache.index import Index
    from jaxcache.cache.prune.plan import PrunePlan
    from jaxcache.cache.show import Shown
    from jaxcache.options import PruneOptions


def _load(folder: Path | None, store: Store, now_ns: int, *, wanted: bool) -> "Index | None":
    if not (folder and wanted):
        return None
    from jaxcache.cache.index import Index

    return Index.load(folder, store.url, now_ns=now_ns)


def plan_prune(
    store: Store,
    options: "PruneOptions",
    *,
    index_folder: Path | None,
    now_ns: int,
    **rest: Any,
) -> "PrunePlan":
    """See :func:`jaxcache.cache.prune.survey.plan_cache_prune`.

    The index only saves requests: the headers of local files are as cheap to read.
    """
    from jaxcache.cache.ledger.segments import Ledger
    from jaxcache.cache.prune.survey import plan_cache_prune

    ledger = Ledger.load(store)
    index = _load(index_folder, store, now_ns, wanted=store.remote)
    lookup = ledger.record if ledger else None
    return plan_cache_prune(store, options, lookup=lookup, now_ns=now_ns, index=index, **rest)


def plan_removal(
    store: Store,
    keys: Sequence[str],
    *,
    index_folder: Path | None,  # noqa: ARG001 - the plan reads headers, which is as cheap
    **rest: Any,
) -> "PrunePlan":
    """See :func:`jaxcache.cache.prune.survey.plan_cache_removal`."""
    from jaxcache.cache.ledger.segments import Ledger
    from jaxcache.cache.prune.survey import plan_cache_removal

    ledger = Ledger.load(store)
    return plan_cache_removal(store, keys, lookup=ledger.record if ledger else None, **rest)


def plan_export(store: Store, *, since: "Side | None", **rest: Any) -> "ExportPlan":
    """See :func:`jaxcache.cache.bundle.export.plan_export`."""
    from jaxcache.cache.bundle import export
    from jaxcache.cache.diff import known_in

    known = known_in(since) if since else None
    return export.plan_export(store, since=since.reference if since else None, known=known, **rest)


def show(store: Store, wanted: str, *, is_file: bool) -> "Sequence[Shown]":
    """Decode the entries that a KEY means, or one file."""
    from jaxcache.cache.show import show_entries, show_file

    return [show_file(store, wanted)] if is_file else list(show_entries(store, wanted))


def explain(store: Store, keys: Sequence[str]) -> "Explanation":
    """Compare two keys, or one with the nearest other one of its module."""
    from jaxcache.cache.explain.given import explain_given

    return explain_given(keys, store.url)
