"""New files that appear whole or not at all, inside one open folder."""

import contextlib
import fcntl
import os
import stat
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from jaxcache.store.base import TEMP_PREFIX


class Dates(NamedTuple):
    """The times a new file is to have; None for now."""

    atime_ns: int | None = None
    mtime_ns: int | None = None


_NOW = Dates()


@contextlib.contextmanager
def new_file(
    folder: int,
    chunks: Iterable[bytes],
    dates: Dates = _NOW,
    *,
    like: os.stat_result | None = None,
    mode: int = 0o666,
    durable: bool = True,
) -> Iterator[tuple[str, os.stat_result]]:
    """Write and sync a file under a temporary name, which is gone afterwards in any case.

    The file stays locked until then, so that others can tell it from one that a killed process
    left behind.

    Args:
        like: whose owner, group and permissions it gets.
        mode: its permissions otherwise, less what the umask takes.
        durable: False leaves out the sync, for what can be had again.
    """
    temp, fd = _create_temp(folder, mode)
    try:
        for chunk in chunks:
            view = memoryview(chunk)
            while view:
                view = view[os.write(fd, view) :]
        if like is not None:
            _adopt(fd, like)
        if dates.atime_ns is not None and dates.mtime_ns is not None:
            os.utime(fd, ns=(dates.atime_ns, dates.mtime_ns))
        if durable:
            os.fsync(fd)
        yield temp, os.fstat(fd)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temp, dir_fd=folder)
        os.close(fd)


def _adopt(fd: int, like: os.stat_result) -> None:
    """Give a file the owner, group and permissions of another, as far as we may."""
    for owner, group in ((like.st_uid, -1), (-1, like.st_gid)):
        with contextlib.suppress(PermissionError):  # only root gives files away
            os.fchown(fd, owner, group)
    os.fchmod(fd, stat.S_IMODE(like.st_mode))


def replace_file(
    path: str | os.PathLike[str],
    chunks: Iterable[bytes],
    *,
    mode: int = 0o666,
    durable: bool = True,
) -> None:
    """Write a file of our own outside any cache, atomically, and clean up after killed writers.

    Raises:
        OSError
    """
    with open_folder(os.path.dirname(path)) as folder:
        delete_all_abandoned(folder)
        with new_file(folder, chunks, mode=mode, durable=durable) as (temp, _):
            os.replace(temp, os.path.basename(path), src_dir_fd=folder, dst_dir_fd=folder)
        if durable:
            sync_folder(folder)


@contextlib.contextmanager
def open_folder(path: str) -> Iterator[int]:
    """A descriptor of a folder; of the current one where the path is empty.

    Raises:
        OSError
    """
    fd = os.open(path or os.curdir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


@contextlib.contextmanager
def locked_name(folder: int, temp: str) -> Iterator[None]:
    """An empty file of that name, which is not abandoned as long as this process lives.

    Raises:
        OSError
    """
    fd = _create_locked(folder, temp, 0o666)
    try:
        yield
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temp, dir_fd=folder)
        os.close(fd)


def _create_temp(folder: int, mode: int) -> tuple[str, int]:
    """Create a locked temporary file; (name, descriptor)."""
    temp = f"{TEMP_PREFIX}{os.getpid()}-{os.urandom(6).hex()}"
    return temp, _create_locked(folder, temp, mode)


def _create_locked(folder: int, name: str, mode: int) -> int:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    while True:
        fd = os.open(name, flags, mode, dir_fd=folder)
        with contextlib.suppress(OSError):  # a file system without flock
            fcntl.flock(fd, fcntl.LOCK_EX)
        if os.fstat(fd).st_nlink:
            return fd
        os.close(fd)  # somebody who cleans up was faster than the lock


def delete_if_abandoned(folder: int, temp: str) -> bool:
    """Remove a temporary file whose writer is gone; False if it lives, or none can tell.

    A writer holds flock on its file, which the system lets go when the writer dies; a file
    system without flock cannot tell.

    Raises:
        OSError: it cannot be opened or removed.
    """
    if not temp.startswith(TEMP_PREFIX):
        return False
    fd = os.open(temp, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, dir_fd=folder)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.unlink(temp, dir_fd=folder)
    finally:
        os.close(fd)
    return True


def delete_all_abandoned(folder: int) -> None:
    """Remove the temporary files in a folder whose writers are gone, as far as that can be told."""
    with contextlib.suppress(OSError):
        for name in os.listdir(folder):
            with contextlib.suppress(OSError):
                delete_if_abandoned(folder, name)


def sync_folder(fd: int) -> None:
    """Make the names in a folder durable."""
    with contextlib.suppress(OSError):  # not every file system can sync a directory
        os.fsync(fd)
