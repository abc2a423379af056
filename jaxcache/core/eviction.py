"""The order in which entries are removed to meet a bound: ``lru`` and ``cost``.

``lru`` is JAX's own order (``jax/_src/lru_cache.py``): the least recently used first, equal ones
by key.

``cost`` keeps the compile seconds most likely to be saved again per byte. Its core is the value
of GreedyDual-Size-Frequency, ``frequency × cost / size`` (L. Cherkasova, "Improving WWW Proxies
Performance with Greedy-Dual-Size-Frequency Caching Policy", HPL-98-69R1, 1998; after P. Cao and
S. Irani, "Cost-Aware WWW Proxy Caching Algorithms", USITS 1997). GreedyDual ages entries by a
clock that only a running cache can keep; a snapshot has none, so the value decays with the time
since the last use, as in hyperbolic caching (A. Blankstein, S. Sen, M. J. Freedman, "Hyperbolic
Caching", USENIX ATC 2017), on the cache's own time scale::

    value = compile_seconds / size_bytes * sqrt(1 + hits) / (age + median age + 5 minutes)

Entries that were unused for two weeks are removed first, then those unused for two days, of any
value: an entry that a team used yesterday, or uses every week, must not give way to one that was
once expensive.

The root, because old popularity fades where code is edited; the median, because a cache that is
swept through in a week and one that turns over in an hour need the same answer. Without a count
of hits, an entry that was read after the run that wrote it counts as 3 hits.
``docs/eviction.md`` shows how both fare on traces.
"""

from collections.abc import Callable, Iterable, Sequence
from math import inf, sqrt
from typing import Any, NamedTuple, TypeVar

_NS_PER_SECOND = 10**9
_T = TypeVar("_T")

#: Uses closer together than this are one run of a program and no sign of the next.
_ONE_RUN_SECONDS = 300.0
#: The hits assumed for an entry that was read some time after it was written, if none were counted.
UNCOUNTED_HITS = 3
#: ``cost`` removes entries that are unused for longer than these before all others.
_IDLE_SECONDS = (2 * 86_400.0, 14 * 86_400.0)
#: ``cost`` passes over an entry only where others go at this fraction of its seconds, or less.
_NOTABLE = 4
#: A use so soon after the writing belongs to the run that wrote the entry.
SAME_RUN_SECONDS = 60.0


class Candidate(NamedTuple):
    """A file that a policy may choose to remove."""

    name: str
    """Unique; breaks ties, as in JAX."""
    size_bytes: int
    last_used_ns: int
    compile_seconds: float
    """Seconds that a hit saves (:func:`jaxcache.core.use.saved_seconds`)."""
    hits: int = 0
    """Uses after the run that wrote it, counted or estimated (:func:`estimate_hits`)."""


def estimate_hits(counted: int, created_ns: int, last_used_ns: int) -> int:
    """Estimate how often an entry was read: the count, or a guess from its dates."""
    reused = last_used_ns - created_ns > SAME_RUN_SECONDS * _NS_PER_SECOND
    return max(counted, UNCOUNTED_HITS if reused else 0)


def value_per_byte(candidate: Candidate, now_ns: int, median_age_seconds: float) -> float:
    """Estimate, up to a factor, the compile seconds that a byte of it saves per second to come."""
    age_seconds = max(0, now_ns - candidate.last_used_ns) / _NS_PER_SECOND
    interval_seconds = age_seconds + median_age_seconds + _ONE_RUN_SECONDS
    value = candidate.compile_seconds * sqrt(1 + candidate.hits) / interval_seconds
    return value / max(1, candidate.size_bytes)


def recency(candidate: Candidate, now_ns: int) -> int:
    """Return the class of a candidate by its last use: those of a lower one are removed first."""
    age_seconds = (now_ns - candidate.last_used_ns) / _NS_PER_SECOND
    return sum(age_seconds < limit for limit in _IDLE_SECONDS)


def rank_by_value(
    candidate: Candidate, now_ns: int, median_age_seconds: float, *, per_byte: bool
) -> tuple[int, float, int, str]:
    """Return what the policy ``cost`` sorts by; the lowest is removed first."""
    value = value_per_byte(candidate, now_ns, median_age_seconds)
    scale = 1 if per_byte else max(1, candidate.size_bytes)
    return recency(candidate, now_ns), value * scale, candidate.last_used_ns, candidate.name


