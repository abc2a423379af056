"""Operations on a cache of JAX with an index, a ledger or a choice that others lack."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from jaxcache.store.base import Store

if TYPE_CHECKING:
    from jaxcache.cache.bundle.export import ExportPlan
    from jaxcache.cache.diff import Side
    from jaxcache.cache.explain.sides import Explanation
    from jaxcache.cache.show import Shown


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
