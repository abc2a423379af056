"""Modules with many keys: what they cost, and what seems to change from key to key."""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

from jaxcache.cache.explain.compare import UNKNOWN, compare
from jaxcache.cache.explain.known import KnownCache
from jaxcache.cache.explain.matching import without_addresses
from jaxcache.cache.explain.sides import Compile, Side
from jaxcache.cache.scan import Scan, scan
from jaxcache.model import Entry
from jaxcache.store.base import Store

#: Keys of one module that are decoded to find the cause, the newest ones.
_SAMPLED = 8
SAME_PROGRAM = (
    "the compiled programs are the same: something that does not reach them changes the key, "
    "such as an address (custom_partitioning, pmap of jax 0.8 and 0.9), a path or a hook"
)


@dataclass(frozen=True, slots=True)
class Churn:
    """One module, or one function of torch's, with several keys."""

    module: str
    """With ``0x…`` where its name holds an address that changes."""
    keys: int
    size_bytes: int
    compile_seconds: float
    causes: tuple[tuple[str, str, int], ...]
    """(component, meaning, how often) over neighbouring keys in time, the most frequent first."""


def find_churn(
    store: Store, *, explained: int | None = None, seen: Scan | None = None
) -> tuple[Churn, ...]:
    """Modules with two keys or more, those that take most bytes first.

    Args:
        explained: look for the causes of only so many modules, those that take most bytes.
        seen: a scan that was made already.

    Raises:
        NoCacheError
    """
    seen = seen or scan(store)
    modules: defaultdict[str, list[Entry]] = defaultdict(list)
    for entry in seen.entries:
        modules[without_addresses(entry.module)].append(entry)
    return rank_churn(modules, partial(_differences, KnownCache(store)), explained)


def rank_churn(
    groups: Mapping[str, Sequence[Entry]],
    differences: Callable[[Sequence[Entry]], Iterable[tuple[str, str]]],
    explained: int | None,
) -> tuple[Churn, ...]:
    """Sum up groups of two entries or more, those that take most bytes first.

    Args:
        groups: entries with different keys, by the name of what they were compiled from.
        differences: yields (component, meaning) of each pair of neighbours, given in order of time.
        explained: look for the causes of only so many.
    """
    sizes = {
        name: sum(e.size_bytes for e in entries)
        for name, entries in groups.items()
        if len(entries) > 1
    }
    found = []
    for rank, name in enumerate(sorted(sizes, key=lambda name: (-sizes[name], name))):
        entries = sorted(groups[name], key=lambda e: e.created_ns)
        counted: Counter[tuple[str, str]] = Counter()
        if explained is None or rank < explained:
            counted.update(differences(entries[-_SAMPLED:]))
        seconds = math.fsum(e.compile_seconds or 0.0 for e in entries)
        causes = tuple((*cause, number) for cause, number in counted.most_common())
        found.append(Churn(name, len(entries), sizes[name], seconds, causes))
    return tuple(found)


def _differences(known: KnownCache, entries: Sequence[Entry]) -> Iterator[tuple[str, str]]:
    for left, right in pairwise(known.complete(Compile(e.module, e.key)) for e in entries):
        side = Side("", (left,), is_run=False)
        for difference in compare(left, right, side):
            meaning = difference.meaning
            if difference.component == UNKNOWN and left.outline and left.outline == right.outline:
                meaning = SAME_PROGRAM
            yield difference.component, meaning.partition(" (at ")[0]
