"""Forecast ``prune --max-size`` at many sizes, without planning each from the start."""

from collections.abc import Sequence
from dataclasses import dataclass

from jaxcache.cache.prune.removable import Lookup, removable_entries, total_bytes
from jaxcache.cache.prune.removal import Removal, freed_bytes, lost_compile_seconds
from jaxcache.cache.scan import Scan
from jaxcache.eviction import choose_in_order, eviction_order

#: The default of ``prune --grace``.
_GRACE_SECONDS = 60.0
#: Removals that a step names.
_NAMED = 12


@dataclass(frozen=True, slots=True)
class Step:
    """The cost of pruning to one size."""

    max_size_bytes: int
    entries: int
    freed_bytes: int
    lost_compile_seconds: float
    costliest: tuple[Removal, ...]
    """Of what goes, what took longest to compile."""


def foresee(
    seen: Scan, policy: str, *, steps: int = 50, lookup: Lookup | None = None, now_ns: int
) -> tuple[Step, ...]:
    """Tell what a policy would drop at evenly spaced sizes, from all of the cache down to nothing.

    Args:
        seen: a deep scan with heads.
        steps: how many sizes; those that cannot be reached because of files that are no entries
            are left out.
        lookup: the ledger.
    """
    items = list(
        removable_entries(seen, now_ns=now_ns, grace_seconds=_GRACE_SECONDS, lookup=lookup)
    )
    before = total_bytes(seen)
    fixed = before - sum(i.removal.size_bytes for i in items)
    free = {i.candidate.name: i.removal for i in items if not i.protected}
    candidates = [i.candidate for i in items if not i.protected]
    order = eviction_order(candidates, policy, now_ns)
    found = []
    for number in range(steps, -1, -1):
        bound = before * number // steps
        if bound < fixed:
            break
        chosen = choose_in_order(order, before - bound, policy) if bound < before else []
        found.append(_step(bound, [free[c.name] for c in chosen]))
    return tuple(found)


def _step(bound_bytes: int, removals: Sequence[Removal]) -> Step:
    costliest = sorted(removals, key=lambda r: (-(r.compile_seconds or 0.0), -r.size_bytes))
    return Step(
        max_size_bytes=bound_bytes,
        entries=len(removals),
        freed_bytes=freed_bytes(removals),
        lost_compile_seconds=lost_compile_seconds(removals),
        costliest=tuple(costliest[:_NAMED]),
    )
