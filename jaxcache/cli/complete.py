"""Completion for the shells: ``jaxcache --complete keys PREFIX [-C DIR]``.

It answers before the parser is even imported, from the names in the directory alone: a cache of
100,000 entries must not make anybody wait.
"""

import os
from collections.abc import Iterable, Sequence

from jaxcache.entry.names import ATIME_SUFFIX, CACHE_SUFFIX, parse_key
from jaxcache.errors import JaxcacheError
from jaxcache.store.location import locate_cache

#: More keys than this are offered as the modules that they belong to.
_MOST_KEYS = 100


def complete(words: Sequence[str]) -> list[str]:
    """Return the candidates for the last word; nothing where that cannot be told.

    Args:
        words: what is wanted (``keys``), its beginning, and maybe ``-C`` and a directory.
    """
    if len(words) < 2 or words[0] != "keys":
        return []
    option = words[3] if len(words) > 3 and words[2] == "-C" else None
    try:
        path = locate_cache(option).path
        if "://" in path:  # asking a network at every key would be no help
            return []
        return complete_keys(os.listdir(path), words[1])
    except (JaxcacheError, OSError):
        return []


def complete_keys(names: Iterable[str], prefix: str) -> list[str]:
    """Keys that begin so, sorted; modules, each with its dash, where that would be too many."""
    keys = []
    for name in names:
        if not name.startswith(prefix) or name.endswith(ATIME_SUFFIX):
            continue
        key = name.removesuffix(CACHE_SUFFIX)
        if key.isprintable() and parse_key(key):
            keys.append(key)
    if len(keys) > _MOST_KEYS:
        modules = {key[:-64] for key in keys if len(key) > 64}
        if len(modules) > 1:
            return sorted(modules)
    return sorted(keys)[:_MOST_KEYS]
