"""Temporary files that killed commands left in a cache.

A ``.jaxcache-tmp-*`` file is abandoned when nobody holds its lock; only the store can tell. Where a
command needs many files until all of them are there, it keeps them as
``.jaxcache/incoming/<name>-<number>`` beside one such file, which lives as long as it does.
"""

import contextlib
import os
from collections.abc import Iterator

from jaxcache.entry.names import AUTOTUNE_DIR, OWN_DIR
from jaxcache.model import FileInfo
from jaxcache.store.base import TEMP_PREFIX, MissingError, Store, StoreError

_INCOMING_DIR = f"{OWN_DIR}/incoming"


@contextlib.contextmanager
def staging(store: Store) -> Iterator[str]:
    """A prefix of names for files that are nobody else's while the context lasts.

    Raises:
        StoreError
    """
    token = os.urandom(8).hex()
    with store.hold(f"{_INCOMING_DIR}/{TEMP_PREFIX}{token}"):
        yield f"{_INCOMING_DIR}/{token}"


def find_leftovers(store: Store) -> Iterator[FileInfo]:
    """Yield temporary files below the root, whether or not they are in use."""
    for folder in (OWN_DIR, AUTOTUNE_DIR):
        for info in store.walk(folder):
            if is_temporary(info.name):
                yield info


def is_temporary(name: str) -> bool:
    """Whether it is a name that only unfinished work has."""
    return is_staged(name) or name.rpartition("/")[2].startswith(TEMP_PREFIX)


def is_staged(name: str) -> bool:
    """Whether it is one of the files of a :func:`staging`."""
    return name.startswith(f"{_INCOMING_DIR}/")


def delete_leftover(store: Store, name: str) -> bool:
    """Remove a temporary file that nobody uses; False if somebody does, or it cannot be told.

    Raises:
        StoreError
    """
    folder, _, base = name.rpartition("/")
    if not is_staged(name) or base.startswith(TEMP_PREFIX):
        return store.delete_abandoned(name)
    alive = f"{folder}/{TEMP_PREFIX}{base.partition('-')[0]}"
    with contextlib.suppress(MissingError):
        store.info(alive)
        if not store.delete_abandoned(alive):
            return False
    return store.delete(name)


def delete_leftovers(store: Store) -> None:
    """Remove all that nobody uses any more, as far as that can be told."""
    if store.remote:  # where nothing is ever left behind
        return
    with contextlib.suppress(StoreError):
        names = [i.name for i in store.list() if i.name.startswith(TEMP_PREFIX)]
        names += [i.name for i in find_leftovers(store)]
        for name in names:
            with contextlib.suppress(StoreError):
                delete_leftover(store, name)
