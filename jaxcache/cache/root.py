"""A root of caches: a directory that holds no entry itself, above directories that are caches.

One directory for each kind of machine makes one, as in ``~/jax/$(jaxcache ci key)``.
"""

import math
import os
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from jaxcache.cache.ledger.segments import Ledger
from jaxcache.cache.ledger.uses import Uses, count_uses, hit_rate
from jaxcache.cache.listing import Listing, Summary, summarize
from jaxcache.cache.stats import Stats
from jaxcache.core.names import OWN_DIR
from jaxcache.entry.names import key_of
from jaxcache.model import result_repr
from jaxcache.store import is_remote
from jaxcache.units import NS_PER_SECOND, format_command, format_count

if TYPE_CHECKING:
    from jaxcache.cache.doctor.inputs import Finding

#: Levels of directories below a root that are searched.
_MAX_DEPTH = 3
#: Names that are looked at on the way; what lies deeper in a larger tree is not found.
_MAX_NAMES = 200_000
#: Caches that are unused for longer are named.
UNUSED_DAYS = 30
_DAY_NS = 86_400 * NS_PER_SECOND
#: Directories of torch's compilers, which JAX does not make.
_TORCH_DIRECTORIES = frozenset({"aotautograd", "fxgraph"})


def find_caches(path: str) -> tuple[str, ...]:
    """Return the paths of the caches below a root, sorted; empty if it is none, or a cache itself.

    Looks at names only, and no further into a directory than to its first entry. Links are not
    followed.
    """
    if is_remote(path) or not os.path.isdir(path):
        return ()
    budget = [_MAX_NAMES]
    is_cache, below = _look(path, budget)
    return () if is_cache else tuple(sorted(_search(below, 1, budget)))


def _search(directories: Sequence[str], depth: int, budget: list[int]) -> Iterator[str]:
    for directory in directories:
        is_cache, below = _look(directory, budget)
        if is_cache or os.path.isdir(os.path.join(directory, OWN_DIR, "ledger")):
            yield directory
        elif depth < _MAX_DEPTH:
            yield from _search(below, depth + 1, budget)


def _look(path: str, budget: list[int]) -> tuple[bool, list[str]]:
    """Return whether a directory has an entry, and if not, the directories in it."""
    directories = []
    try:
        with os.scandir(path) as names:
            for name in names:
                budget[0] -= 1
                if key_of(name.name) or name.name in _TORCH_DIRECTORIES:
                    return True, []
                if budget[0] < 0:
                    break
                if name.name != OWN_DIR and name.is_dir(follow_symlinks=False):
                    directories.append(name.path)
    except OSError:  # it cannot be read
        pass
    return False, directories


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
        return f"{len(self.caches):,} caches, {self.summary}"


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
    """Find the caches that nobody has used for long, beside others that are in use."""
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
    """Find that JAX is told to use the root itself."""
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
