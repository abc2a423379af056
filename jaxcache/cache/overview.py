"""Everything that a report of a cache draws, gathered in one scan.

Among it a forecast of ``prune --max-size`` at many sizes, without planning each from the start.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from jaxcache.cache.explain.keys import Churn
from jaxcache.cache.files import counted_bytes
from jaxcache.cache.ledger.segments import Uses, count_uses
from jaxcache.cache.listing import ReadCache
from jaxcache.cache.prune.plan import plan_items
from jaxcache.cache.prune.removable import (
    Removal,
    count_entries,
    find_removable,
    freed_bytes,
    lost_compile_seconds,
    total_bytes,
    without_suffix,
)
from jaxcache.cache.scan import Scan
from jaxcache.core.eviction import choose_in_order, eviction_order
from jaxcache.entry.summary import Entry
from jaxcache.errors import JaxcacheError
from jaxcache.model import Depth, Problem
from jaxcache.options import POLICIES, PruneOptions

#: Modules whose churn is explained: finding a cause decodes several entries of each.
_EXPLAINED_MODULES = 15
#: Sizes that are forecast, and how many where each takes a whole plan.
_STEPS = 50
_UNIT_STEPS = 20
#: Removals that a step names.
_NAMED = 12


@dataclass(frozen=True, slots=True)
class SizeForecast:
    """The cost of pruning to one size."""

    max_size_bytes: int
    entries: int
    others: int
    """How many files are removed that do not belong to an entry."""
    freed_bytes: int
    lost_compile_seconds: float
    costliest: tuple[Removal, ...]
    """The removed entries that took longest to compile."""


@dataclass(frozen=True, slots=True)
class Overview:
    """A cache as a report shows it."""

    cache_dir: str
    made_ns: int
    directory_bytes: int
    entries: tuple[Entry, ...]
    """The largest first; with the ledger's exact compile seconds where it has them."""
    exact: frozenset[str]
    """Keys whose seconds were measured, not read from a header of whole seconds."""
    problems: tuple[Problem, ...]
    forecasts: tuple[tuple[str, tuple[SizeForecast, ...]], ...]
    """By policy: what pruning to smaller and smaller sizes would drop."""
    churn: tuple[Churn, ...]
    uses: Uses


def make_overview(cache: ReadCache) -> Overview:
    """Look at a cache for a report.

    Raises:
        NoCacheError
    """
    layout = cache.layout
    now_ns = cache.now_ns
    scan_result: Any = cache.scan(Depth.DECODED)
    alone = layout.single_file_entries
    ledger = scan_result.ledger if alone else None
    records = [ledger.record(entry.key) for entry in scan_result.entries] if ledger else []
    exact = frozenset(k.key for k in records if k and k.compile_seconds is not None)
    return Overview(
        cache_dir=cache.store.url,
        made_ns=now_ns,
        directory_bytes=total_bytes(scan_result)
        if alone
        else counted_bytes(scan_result.inventory.files()),
        entries=tuple(sorted(scan_result.entries, key=lambda e: (-e.size_bytes, e.key))),
        exact=exact,
        problems=scan_result.problems,
        forecasts=tuple(
            (policy, forecast_sizes(scan_result, policy, now_ns=now_ns))
            if alone
            else (policy, _forecast_units(cache, scan_result, policy))
            for policy in POLICIES
        ),
        churn=layout.explains.find_churn(
            cache.store, explained=_EXPLAINED_MODULES, scan_result=scan_result
        ),
        uses=count_uses(ledger) if ledger else Uses(),
    )


def _forecast_units(cache: ReadCache, scan_result: Any, policy: str) -> tuple[SizeForecast, ...]:
    """Plan as ``prune`` would at some sizes, where entries go together with what they share."""
    options = PruneOptions(max_size_bytes=1, policy=policy, grace_seconds=0)
    removable = cache.layout.removals.find_removable(
        cache.store, scan_result, options, now_ns=cache.now_ns, keep=()
    )
    forecasts = []
    for number in range(_UNIT_STEPS, -1, -1):
        bound = removable.size_bytes * number // _UNIT_STEPS
        try:
            plan = plan_items(
                copy.deepcopy(removable),
                options.replace(max_size_bytes=bound),
                cache_dir=cache.store.url,
                now_ns=cache.now_ns,
            )
        except JaxcacheError:  # files that may not go alone are more
            break
        forecasts.append(_forecast(bound, plan.removals))
    return tuple(forecasts)


def forecast_sizes(scan_result: Scan, policy: str, *, now_ns: int) -> tuple[SizeForecast, ...]:
    """Plan what a policy would remove at evenly spaced sizes, from the whole cache down to nothing.

    Args:
        scan_result: a deep scan with headers. Sizes that cannot be reached because of files that
            are not entries, or of pins, are left out.
    """
    options = PruneOptions(max_size_bytes=1, policy=policy, grace_seconds=0)  # as it will be soon
    removable = find_removable(None, scan_result, options, now_ns=now_ns)
    before = removable.size_bytes
    pool = {i.candidate.name: i for i in removable.items if i.held_by is None}
    discarded = sorted(n for n, i in pool.items() if i.removal.kind == "quarantine")
    entries = [i.candidate for i in pool.values() if i.removal.kind == "entry"]
    order = eviction_order(entries, policy, now_ns)
    forecasts = []
    for number in range(_STEPS, -1, -1):
        bound = before * number // _STEPS
        if bound < removable.fixed_bytes + removable.pinned_bytes:
            break
        excess = before - bound
        going = []
        for _, together in groupby(discarded, without_suffix):  # the oldest first, as in prune
            if excess > 0:
                items = [pool[name] for name in together]
                going += [i.removal for i in items]
                excess -= freed_bytes(i.removal for i in items)
        if excess > 0:
            chosen = choose_in_order(order, excess, policy, now_ns)
            going += [pool[c.name].removal for c in chosen]
        forecasts.append(_forecast(bound, going))
    return tuple(forecasts)


def _forecast(bound_bytes: int, removals: Sequence[Removal]) -> SizeForecast:
    entries = count_entries(removals)
    costliest = sorted(
        (r for r in removals if r.kind == "entry"),
        key=lambda r: (-(r.compile_seconds or 0.0), -r.size_bytes),
    )
    return SizeForecast(
        max_size_bytes=bound_bytes,
        entries=entries,
        others=len(removals) - entries,
        freed_bytes=freed_bytes(removals),
        lost_compile_seconds=lost_compile_seconds(removals),
        costliest=tuple(costliest[:_NAMED]),
    )
