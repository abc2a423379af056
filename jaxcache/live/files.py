"""The files of a local cache directory."""

import contextlib
import errno
import os
import stat
import time
from collections.abc import Iterator

from ..core.atomic import new_file, open_below, open_directory
from ..core.names import ATIME_SUFFIX, CACHE_SUFFIX, OWN_DIR, quarantine_directory
from ..core.system import READ_FLAGS, open_unread

MAX_ENTRY_BYTES = 2 << 30
_PART_BYTES = 16 << 20


def read_file(
    path: str, limit: int = MAX_ENTRY_BYTES, *, directory: "int | None" = None
) -> "bytes | None":
    """Return the bytes of a regular file; None if it does not exist.

    Args:
        directory: a descriptor of the file's directory; a link is not followed then.

    Raises:
        OSError: it cannot be read, or is larger than ``limit``.
    """
    try:
        return read_entry(path, limit, directory=directory)[0]
    except FileNotFoundError:
        return None


def read_entry(
    path: str,
    limit: int = MAX_ENTRY_BYTES,
    *,
    directory: "int | None" = None,
    is_use: bool = True,
) -> "tuple[bytes, os.stat_result]":
    """Return the bytes of a regular file, and the system's status of the same file.

    Args:
        is_use: whether the access time may change, which counts as a use of an entry.

    Raises:
        OSError: as :func:`read_file`; FileNotFoundError if it does not exist.
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
    if directory is not None:
        flags |= os.O_NOFOLLOW
    fd = os.open(path, flags, dir_fd=directory) if is_use else open_unread(path, flags)
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or status.st_size > limit:
            raise OSError(errno.EFBIG, "not a regular file, or too large", path)
        size = status.st_size
        data = os.read(fd, size + 1)
        if len(data) == size:
            return data, status
        parts = [data]  # it is growing, or larger than one read
        while (part := os.read(fd, 1 << 20)) and sum(map(len, parts)) <= limit:
            parts.append(part)
        return b"".join(parts), status
    finally:
        os.close(fd)


def read_start(path: str, size: int) -> bytes:
    """The first bytes of a file, whose access time stays as it is as far as this user may.

    Raises:
        OSError
    """
    fd = open_unread(path)
    try:
        return os.read(fd, size)
    finally:
        os.close(fd)


def write_whole(directory: int, name: str, data: bytes) -> None:
    """Write a file so that its name never has other than all of the bytes.

    Raises:
        OSError: it was not written; nothing is left under the name.
    """
    view = memoryview(data)
    # In parts, so that the file looks young while it grows.
    parts = (view[start : start + _PART_BYTES] for start in range(0, len(view), _PART_BYTES))
    with new_file(directory, parts, like=directory, durable=False) as file:
        file.give_name(name)


@contextlib.contextmanager
def own_directory_of(root: str, *parts: str, make: bool = True) -> Iterator[int]:
    """A descriptor of a directory of ours in a cache directory; no link below the root is followed.

    Args:
        make: make what is missing, the cache directory included.

    Raises:
        OSError
    """
    if make:
        os.makedirs(root, exist_ok=True)
    with (
        open_directory(root) as fd,
        open_below(fd, "/".join((OWN_DIR, *parts)), make=make) as inner,
    ):
        yield inner


def touch(path: str) -> None:
    """Set the access time of a file, of a descriptor: its name can lead to another one any time.

    Raises:
        OSError: it is a link, or another user's.
    """
    fd = os.open(path, READ_FLAGS)
    try:
        os.utime(fd, ns=(time.time_ns(), os.fstat(fd).st_mtime_ns))
    finally:
        os.close(fd)


def write_stamp(directory: int, key: str) -> None:
    """Write the last use as JAX does under a size cap: 8 bytes, nanoseconds, little-endian."""
    write_whole(directory, key + ATIME_SUFFIX, time.time_ns().to_bytes(8, "little"))


def remove_entry(root: str, key: str) -> None:
    """Delete an entry and then its stamp, so that JAX never finds one without a stamp."""
    for suffix in (CACHE_SUFFIX, ATIME_SUFFIX):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(root, key + suffix))


def quarantine_entry(root: str, key: str) -> bool:
    """Move an entry where ``jaxcache verify --restore`` finds it; whether it was there."""
    moved = False
    directory = quarantine_directory(time.time_ns())
    with (
        open_directory(root) as source,
        open_below(source, directory, make=True) as target,
    ):
        for suffix in (CACHE_SUFFIX, ATIME_SUFFIX):
            name = key + suffix
            with contextlib.suppress(FileNotFoundError):
                os.replace(name, name, src_dir_fd=source, dst_dir_fd=target)
                moved = moved or suffix == CACHE_SUFFIX
    return moved
