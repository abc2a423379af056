"""Completion for the shells: ``jaxcache --complete keys PREFIX [-C DIR]``.

It answers before the parser is even imported, from the names in the directory alone: a cache of
100,000 entries must not make anybody wait. What it uses of the package is imported where a setting
must be looked up; ``enum``, ``re`` and ``typing`` would take longer than the answer.
"""

import os
from collections.abc import Iterable, Sequence

#: More keys than this are offered as the modules that they belong to.
_MOST_KEYS = 100
#: A key is a module, a dash, and so many of these; see :mod:`jaxcache.entry.names`.
_HASH_DIGITS = 64
_HEXADECIMAL = "0123456789abcdef"


def complete(words: Sequence[str]) -> list[str]:
    """Return the candidates for the last word; none if they cannot be determined.

    Args:
        words: what is wanted (``keys``), its beginning, and maybe ``-C`` and a directory.
    """
    if len(words) < 2 or words[0] != "keys":
        return []
    option = words[3] if len(words) > 3 and words[2] == "-C" else None
    path = os.environ.get("JAX_COMPILATION_CACHE_DIR", "") if option is None else option
    if not path.startswith("/"):
        path = _located(option)
    try:
        return complete_keys(os.listdir(path), words[1]) if path else []
    except OSError:
        return []


def _located(option: str | None) -> str:
    """Resolve all but an absolute path; empty for a URL: completion cannot wait for a network."""
    from contextlib import redirect_stderr
    from io import StringIO

    from jaxcache.errors import JaxcacheError
    from jaxcache.store.location import locate_cache

    try:
        with redirect_stderr(StringIO()):  # no warning about ignored files at Tab
            path = locate_cache(option).path
    except JaxcacheError:
        return ""
    return "" if "://" in path else path


def complete_keys(names: Iterable[str], prefix: str) -> list[str]:
    """Keys that begin so, sorted; modules, each with its dash, where that would be too many."""
    keys = []
    for name in [name for name in names if name.startswith(prefix)]:
        key = name.removesuffix("-cache")
        if key.isprintable() and _is_key(key):
            keys.append(key)
    if len(keys) > _MOST_KEYS:
        modules = {key[:-_HASH_DIGITS] for key in keys if len(key) > _HASH_DIGITS}
        if len(modules) > 1:
            return sorted(modules)
    return sorted(keys)[:_MOST_KEYS]


def _is_key(text: str) -> bool:
    module = text[:-_HASH_DIGITS]
    digits = text[-_HASH_DIGITS:]
    hexadecimal = len(digits) == _HASH_DIGITS and not digits.strip(_HEXADECIMAL)
    return hexadecimal and (not module or (len(module) > 1 and module.endswith("-")))
