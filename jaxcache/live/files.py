"""The files of a local cache directory: whole writes, bounded reads, locks, our own folder."""

import contextlib
import errno
import fcntl
import itertools
import os
import stat
import time
from collections.abc import Iterator

CACHE_SUFFIX, ATIME_SUFFIX = "-cache", "-atime"
LOCKFILE = ".lockfile"
OWN_DIR = ".jaxcache"
#: As in jaxcache's store: ``verify`` and ``prune`` know files of this name as left behind.
TEMP_PREFIX = ".jaxcache-tmp-"
MAX_ENTRY_BYTES = 2 << 30
_PART_BYTES = 16 << 20
#: JAX waits this long for its lock (lock_timeout_secs in jax/_src/lru_cache.py).
LOCK_SECONDS = 10.0
_numbers = itertools.count()


def read_file(path: str, limit: int = MAX_ENTRY_BYTES, *, is_use: bool = True) -> "bytes | None":
    """The bytes of a regular file; None where there is none.

    Args:
        is_use: False keeps the file's access time, as far as this user may.

    Raises:
        OSError: it cannot be read, or is larger than ``limit``.
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        try:
            fd = os.open(path, flags if is_use else flags | getattr(os, "O_NOATIME", 0))
        except PermissionError:  # O_NOATIME is the owner's
            fd = os.open(path, flags)
    except FileNotFoundError:
        return None
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or status.st_size > limit:
            raise OSError(errno.EFBIG, "not a regular file, or too large", path)
        size = status.st_size
        data = os.read(fd, size + 1)
        if len(data) == size:
            return data
        parts = [data]  # it is growing, or larger than one read
        while (part := os.read(fd, 1 << 20)) and sum(map(len, parts)) <= limit:
            parts.append(part)
        return b"".join(parts)
    finally:
        os.close(fd)


def write_whole(folder: str, name: str, data: bytes) -> None:
    """Write a file so that its name never has other than all of the bytes.

    Raises:
        OSError: it was not written; nothing is left under the name.
    """
    temp = os.path.join(folder, f"{TEMP_PREFIX}{os.getpid()}-{os.urandom(4).hex()}{next(_numbers)}")
    fd = os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        _adopt(fd, folder)
        try:
            view = memoryview(data)
            while view:  # in parts, so that the file looks young while it grows
                view = view[os.write(fd, view[:_PART_BYTES]) :]
        finally:
            os.close(fd)
        os.replace(temp, os.path.join(folder, name))
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temp)
        raise


def own_folder(root: str, *parts: str) -> str:
    """A folder of ours in a cache directory, made if it is not there."""
    os.makedirs(root, exist_ok=True)
    path = root
    for part in (OWN_DIR, *parts):
        folder, path = path, os.path.join(path, part)
        with contextlib.suppress(FileExistsError):
            os.mkdir(path)
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            _adopt(fd, folder)
            os.close(fd)
    return path


def open_to_lock(path: str) -> int:
    """Open a file that processes of all users lock, made if it is not there."""
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
    try:
        fd = os.open(path, flags | os.O_EXCL, 0o666)
    except FileExistsError:
        return os.open(path, flags, 0o666)
    _adopt(fd, os.path.dirname(path))
    return fd


def _adopt(fd: int, folder: str) -> None:
    """Let all who may write to a folder write to what was made in it, whatever the umask.

    As in jaxcache's store: JAX stops using a cache in which it cannot write to an ``-atime`` or
    ``.lockfile`` that another user left. In a sticky folder only the group gets permissions.
    """
    like, new = os.stat(folder), os.fstat(fd)
    shared = like.st_mode & (stat.S_IWGRP if like.st_mode & stat.S_ISVTX else 0o022)
    if not shared:
        return
    with contextlib.suppress(OSError):  # only what the file system and our rights allow
        if new.st_gid != like.st_gid:
            os.fchown(fd, -1, like.st_gid)
    mode = stat.S_IMODE(new.st_mode)
    read_too = shared | shared << 1 | (shared >> 1 if stat.S_ISDIR(new.st_mode) else 0)
    with contextlib.suppress(OSError):
        if mode | read_too != mode:
            os.fchmod(fd, mode | read_too)


def write_stamp(root: str, key: str) -> None:
    """Write the last use as JAX does under a size cap: 8 bytes, nanoseconds, little-endian."""
    write_whole(root, key + ATIME_SUFFIX, time.time_ns().to_bytes(8, "little"))


def delete_entry(root: str, key: str) -> None:
    """Delete an entry and then its stamp, so that JAX never finds one without a stamp."""
    for suffix in (CACHE_SUFFIX, ATIME_SUFFIX):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(root, key + suffix))


def quarantine_entry(root: str, key: str) -> bool:
    """Move an entry where ``jaxcache verify --restore`` finds it; whether it was there."""
    now_ns = time.time_ns()
    when = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now_ns // 10**9))
    folder = own_folder(root, "quarantine", f"{when}-{now_ns % 10**9:09d}")
    moved = False
    for suffix in (CACHE_SUFFIX, ATIME_SUFFIX):
        name = key + suffix
        with contextlib.suppress(FileNotFoundError):
            os.replace(os.path.join(root, name), os.path.join(folder, name))
            moved = moved or suffix == CACHE_SUFFIX
    return moved


@contextlib.contextmanager
def jax_lock(root: str) -> "Iterator[bool]":
    """Hold JAX's ``.lockfile`` as filelock does, with flock; yields whether it was obtained."""
    fd = open_to_lock(os.path.join(root, LOCKFILE))
    try:
        deadline = time.monotonic() + LOCK_SECONDS
        pause = 0.0002
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > deadline:
                    yield False
                    return
                time.sleep(pause)
                pause = min(2 * pause, 0.01)
            except OSError:  # a file system without flock
                break
            else:
                break
        yield True
    finally:
        os.close(fd)


def try_lock(fd: int, start: int = 0, length: int = 0) -> bool:
    """Take a POSIX record lock without waiting; the system frees it when the process ends."""
    try:
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, length, start)
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EAGAIN):
            return False
        raise
    return True
