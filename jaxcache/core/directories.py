"""Directories: opened by descriptor, made, synced, and whom what is new in them belongs to."""

import contextlib
import errno
import os
import stat
from collections.abc import Iterator


@contextlib.contextmanager
def as_far_as_allowed() -> Iterator[None]:
    """Pass over what our rights or the file system do not allow, but not over a failing disk."""
    try:
        yield
    except OSError as error:
        if error.errno == errno.EIO:
            raise


def adopt_from_directory(fd: int, directory: int) -> None:
    """Let all who may write to a directory write to a file or directory that was made in it.

    It gets the directory's group, and its owner where root made it: JAX stops using a cache in
    which it cannot write to an ``-atime`` or ``.lockfile`` that another user left. In a sticky
    directory, where each user's files are their own, only the group gets permissions.
    """
    like = os.fstat(directory)
    new = os.fstat(fd)
    change_owner(fd, new, like)
    wanted = mode = stat.S_IMODE(new.st_mode)
    permissions = 0o077 if stat.S_ISDIR(new.st_mode) else 0o066
    if like.st_mode & stat.S_IWGRP:
        wanted |= permissions & 0o070
    if like.st_mode & stat.S_IWOTH and not like.st_mode & stat.S_ISVTX:
        wanted |= permissions & 0o007
    if wanted != mode:
        with as_far_as_allowed():  # a file system without permissions
            os.fchmod(fd, wanted)


def change_owner(fd: int, new: os.stat_result, like: os.stat_result) -> None:
    """Give a file the owner and the group of another one, as far as we may."""
    if new.st_uid != like.st_uid:
        with as_far_as_allowed():  # only root gives files away, and not on every mount
            os.fchown(fd, like.st_uid, -1)
    if new.st_gid != like.st_gid:
        with as_far_as_allowed():
            os.fchown(fd, -1, like.st_gid)


@contextlib.contextmanager
def open_directory(path: str, *, follow: bool = True) -> Iterator[int]:
    """Yield a descriptor of a directory; of the current one if the path is empty.

    Raises:
        OSError
    """
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    fd = os.open(path or os.curdir, flags if follow else flags | os.O_NOFOLLOW)
    try:
        yield fd
    finally:
        os.close(fd)


def make_private_directory(path: str) -> None:
    """Make a directory that only the user may write, and its parents.

    The umask does not matter: 000 would let every user replace files in it.

    Raises:
        OSError
    """
    parent = os.path.dirname(path)
    if parent and not os.path.isdir(parent):
        make_private_directory(parent)
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, 0o700)


@contextlib.contextmanager
def open_below(directory: int, path: str, *, make: bool = False) -> Iterator[int]:
    """A descriptor of a directory below an open one; no link on the way is followed.

    Args:
        path: its parts with ``/`` between them; empty for the open directory itself.
        make: make the parts that are missing, shared as ``directory`` is.

    Raises:
        OSError: a part is missing, or is a link or a file.
    """
    fd = directory
    try:
        for part in filter(None, path.split("/")):
            is_new = make and _make_directory(fd, part)
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
            inner = os.open(part, flags, dir_fd=fd)
            if is_new:
                adopt_from_directory(inner, fd)
            if fd != directory:
                os.close(fd)
            fd = inner
        yield fd
    finally:
        if fd != directory:
            os.close(fd)


def _make_directory(parent: int, name: str) -> bool:
    """Make a directory; return False if it exists already."""
    try:
        os.mkdir(name, dir_fd=parent)
    except FileExistsError:
        return False
    return True


def sync_directory(fd: int) -> None:
    """Make the names in a directory durable."""
    with contextlib.suppress(OSError):  # not every file system can sync a directory
        os.fsync(fd)
