"""``ls`` and ``stats`` as data: select, sort, sum up, group."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from jaxcache.cache.scan import Progress, scan
from jaxcache.cache.select import (
    Filter,
    parse_filter,
    select_by_keys,
    sort_entries,
    sort_needs_heads,
)  # fmt: skip
from jaxcache.errors import UsageError
from jaxcache.model import Entry, Problem
from jaxcache.store.base import Store


@dataclass(frozen=True, slots=True)
class Summary:
    """Sums over entries; ``payload_bytes`` and ``compile_seconds`` over those that tell them."""

    entries: int
    size_bytes: int
    payload_bytes: int
    compile_seconds: float


@dataclass(frozen=True, slots=True)
class Listing:
    """What ``ls`` shows."""

    cache_dir: str
    entries: tuple[Entry, ...]
    summary: Summary
    """Over all entries that match, those beyond the limit too."""
    problems: tuple[Problem, ...]


@dataclass(frozen=True, slots=True)
class Group:
    """Entries that share the value of one field."""

    name: str
    summary: Summary
    last_used_ns: int
    """The latest use of any of them."""


def summarize(entries: Iterable[Entry]) -> Summary:
    """Sum up entries in one pass."""
    count = size_bytes = payload_bytes = 0
    seconds = 0.0
    for entry in entries:
        count += 1
        size_bytes += entry.size_bytes
        payload_bytes += entry.payload_bytes or 0
        seconds += entry.compile_seconds or 0.0
    return Summary(count, size_bytes, payload_bytes, seconds)


def list_cache(
    store: Store,
    *,
    keys: Sequence[str],
    filters: Sequence[str],
    sort: str,
    limit: int | None,
    heads: bool,
    now_ns: int,
    progress: Progress | None = None,
) -> Listing:
    """List a cache: the entries that fit every KEY and filter, sorted, at most ``limit``.

    Args:
        heads: whether the output shows what needs entries to be opened; if not, they are opened
            only where a filter or the order asks for it.

    Raises:
        UsageError, NoCacheError
        JaxcacheError: a KEY fits nothing, or more than it may.
    """
    parsed = [parse_filter(text) for text in filters]
    sort_entries((), sort)  # a bad order is an error before the work, not after it
    heads = heads or sort_needs_heads(sort) or any(f.needs_heads for f in parsed)
    seen = scan(store, heads=heads, progress=progress)
    chosen = select_by_keys(seen.entries, keys)
    chosen = sort_entries((e for e in chosen if _fits(e, parsed, now_ns)), sort)
    return Listing(
        cache_dir=store.url,
        entries=tuple(chosen[:limit]),
        summary=summarize(chosen),
        problems=seen.problems if not (keys or filters) else _problems_of(chosen, seen.problems),
    )


def _fits(entry: Entry, filters: Sequence[Filter], now_ns: int) -> bool:
    return all(f.matches(entry, now_ns) for f in filters)


def _problems_of(entries: Sequence[Entry], problems: Sequence[Problem]) -> tuple[Problem, ...]:
    files = {e.file for e in entries}
    return tuple(p for p in problems if p.file in files)


_GROUPS: dict[str, Callable[[Entry], str]] = {
    "module": lambda e: e.module,
    "platform": lambda e: e.platform,
    "target": lambda e: e.target or "unknown",
    "codec": lambda e: e.codec,
}


def group_entries(entries: Iterable[Entry], by: str) -> list[Group]:
    """Group entries by a field, the largest group first.

    Raises:
        UsageError: ``bad-group``.
    """
    if by not in _GROUPS:
        raise UsageError(
            f"cannot group by {by!r}", code="bad-group", hint=f"one of {', '.join(_GROUPS)}"
        )
    read = _GROUPS[by]
    members: defaultdict[str, list[Entry]] = defaultdict(list)
    for entry in entries:
        members[read(entry)].append(entry)
    groups = [
        Group(name, summarize(some), max(e.last_used_ns for e in some))
        for name, some in members.items()
    ]
    return sorted(groups, key=lambda g: (-g.summary.size_bytes, g.name))
