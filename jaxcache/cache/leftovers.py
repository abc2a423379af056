"""Temporary files that killed commands left in a cache, or among those of the system.

A ``.jaxcache-tmp-*`` file is abandoned when no process holds its lock; only the store can check
that. A command that needs many files until all of them are there keeps them as
``.jaxcache/incoming/<name>-<number>`` next to one such file, which it keeps until it ends.
"""

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterator

from jaxcache.core.directories import open_directory
from jaxcache.core.names import AUTOTUNE_DIR, OWN_DIR, TEMP_PREFIX
from jaxcache.core.system import require_flock, wait_for_flock
from jaxcache.errors import JaxcacheError
from jaxcache.model import FileInfo
from jaxcache.store.base import MissingError, Store, StoreError

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
