"""An entry and its ``-atime`` file: names, contents, and the order in which they come and go.

JAX before 0.11.2 with a size cap stops writing at the first entry that lacks its date
(``jax/_src/lru_cache.py``). So the date comes before its entry and goes after it, whatever
interrupts the work.
"""

from jaxcache.core.names import ATIME_SUFFIX, CACHE_SUFFIX
from jaxcache.model import FileInfo
from jaxcache.store.base import ExistsError, MissingError, NewFile, Store

#: Nanoseconds since the epoch, little-endian.
ATIME_BYTES = 8
_LAST_NS = 2**63 - 1


def atime_name(file: str) -> str | None:
    """The ``-atime`` file of an entry; None for a file that has none."""
    return file.removesuffix(CACHE_SUFFIX) + ATIME_SUFFIX if file.endswith(CACHE_SUFFIX) else None


def parse_atime(data: bytes) -> int | None:
    """Read what an ``-atime`` file holds; None if it is damaged."""
    stamp_ns = int.from_bytes(data, "little")
    return stamp_ns if len(data) == ATIME_BYTES and stamp_ns <= _LAST_NS else None


def new_atime(file: str, used_ns: int, *, mtime_ns: int | None = None) -> NewFile | None:
    """The date of an entry as a file to write; None for an entry without suffix, which has none."""
    name = atime_name(file)
    stamp = min(max(used_ns, 0), _LAST_NS).to_bytes(ATIME_BYTES, "little")
    return NewFile(name, [stamp], mtime_ns) if name else None


def write_atime(store: Store, file: str, used_ns: int, *, replace: bool = False) -> bool:
    """Date an entry that is there, or about to be written.

    Args:
        file: the entry; one without suffix has no date.
        replace: overwrite the date that is there.

    Returns:
        Whether it was written.

    Raises:
        StoreError
    """
    new = new_atime(file, used_ns)
    if new is None:
        return False
    try:
        store.write(new.name, new.chunks, replace=replace)
    except ExistsError:
        return False
    return True


def remove_entry(store: Store, entry: FileInfo) -> bool:
    """Delete an entry and then its date; False if it is another one by now, or gone.

    Raises:
        StoreError
    """
    if not store.delete(entry.name, expected=entry):
        return False
    if stamp := atime_name(entry.name):
        store.delete(stamp)
    return True


def move_entry_out(store: Store, file: str, directory: str) -> None:
    """Move an entry into a directory below the cache, and then its date.

    Raises:
        StoreError
    """
    store.rename(file, f"{directory}/{file}")
    if (stamp := atime_name(file)) and find(store, stamp):
        store.rename(stamp, f"{directory}/{stamp}")


def move_entry_in(
    store: Store, source: str, file: str, atime: FileInfo | None, *, used_ns: int | None = None
) -> None:
    """Move the date of an entry into the cache, and then the entry.

    Args:
        source: where the entry lies.
        atime: its date there.
        used_ns: the date it gets where there is none; None for none.

    Raises:
        ExistsError: the cache has such an entry.
        StoreError
    """
    if atime is not None:
        try:
            store.rename(atime.name, atime.name.rpartition("/")[2])
        except ExistsError:
            store.delete(atime.name)
    elif used_ns is not None:
        write_atime(store, file, used_ns)
    store.rename(source, file)


def find(store: Store, name: str) -> FileInfo | None:
    """Look at a name; None where there is nothing.

    Raises:
        StoreError
    """
    try:
        return store.info(name)
    except MissingError:
        return None
