"""The caches below a directory, by names alone."""

import os
from collections.abc import Iterator, Sequence

from jaxcache.core.names import OWN_DIR
from jaxcache.entry.names import key_of
from jaxcache.store import is_remote

#: Levels of directories that are searched.
_MAX_DEPTH = 3
#: The most names to look at; caches deeper in a larger tree are not found.
_MAX_NAMES = 200_000
#: Directories of torch's compilers, which JAX does not make.
_TORCH_DIRECTORIES = frozenset({"aotautograd", "fxgraph"})


def find_caches(path: str) -> tuple[str, ...]:
    """Return the paths of the caches below a directory, sorted; empty if it is a cache itself.

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
