"""Modules with many keys: what they cost, and what seems to change from key to key."""

from collections import Counter, defaultdict
from dataclasses import dataclass
from itertools import pairwise

from jaxcache.cache.explain.compare import UNKNOWN, compare
from jaxcache.cache.explain.known import KnownCache
from jaxcache.cache.explain.pair import without_addresses
from jaxcache.cache.explain.sides import Compile, Side
from jaxcache.cache.scan import Progress, Scan, scan
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
    """One module with several keys."""

    module: str
    """With ``0x…`` where its name holds an address that changes."""
    keys: int
    size_bytes: int
    compile_seconds: float
    causes: tuple[tuple[str, str, int], ...]
    """(component, meaning, how often) over neighbouring keys in time, the most frequent first."""


def find_churn(
    store: Store,
    *,
    explained: int | None = None,
    seen: Scan | None = None,
    progress: Progress | None = None,
) -> tuple[Churn, ...]:
    """Modules with two keys or more, those that take most bytes first.

    Args:
        explained: look for the causes of only so many modules, those that take most bytes.
        seen: a scan that was made already.

    Raises:
        NoCacheError
    """
    seen = seen or scan(store, progress=progress)
    known = KnownCache(store)
    modules: defaultdict[str, list[Entry]] = defaultdict(list)
    for entry in seen.entries:
        modules[without_addresses(entry.module)].append(entry)
    found = [
        (sum(e.size_bytes for e in entries), module, entries)
        for module, entries in modules.items()
        if len(entries) > 1
    ]
    found.sort(key=lambda item: (-item[0], item[1]))
    return tuple(
        Churn(
            module=module,
            keys=len(entries),
            size_bytes=size_bytes,
            compile_seconds=sum(e.compile_seconds or 0.0 for e in entries),
            causes=tuple(_causes(known, entries)) if explained is None or rank < explained else (),
        )
        for rank, (size_bytes, module, entries) in enumerate(found)
    )


def _causes(known: KnownCache, entries: list[Entry]) -> list[tuple[str, str, int]]:
    newest = sorted(entries, key=lambda e: -e.created_ns)[:_SAMPLED]
    compiles = [known.complete(Compile(e.module, e.key)) for e in reversed(newest)]
    counted: Counter[tuple[str, str]] = Counter()
    for left, right in pairwise(compiles):
        side = Side("", (left,), is_run=False)
        for difference in compare(left, right, side):
            meaning = difference.meaning
            if difference.component == UNKNOWN and left.outline and left.outline == right.outline:
                meaning = SAME_PROGRAM
            counted[difference.component, meaning.partition(" (at ")[0]] += 1
    return [(*cause, number) for cause, number in counted.most_common()]
