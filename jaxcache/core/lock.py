"""Locks: JAX's own ``.lockfile``, held as JAX with a size cap does, and record locks.

``jax/_src/lru_cache.py`` (0.4.30 and later) takes ``filelock.FileLock``, which on Unix is ``flock``
on that file.
"""

import contextlib
import os
import time
from collections.abc import Iterator

from .atomic import is_named
from .directories import adopt_from_directory
from .names import LOCKFILE
from .system import try_flock

_FIRST_POLL_SECONDS = 0.0002
_POLL_SECONDS = 0.01


@contextlib.contextmanager
def hold_lockfile(directory: int, *, timeout_seconds: float, keep: bool = False) -> Iterator[bool]:
    """Hold the lock; yield False where another process held it all that time.

    On a file system without ``flock``, no process can hold the lock, and nothing is held.

    Args:
        keep: leave a file that was not there; by default it is removed again, because JAX cannot
            open one that another user left.

    Raises:
        OSError
    """
    deadline = time.monotonic() + timeout_seconds
    pause_seconds = _FIRST_POLL_SECONDS
    while (taken := _try_to_take(directory)) is None:
        if time.monotonic() >= deadline:
            yield False
            return
        time.sleep(pause_seconds)
        pause_seconds = min(2 * pause_seconds, _POLL_SECONDS)
    fd, is_new = taken
    try:
        yield True
    finally:
        if is_new and not keep:  # while it is held, so that no process locks a removed file
            with contextlib.suppress(OSError):
                os.unlink(LOCKFILE, dir_fd=directory)
        os.close(fd)


def _try_to_take(directory: int) -> tuple[int, bool] | None:
    """Take the lock if it is free; (descriptor, whether the file was made for it)."""
    fd, is_new = open_lock(directory, LOCKFILE)
    try:
        if try_flock(fd) and is_named(fd, directory, LOCKFILE):
            return fd, is_new
    except BaseException:
        os.close(fd)
        raise
    os.close(fd)  # another process holds it, or has removed it since
    return None


def open_lock(directory: int, name: str) -> tuple[int, bool]:
    """Open a file to be locked; (descriptor, whether it was made for that).

    A new one can be opened by all who may write to its directory.

    Raises:
        OSError
    """
    flags = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    while True:
        try:
            return os.open(name, os.O_RDWR | flags, dir_fd=directory), False
        except PermissionError:  # another user's, which flock takes as well
            return os.open(name, os.O_RDONLY | flags, dir_fd=directory), False
        except FileNotFoundError:
            with contextlib.suppress(FileExistsError):  # another process has made it since
                creation_flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | flags
                fd = os.open(name, creation_flags, 0o666, dir_fd=directory)
                adopt_from_directory(fd, directory)
                return fd, True
