"""Why keys of a cache were compiled: one, two, or all of a module that has many."""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice, pairwise

from jaxcache.cache.explain import say, sides
from jaxcache.cache.explain.answer import Answers
from jaxcache.cache.explain.parts import compare, first_time
from jaxcache.cache.scan import Scan, scan
from jaxcache.core.runs import find_writer, read_records
from jaxcache.entry.summary import Entry
from jaxcache.errors import JaxcacheError
from jaxcache.store import open_store
from jaxcache.store.base import Store

#: Keys of one module that are decoded to find the cause, the newest ones.
_SAMPLED = 8


def explain_keys(keys: Sequence[str], url: str) -> sides.Explanation:
    """Compare two keys, or a key with what earlier runs of its program had in its place.

    Of a key that no run records, the last one of its module before it is taken. If a text fits
    several keys of a module, the newest entry is explained.

    Args:
        keys: one or two KEY arguments.
        url: the cache.

    Raises:
        JaxcacheError: ``no-match``, ``ambiguous-key``
        NoCacheError
    """
    recorded = _RecordedKeys(open_store(url))
    news = recorded.cache.find_newest(keys[-1])
    if len(keys) > 1:
        olds = recorded.cache.find_newest(keys[0])
        comparisons = [recorded.compare(olds[0], news[0])]
        before = keys[0]
    else:
        comparisons = [recorded.explain(new, recorded.key_before(new)) for new in news]
        nearest = "another key of the module" if comparisons[0].left else "no earlier run"
        before = comparisons[0].compared_with or nearest
    differing = tuple(c.in_cache(url) for c in comparisons if c.differences)
    return sides.Explanation(before, keys[-1], len(comparisons) - len(differing), differing)


class _RecordedKeys:
    """The keys of a cache, and the runs that wrote them."""

    def __init__(self, store: Store) -> None:
        self.cache = sides.CachedFacts(store)
        self._records = [] if store.remote else [*read_records(store.url)]

    def explain(self, new: sides.Compile, before: sides.Compile | None) -> sides.Comparison:
        """Compare a key with what earlier runs had in its place, else with a given one.

        Raises:
            JaxcacheError: ``no-match``: there is neither.
        """
        writer, earlier = find_writer(self._records, new.key or "") or (None, [])
        if earlier:
            new = self.cache.complete(new)
            return Answers(self.cache, [new], writer, earlier).explain([new])[0]
        if writer and self.cache.keys_of(new.module)[-1:] == [new.key]:  # its program's first run
            meaning = say.first_time(writer.program, ())
            return sides.Comparison(None, new, (first_time(new, meaning),))
        if before is None:
            raise JaxcacheError(
                f"{new.key} is the only key of its module",
                code="no-match",
                hint="explain the script that compiles it",
            )
        return self.compare(before, new)

    def compare(self, old: sides.Compile, new: sides.Compile) -> sides.Comparison:
        """Compare two keys by what their entries and the ledger hold."""
        if old.key != new.key:
            old = self.cache.complete(old)
            new = self.cache.complete(new)
        return sides.Comparison(old, new, compare(old, new))

    def key_before(self, new: sides.Compile) -> sides.Compile | None:
        """Return the last key of a module that was written before one, else the next after it."""
        keys = self.cache.keys_of(new.module)
        at = keys.index(new.key) if new.key in keys else -1
        others = [*keys[at + 1 :], *keys[:at][::-1]]
        return sides.Compile(new.module, others[0]) if others else None


# Churn -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ChurnCause:
    """One reason of several keys."""

    component: str
    meaning: str
    count: int
    """Keys that it explains."""
    cause: sides.Cause
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
    """Of the newest keys, the most frequent first; known ones before unknown ones."""


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
        modules[sides.without_addresses(entry.module)].append(entry)
    return rank_churn(modules, partial(_find_differences, _RecordedKeys(store)), explained)


def rank_churn(
    groups: Mapping[str, Sequence[Entry]],
    differences: Callable[[Sequence[Entry]], Iterable[sides.Difference]],
    explained: int | None,
) -> tuple[Churn, ...]:
    """Sum up groups of two entries or more, those that take most bytes first.

    Args:
        groups: entries with different keys, by the name of what they were compiled from.
        differences: yields the difference of each entry but the first, given in order of time.
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
        counted: Counter[tuple[str, str, sides.Cause, str]] = Counter()
        if explained is None or rank < explained:
            found_here = differences(entries[-_SAMPLED:])
            counted.update((d.component, d.meaning, d.cause, d.title) for d in found_here)
        seconds = math.fsum(e.compile_seconds or 0.0 for e in entries)
        causes = [
            ChurnCause(component, meaning, count, cause, title)
            for (component, meaning, cause, title), count in counted.most_common()
        ]
        causes.sort(key=lambda c: c.cause is sides.Cause.UNKNOWN)
        churns.append(Churn(name, len(entries), sizes[name], seconds, tuple(causes)))
    return tuple(churns)


def _find_differences(
    recorded: _RecordedKeys, entries: Sequence[Entry]
) -> Iterator[sides.Difference]:
    """Yield the cause of each key but the first."""
    for old, new in pairwise(sides.Compile(e.module, e.key) for e in entries):
        yield from islice(recorded.explain(new, old).differences, 1)
