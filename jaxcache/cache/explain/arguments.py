"""The arguments of ``explain``: saved runs, keys, cache directories; also one key alone."""

import os
from collections.abc import Sequence
from dataclasses import replace

from jaxcache.cache.explain.cached_facts import CachedFacts, open_cached_facts
from jaxcache.cache.explain.compare import explain
from jaxcache.cache.explain.reports import read_run
from jaxcache.cache.explain.sides import Explanation, Side
from jaxcache.errors import JaxcacheError, UsageError
from jaxcache.store import open_store


def explain_given(words: Sequence[str], path: str, *, explicit: bool = True) -> Explanation:
    """Explain two sides, or one key against the nearest other one of its module.

    Of several keys of a module, as its name or a glob gives them, the newest entry is explained.

    Args:
        words: one or two of: a saved run, a key, a cache directory.
        path: the cache that knows the keys.
        explicit: that cache was named, so it must be there.

    Raises:
        UsageError: a text names no file, and the cache does not exist.
        JaxcacheError: ``no-match``, ``ambiguous-key``
        NoCacheError
    """
    cache = open_cached_facts(path, explicit=explicit)
    sides = [_side(text, cache, path, explicit=explicit) for text in words]
    if len(sides) == 1:
        side = _newest(sides[0][0], cache)
        sides = [(_others(side, cache), cache), (side, cache)]
    shared = {c.key for c in sides[0][0].compiles} & {c.key for c in sides[1][0].compiles}
    left, right = (_complete(*side, shared) for side in sides)
    return explain(left, right)


def _side(
    text: str, cache: CachedFacts | None, path: str, *, explicit: bool
) -> tuple[Side, CachedFacts | None]:
    """Return a side and the cache that knows more of its keys: the one named, else its own."""
    if os.path.isdir(text):
        cache = CachedFacts(open_store(text))
        return cache.whole(), cache
    if os.path.isfile(text):
        side = read_run(text)
        if not explicit and side.cache_dir and os.path.isdir(side.cache_dir):
            return side, open_cached_facts(side.cache_dir)
        return side, cache
    if cache is None:
        raise UsageError(
            f"{text}: no such file, and {path} has no cache whose key this could be",
            hint="name a saved run (warm --json > FILE), a key, a cache directory or a script",
        )
    return cache.side(text), cache


def _newest(side: Side, cache: CachedFacts | None) -> Side:
    """Keep only the newest entry of each module given by name."""
    if cache is None or side.is_run or len(side.compiles) == 1:
        return side
    named = {c.key for c in side.compiles}
    modules = {c.module for c in side.compiles}
    last = {next((k for k in cache.keys_of(m) if k in named), None) for m in modules}
    return replace(side, compiles=tuple(c for c in side.compiles if c.key in last))


def _others(side: Side, cache: CachedFacts | None) -> Side:
    """Every other key of the modules of a side."""
    if cache is None or side.is_run:
        raise UsageError(
            "explain needs one or two sides",
            hint="a saved run, a key, a cache directory or a script; see jaxcache explain --help",
        )
    mine = {c.key for c in side.compiles}
    modules = {c.module for c in side.compiles}
    others = (c for c in cache.whole().compiles if c.module in modules and c.key not in mine)
    compiles = tuple(others)
    if not compiles:
        raise JaxcacheError(
            f"{side.name} is the only key of its module",
            code="no-match",
            hint="explain a script or a saved run against it",
        )
    return Side("the other keys of the module", compiles, is_run=False)


def _complete(side: Side, cache: CachedFacts | None, shared: set[str | None]) -> Side:
    """Open the entries of a side, but for the keys that the other side has too."""
    if cache is None:
        return side
    compiles = (c if c.key in shared else cache.complete(c) for c in side.compiles)
    return replace(side, compiles=tuple(compiles))
