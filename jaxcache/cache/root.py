"""A root of caches: a directory that holds no entry itself, above directories that are caches.

One directory for each kind of machine makes one, as in ``~/jax/$(jaxcache ci key)``.
"""

import math
import os
import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from jaxcache.cache.ledger.segments import Ledger
from jaxcache.cache.ledger.uses import Uses, count_uses, hit_rate
from jaxcache.cache.listing import Listing, Summary, summarize
from jaxcache.cache.stats import Stats
from jaxcache.model import result_repr
from jaxcache.units import NS_PER_SECOND, format_command, format_count

if TYPE_CHECKING:
    from jaxcache.cache.doctor.inputs import Finding

#: Caches that are unused for longer are named.
UNUSED_DAYS = 30
_DAY_NS = 86_400 * NS_PER_SECOND


class CacheSums(NamedTuple):
    """One cache of a root, summed up."""

    name: str
    """The path of its directory, relative to the root."""
    summary: Summary
    size_bytes: int | None
    """What a limit on the size counts; None where it was not measured."""
    platforms: tuple[str, ...]
    jax_versions: tuple[str, ...]
    """The versions that its ledger has recorded, sorted."""
    last_used_ns: int | None
    uses: Uses
    problems: int = 0


@dataclass(frozen=True, slots=True)
class RootSums:
    """The caches of a root, and the sums over all of them."""

    __repr__ = result_repr

    cache_dir: str
    caches: tuple[CacheSums, ...]

    @property
    def summary(self) -> Summary:
        """The sums over all entries."""
        rows = [cache.summary for cache in self.caches]
        return Summary(*map(sum, zip(*rows, strict=True))) if rows else summarize(())

    def __str__(self) -> str:
        return f"{format_count(len(self.caches), 'cache')}, {self.summary}"


def sum_up_listing(name: str, listing: Listing, ledger: Ledger) -> CacheSums:
    """Sum up the entries of one cache that a listing has chosen."""
    entries = listing.entries
    return CacheSums(
        name=name,
        summary=listing.summary,
        size_bytes=None,
        platforms=tuple(sorted({e.platform for e in entries} - {"unknown"})),
        jax_versions=ledger.jax_versions,
        last_used_ns=max((entry.last_used_ns for entry in entries), default=None),
        uses=count_uses(ledger),
    )


def sum_up_stats(name: str, stats: Stats) -> CacheSums:
    """Sum up one cache whole."""
    groups = stats.by_platform
    return CacheSums(
        name=name,
        summary=stats.total,
        size_bytes=stats.size_bytes,
        platforms=tuple(sorted({group.name for group in groups} - {"unknown"})),
        jax_versions=stats.jax_versions,
        last_used_ns=max((g.last_used_ns for g in groups if g.last_used_ns), default=None),
        uses=stats.uses,
        problems=sum(count for _, count in stats.problems),
    )


def sum_uses(caches: Iterable[CacheSums]) -> Uses:
    """Sum up the recorded uses of several caches."""
    recorded = [cache.uses for cache in caches if cache.uses.hits is not None]
    if not recorded:
        return Uses()
    hits = sum(uses.hits or 0 for uses in recorded)
    misses = sum(uses.misses or 0 for uses in recorded)
    saved_seconds = math.fsum(uses.saved_seconds or 0.0 for uses in recorded)
    return Uses(hits, misses, hit_rate(hits, misses), saved_seconds)


def find_unused(
    root: str, last_used_ns: Mapping[str, int | None], *, now_ns: int
) -> "Iterator[Finding]":
    """Find the caches that have long been unused while others of the root are in use."""
    from jaxcache.cache.doctor.inputs import Finding  # which a listing does without

    limit_ns = now_ns - UNUSED_DAYS * _DAY_NS
    unused = [name for name, used_ns in last_used_ns.items() if used_ns and used_ns < limit_ns]
    if 0 < len(unused) < len(last_used_ns):
        yield Finding(
            "unused-caches",
            "note",
            f"{format_count(len(unused), 'cache')} not used for {UNUSED_DAYS} days: "
            f"{', '.join(sorted(unused))}",
            "an old version of JAX or a retired machine may have left them",
            f"{format_command(f'prune --unused-for {UNUSED_DAYS}d', root)} removes them whole",
        )


def find_used_as_cache(root: str, setting: object) -> "Iterator[Finding]":
    """Find that JAX is set to use the root itself."""
    from jaxcache.cache.doctor.inputs import Finding

    if isinstance(setting, str) and os.path.realpath(setting) == os.path.realpath(root):
        path = shlex.quote(root)
        yield Finding(
            "root-as-cache",
            "problem",
            f"jax_compilation_cache_dir is {setting}, which is a directory above several caches",
            "JAX writes into the directory itself and does not use them",
            f"export JAX_COMPILATION_CACHE_DIR={path}/$(jaxcache ci key -C {path})",
        )
