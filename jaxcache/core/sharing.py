"""Files of a cache directory that several users write: owner, group and permissions."""

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
    with as_far_as_allowed():  # only root gives files away, and not on every mount
        if new.st_uid != like.st_uid:
            os.fchown(fd, like.st_uid, -1)
    with as_far_as_allowed():
        if new.st_gid != like.st_gid:
            os.fchown(fd, -1, like.st_gid)
