"""Every name in a place, for caches whose names say what is in the files."""

import os

from jaxcache.store import is_remote, open_store


def names_there(location: str) -> frozenset[str]:
    """The names of all files at a path or URL; none where there is no such directory yet.

    Raises:
        NoCacheError: it cannot be listed.
    """
    if not is_remote(location) and not os.path.isdir(location):
        return frozenset()
    store = open_store(location)
    names: list[str] = []
    for info in store.list():
        names += [i.name for i in store.walk(info.name)] if info.type == "dir" else [info.name]
    return frozenset(names)
