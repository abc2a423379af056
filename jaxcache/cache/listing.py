"""``ls`` as data: select, sort, sum up."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from jaxcache.cache.scan import Progress, decode_entries, scan
from jaxcache.model import Entry, Problem
from jaxcache.store.base import Store

if TYPE_CHECKING:
    from jaxcache.cache.index import Index


@dataclass(frozen=True, slots=True)
class Summary:
    """Sums over entries; ``payload_bytes`` and ``compile_seconds`` over those that tell them."""

    entries: int
    size_bytes: int
    payload_bytes: int
    compile_seconds: float


@dataclass(frozen=True, slots=True)
class Listing:
    """The result of ``ls``."""

    cache_dir: str
    entries: tuple[Entry, ...]
    summary: Summary
    """Over all entries that match, those beyond the limit too."""
    problems: tuple[Problem, ...]


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
    details: bool = False,
    index: "Index | None" = None,
    workers: int = 1,
    progress: Progress | None = None,
) -> Listing:
    """List a cache: the entries that fit every KEY and filter, sorted, at most ``limit``.

    Args:
        heads: whether the output shows what needs entries to be opened; if not, they are opened
            only where a filter or the order asks for it.
        details: whether it shows what needs them to be decoded; only those shown are, unless a
            filter or the order asks for all.
        index: see :func:`jaxcache.cache.scan.scan`.

    Raises:
        UsageError, NoCacheError
        JaxcacheError: a KEY fits nothing, or more than it may.
    """
    # Imported here because a plain listing, the most frequent, needs none of it.
    selection = None
    decode_all = False
    if keys or filters or sort != "key":
        from jaxcache.cache.select import Selection

        selection = Selection.parse(keys, filters, sort)
        heads = heads or selection.needs_heads
        decode_all = selection.needs_details
    if details and limit is None and store.remote:  # one request for both, where all are shown
        decode_all = True
    seen = scan(
        store, heads=heads, details=decode_all, index=index, workers=workers, progress=progress
    )
    if selection is None:
        chosen = sorted(seen.entries, key=lambda e: e.key)
    else:
        chosen = selection.apply(seen.entries, now_ns)
    if details and not decode_all:
        shown = chosen[:limit]
        seen = decode_entries(store, seen, shown, index=index, workers=workers, progress=progress)
        decoded = {entry.file: entry for entry in seen.entries}
        chosen = [decoded[entry.file] for entry in chosen]
    if index is not None:
        index.save(file.info.name for file in seen.inventory.entries)
    return Listing(
        cache_dir=store.url,
        entries=tuple(chosen[:limit]),
        summary=summarize(chosen),
        problems=_problems_of(chosen, seen.problems) if keys or filters else seen.problems,
    )


def _problems_of(entries: Sequence[Entry], problems: Sequence[Problem]) -> tuple[Problem, ...]:
    files = {e.file for e in entries}
    return tuple(p for p in problems if p.file in files)
