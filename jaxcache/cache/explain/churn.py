"""Modules with many keys: what they cost, and what seems to change from key to key."""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice, pairwise

from jaxcache.cache.explain.arguments import explain_keys as explain_keys
from jaxcache.cache.explain.cached_facts import CachedFacts
from jaxcache.cache.explain.parts import compare
from jaxcache.cache.explain.sides import Cause, Compile, Difference, without_addresses
from jaxcache.cache.scan import Scan, scan
from jaxcache.model import Entry
from jaxcache.store.base import Store

#: Keys of one module that are decoded to find the cause, the newest ones.
_SAMPLED = 8


@dataclass(frozen=True, slots=True)
class ChurnCause:
    """One reason of several keys."""

    component: str
    meaning: str
    count: int
    """Pairs of neighbours in time that it explains."""
    cause: Cause
    title: str


@dataclass(frozen=True, slots=True)
class Churn:
    """One module, or one function of torch's, with several keys."""

    module: str
    """With ``0x…`` where its name holds an address that changes."""
    keys: int
    size_bytes: int
    compile_seconds: float
    causes: tuple[ChurnCause, ...]
    """Over neighbouring keys in time, the most frequent first; known ones before unknown ones."""


def find_churn(
    store: Store, *, explained: int | None = None, scan_result: Scan | None = None
) -> tuple[Churn, ...]:
    """Modules with two keys or more, those that take most bytes first.

    Args:
        explained: look for the causes of only so many modules, those that take most bytes.
        scan_result: a scan that was made already.

    Raises:
        NoCacheError
    """
    scan_result = scan_result or scan(store)
    modules: defaultdict[str, list[Entry]] = defaultdict(list)
    for entry in scan_result.entries:
        modules[without_addresses(entry.module)].append(entry)
    return rank_churn(modules, partial(_differences, CachedFacts(store)), explained)


def rank_churn(
    groups: Mapping[str, Sequence[Entry]],
    differences: Callable[[Sequence[Entry]], Iterable[Difference]],
    explained: int | None,
) -> tuple[Churn, ...]:
    """Sum up groups of two entries or more, those that take most bytes first.

    Args:
        groups: entries with different keys, by the name of what they were compiled from.
        differences: yields the differences of each pair of neighbours, given in order of time.
        explained: look for the causes of only so many.
    """
    sizes = {
        name: sum(e.size_bytes for e in entries)
        for name, entries in groups.items()
        if len(entries) > 1
    }
    churns = []
    for rank, name in enumerate(sorted(sizes, key=lambda name: (-sizes[name], name))):
        entries = sorted(groups[name], key=lambda e: e.created_ns)
        counted: Counter[tuple[str, str, Cause, str]] = Counter()
        if explained is None or rank < explained:
            found_here = differences(entries[-_SAMPLED:])
            counted.update((d.component, d.meaning, d.cause, d.title) for d in found_here)
        seconds = math.fsum(e.compile_seconds or 0.0 for e in entries)
        causes = tuple(
            ChurnCause(component, meaning, count, cause, title)
            for (component, meaning, cause, title), count in counted.most_common()
        )
        causes = tuple(sorted(causes, key=lambda c: c.cause is Cause.UNKNOWN))
        churns.append(Churn(name, len(entries), sizes[name], seconds, causes))
    return tuple(churns)


def _differences(cache: CachedFacts, entries: Sequence[Entry]) -> Iterator[Difference]:
    """Yield the cause of each pair of neighbours."""
    for left, right in pairwise(cache.complete(Compile(e.module, e.key)) for e in entries):
        yield from islice(compare(left, right), 1)