def _median_age_seconds(candidates: Sequence[Candidate], now_ns: int) -> float:
    used_ns = sorted(c.last_used_ns for c in candidates)
    median_ns = used_ns[len(used_ns) // 2] if used_ns else now_ns
    return max(0, now_ns - median_ns) / _NS_PER_SECOND


def _by_value(candidates: list[Candidate], now_ns: int, per_byte: bool) -> list[Candidate]:
    median_age_seconds = _median_age_seconds(candidates, now_ns)
    return sorted(
        candidates, key=lambda c: rank_by_value(c, now_ns, median_age_seconds, per_byte=per_byte)
    )


class Policy(NamedTuple):
    """An order in which entries are removed."""

    sort: Callable[[list[Candidate], int, bool], list[Candidate]]
    """A function of candidates, the present time, and whether bytes or entries are scarce."""
    weighs_seconds: bool
    """Whether it needs compile seconds, and keeps entries whose removal the bound does not need."""


#: Every policy, by the name that ``--policy`` takes.
POLICIES = {
    "lru": Policy(
        lambda candidates, *_: sorted(candidates, key=lambda c: (c.last_used_ns, c.name)), False
    ),
    "cost": Policy(_by_value, True),
}


def eviction_order(
    candidates: Iterable[Candidate], policy: str, now_ns: int, *, per_byte: bool = True
) -> list[Candidate]:
    """Sort candidates, the first to go first.

    Args:
        per_byte: whether bytes are what is scarce, or entries.
    """
    return POLICIES[policy].sort(list(candidates), now_ns, per_byte)


def choose_for_room(
    candidates: Iterable[Candidate], excess_bytes: int, policy: str, now_ns: int
) -> list[Candidate]:
    """Choose what goes to free ``excess_bytes``, or everything where that does not suffice."""
    if excess_bytes <= 0:
        return []
    order = eviction_order(candidates, policy, now_ns)
    return choose_in_order(order, excess_bytes, policy, now_ns)


def choose_in_order(
    order: Sequence[Candidate], excess_bytes: int, policy: str, now_ns: int
) -> list[Candidate]:
    """The same over candidates that are in the policy's order already."""
    if not POLICIES[policy].weighs_seconds:
        return _choose_first(order, excess_bytes)
    median_age_seconds = _median_age_seconds(order, now_ns)
    weighed = (
        (recency(c, now_ns), c.size_bytes, value_per_byte(c, now_ns, median_age_seconds), c)
        for c in order
    )
    chosen = choose_cheapest(weighed, excess_bytes)
    _take_back(chosen, sum(c.size_bytes for c in chosen) - excess_bytes, now_ns)
    return chosen


def _choose_first(order: Iterable[Candidate], excess_bytes: int) -> list[Candidate]:
    chosen: list[Candidate] = []
    for candidate in order:
        if excess_bytes <= 0:
            break
        chosen.append(candidate)
        excess_bytes -= candidate.size_bytes
    return chosen


def choose_cheapest(order: "Iterable[tuple[Any, int, float, _T]]", excess_bytes: int) -> "list[_T]":
    """Choose in order, but pass over a large candidate where smaller ones lose far less.

    This is the greedy algorithm for the minimum knapsack problem: each candidate that would free
    the rest alone completes one choice, and the search goes on without it. Nothing of a later
    class goes in place of a candidate.

    Args:
        order: class, size, value per byte, and the candidate itself, the first to go first.
    """
    if excess_bytes <= 0:
        return []
    chosen: list[_T] = []
    best: list[_T] | None = None
    class_of_best = None
    least_loss = inf  # of the cheapest completion, without the candidates before the first
    loss = 0.0
    for of_class, size_bytes, value, candidate in order:
        lost = value * max(1, size_bytes)
        if best is not None and of_class != class_of_best:
            break
        if size_bytes < excess_bytes:
            chosen.append(candidate)
            excess_bytes -= size_bytes
            if best is not None:
                loss += lost
        elif loss + lost < least_loss / _NOTABLE:
            best = [*chosen, candidate]
            class_of_best = of_class
            least_loss = loss + lost
        if loss >= least_loss / _NOTABLE:
            break
    return chosen if best is None else best


def _take_back(chosen: list[Candidate], spare_bytes: int, now_ns: int) -> None:
    """Keep after all what fits into the room that the last, large ones freed beyond need.

    Nothing stays at the cost of something that was used more recently, by class.
    """
    for index in range(len(chosen) - 1, -1, -1):
        is_older = recency(chosen[index], now_ns) < recency(chosen[-1], now_ns)
        if spare_bytes <= 0 or is_older:
            break
        if (size_bytes := chosen[index].size_bytes) <= spare_bytes:
            spare_bytes -= size_bytes
            del chosen[index]
