"""An entry and its ``-atime`` file: names, contents, order of changes, and JAX's lock for these.

JAX before 0.11.2 with a size cap stops writing at the first entry that lacks its date
(``jax/_src/lru_cache.py``). So the date is written before its entry and removed after it, also
if the work is interrupted.

A ``.jaxcache-tmp-*`` file, which a killed command left, is abandoned when no process holds its
lock; only the store can check that. A command that needs many files until all of them are there
keeps them as ``.jaxcache/incoming/<name>-<number>`` next to one such file, which it keeps until it
ends.
"""

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, TypeVar

from jaxcache.core.atomic import open_directory
from jaxcache.core.names import ATIME_SUFFIX, AUTOTUNE_DIR, CACHE_SUFFIX, OWN_DIR, TEMP_PREFIX
from jaxcache.core.system import require_flock, wait_for_flock
from jaxcache.errors import JaxcacheError
from jaxcache.model import FileInfo
from jaxcache.store.base import ExistsError, FileLock, MissingError, NewFile, Store, StoreError

if TYPE_CHECKING:
    from jaxcache.model import Progress

_Item = TypeVar("_Item")

LOCK_TIMEOUT_SECONDS = 10.0
#: After this long the lock is let go, at the next file. Half of what the lock rules allow,
#: because unlinking one large file can take milliseconds.
HOLD_SECONDS = 0.025
#: How long others get. filelock polls every 50 ms, so this lets one process in ten in at once.
PAUSE_SECONDS = 0.003


def run_under_lock(
    store: Store,
    work: Callable[[_Item], None],
    items: Sequence[_Item],
    *,
    file_lock: "FileLock | None" = None,
    progress: "Progress | None" = None,
) -> float:
    """Do short work on each item in order, beside the compiler that uses the cache.

    Args:
        file_lock: the locks of single files, which ``work`` takes; None where JAX's lock is for
            all: then it is held, and released every :data:`HOLD_SECONDS`.

    Returns:
        The longest that JAX's lock was held at a stretch, in seconds.

    Raises:
        LockedError: the lock was not obtained; the items until then are done.
    """
    done = 0
    longest = 0.0
    while done < len(items):
        if file_lock is not None:
            work(items[done])
            done += 1
        else:
            if done:
                time.sleep(PAUSE_SECONDS)
            with store.lock(timeout_seconds=LOCK_TIMEOUT_SECONDS):
                started = time.perf_counter()
                while done < len(items) and time.perf_counter() - started < HOLD_SECONDS:
                    work(items[done])
                    done += 1
                longest = max(longest, time.perf_counter() - started)
        if progress:
            progress(done, len(items))
    return longest


def hold_file_lock(
    store: Store, name: str, file_lock: "FileLock | None"
) -> AbstractContextManager[bool]:
    """Hold the lock of one file, if it has one; False if another process holds it."""
    return file_lock(store, name) if file_lock else nullcontext(True)


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
    """Delete an entry and then its date; False if it has been replaced or is gone.

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
        source: the current path of the entry.
        atime: its date there.
        used_ns: the date to write if it has none; None writes no date.

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
    """Look up a name; None if it does not exist.

    Raises:
        StoreError
    """
    try:
        return store.info(name)
    except MissingError:
        return None


#: More than passes between making a directory and locking it.
_UNLOCKED_SECONDS = 60
_INCOMING_DIR = f"{OWN_DIR}/incoming"


@contextlib.contextmanager
def staging(store: Store) -> Iterator[str]:
    """Reserve a prefix for the names of temporary files while the context lasts.

    Raises:
        StoreError
    """
    token = os.urandom(8).hex()
    with store.hold(f"{_INCOMING_DIR}/{TEMP_PREFIX}{token}"):
        yield f"{_INCOMING_DIR}/{token}"


@contextlib.contextmanager
def scratch_directory(purpose: str) -> Iterator[str]:
    """A directory among the system's temporary files, for as long as the context lasts.

    Directories that killed commands left, whose lock no process holds, are removed first.

    Raises:
        JaxcacheError: ``io-error``: it cannot be made.
    """
    import tempfile  # which a listing does without

    top = "the directories for temporary files"
    prefix = f"{TEMP_PREFIX}{purpose}-"
    try:
        top = tempfile.gettempdir()
        _delete_scratch(top)
        directory = tempfile.TemporaryDirectory(prefix=prefix, ignore_cleanup_errors=True)
    except OSError as error:
        raise JaxcacheError(
            f"cannot create a directory in {top}: {(error.strerror or str(error)).lower()}",
            code="io-error",
            hint="set TMPDIR to another directory for temporary files",
        ) from error
    with directory as path, open_directory(path) as opened:
        wait_for_flock(opened, shared=True)
        yield path


def _delete_scratch(top: str) -> None:
    import shutil

    with contextlib.suppress(OSError), os.scandir(top) as names:
        for item in names:
            if not item.name.startswith(TEMP_PREFIX):
                continue
            with contextlib.suppress(OSError), open_directory(item.path, follow=False) as directory:
                status = os.fstat(directory)
                old = time.time() - status.st_mtime > _UNLOCKED_SECONDS
                if old and status.st_uid == os.geteuid():
                    require_flock(directory)
                    shutil.rmtree(item.path, ignore_errors=True)


def find_leftovers(store: Store) -> Iterator[FileInfo]:
    """Yield temporary files below the root, whether or not they are in use."""
    for directory in (OWN_DIR, AUTOTUNE_DIR):
        for info in store.walk(directory):
            if is_temporary(info.name):
                yield info


def is_temporary(name: str) -> bool:
    """Whether it is a name that only unfinished work has."""
    return is_staged(name) or name.rpartition("/")[2].startswith(TEMP_PREFIX)


def is_staged(name: str) -> bool:
    """Whether it is one of the files of a :func:`staging`."""
    return name.startswith(f"{_INCOMING_DIR}/")


def remove_leftover(store: Store, name: str) -> bool:
    """Remove an abandoned temporary file; False if it is in use, or may be.

    Raises:
        StoreError
    """
    directory, _, base = name.rpartition("/")
    if not is_staged(name) or base.startswith(TEMP_PREFIX):
        return store.delete_abandoned(name)
    alive = f"{directory}/{TEMP_PREFIX}{base.partition('-')[0]}"
    with contextlib.suppress(MissingError):
        store.info(alive)
        if not store.delete_abandoned(alive):
            return False
    return store.delete(name)


def remove_leftovers(store: Store) -> None:
    """Remove all abandoned temporary files."""
    if store.remote:  # an object store keeps no temporary files
        return
    with contextlib.suppress(StoreError):
        names = [i.name for i in store.list() if i.name.startswith(TEMP_PREFIX)]
        names += [i.name for i in find_leftovers(store)]
        for name in names:
            with contextlib.suppress(StoreError):
                remove_leftover(store, name)
