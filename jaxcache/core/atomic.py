"""New files that appear whole or not at all, inside one open directory, with its owner and mode.

And directories, opened by descriptor; and locks: JAX's own ``.lockfile``, held as JAX with a size
cap does, and record locks.
``jax/_src/lru_cache.py`` (0.4.30 and later) takes ``filelock.FileLock``, which on Unix is ``flock``
on that file.
"""

import contextlib
import errno
import fcntl
import functools
import os
import stat
import sys
import time
from collections.abc import Iterable, Iterator
from typing import Any

from .names import CACHE_TAG, LOCKFILE, OWN_DIR, TEMP_PREFIX, is_cache_name
from .system import READ_FLAGS, require_flock, try_flock


class TemporaryFile:
    """A new file under a temporary name, locked; gone at the end of its context unless named.

    Raises:
        OSError
    """

    def __init__(self, directory: int, temp: str, mode: int) -> None:
        self._directory = directory
        self._temp = temp
        self._has_name = False
        self.fd = _create_locked(directory, temp, mode)

    def give_name(self, name: str, *, replace: bool = True) -> None:
        """Rename it in its directory.

        Args:
            replace: False refuses a name that is taken (FileExistsError).

        Raises:
            OSError
        """
        if replace:
            directory = self._directory
            os.replace(self._temp, name, src_dir_fd=directory, dst_dir_fd=directory)
        else:
            move_to_new_name(self._directory, self._temp, self._directory, name)
        self._has_name = True

    def __enter__(self) -> "TemporaryFile":
        return self

    def __exit__(self, *_: object) -> None:
        if not self._has_name:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._temp, dir_fd=self._directory)
        os.close(self.fd)


@contextlib.contextmanager
def new_file(
    directory: int,
    chunks: "Iterable[bytes | memoryview]",
    times_ns: "tuple[int, int] | None" = None,
    *,
    like: int | None = None,
    mode: int = 0o666,
    durable: bool = True,
) -> Iterator[TemporaryFile]:
    """Write and sync a file under a temporary name, which is gone afterwards in any case.

    The file stays locked until then, which distinguishes it from one that a killed process left.

    Args:
        times_ns: of its last access and change; None for now.
        like: a descriptor whose owner, permissions and extended attributes the file gets; of its
            own directory, whose owner, group and write permissions it gets. Otherwise it is ours.
        mode: its permissions, minus the umask, if ``like`` is not a file.
        durable: False leaves out the sync, for what can be had again or is synced by the caller.
    """
    temp = f"{TEMP_PREFIX}{os.getpid()}-{os.urandom(6).hex()}"
    with TemporaryFile(directory, temp, mode) as file:
        fd = file.fd
        for chunk in chunks:
            view = memoryview(chunk)
            while view:
                view = view[os.write(fd, view) :]
        if like == directory:
            adopt_from_directory(fd, directory)
        elif like is not None:
            _copy_attributes(fd, like)
        if times_ns is not None:
            os.utime(fd, ns=times_ns)
        if durable:
            os.fsync(fd)
        yield file


def _copy_attributes(fd: int, like: int) -> None:
    """Copy permissions, and owner, access lists and extended attributes as far as we may.

    Never setuid and setgid, which JAX does not set and which must not survive new bytes.

    Raises:
        OSError: the file would have other permissions.
    """
    status = os.fstat(like)
    new = os.fstat(fd)
    change_owner(fd, new, status)
    mode = stat.S_IMODE(status.st_mode) & 0o777
    if stat.S_IMODE(new.st_mode) != mode:  # equal on a file system without permissions
        os.fchmod(fd, mode)
    if sys.platform == "linux":
        with as_far_as_allowed():
            for name in os.listxattr(like):
                if name != "security.capability":  # what setuid is for single rights
                    with as_far_as_allowed():
                        os.setxattr(fd, name, os.getxattr(like, name))


def move_to_new_name(
    source_directory: int, source: str, target_directory: int, target: str
) -> None:
    """Rename a file, atomically and never over another one.

    With ``renameat2`` where the file system knows it (Linux), else with a hard link (macOS, NFS).
    Many FUSE mounts have no links either. There only other processes that rename like this are
    kept from interfering. JAX is not, but its entry of the same name is as good.

    Raises:
        FileExistsError: the name is taken.
        OSError
    """
    directories = {"src_dir_fd": source_directory, "dst_dir_fd": target_directory}
    if _rename_without_replacing(source_directory, source, target_directory, target):
        return
    try:
        os.link(source, target, follow_symlinks=False, **directories)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
    else:
        try:
            os.unlink(source, dir_fd=source_directory)
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(target, dir_fd=target_directory)
            raise
        return
    with claimed(target_directory, target):
        with contextlib.suppress(FileNotFoundError):
            os.stat(target, dir_fd=target_directory, follow_symlinks=False)
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), target)
        os.replace(source, target, **directories)


_NO_LINKS = frozenset(
    {errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EMLINK, errno.EXDEV}
)
_NO_RENAMEAT2 = frozenset({errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP})
_RENAME_NOREPLACE = 1  # linux/fs.h


@functools.cache
def _renameat2() -> Any:
    """Find the function in the C library; None where it is missing."""
    import ctypes

    return getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)


def _rename_without_replacing(
    source_directory: int, source: str, target_directory: int, target: str
) -> bool:
    """Call ``renameat2``; False where the system or the file system does not know it."""
    renameat2 = _renameat2()
    if renameat2 is None:
        return False
    import ctypes

    names = os.fsencode(source), os.fsencode(target)
    if not renameat2(source_directory, names[0], target_directory, names[1], _RENAME_NOREPLACE):
        return True
    number = ctypes.get_errno()
    if number in _NO_RENAMEAT2:
        return False
    raise OSError(number, os.strerror(number), source, None, target)


#: How long a claim counts if ``flock`` cannot show whether the process that made it still lives.
_CLAIM_SECONDS = 10.0


@contextlib.contextmanager
def claimed(directory: int, name: str) -> Iterator[None]:
    """Keep other processes that call this from using the name, also where ``flock`` is missing."""
    import hashlib  # takes OpenSSL along, and claims are rare

    claim = f"{TEMP_PREFIX}claim-{hashlib.sha256(os.fsencode(name)).hexdigest()[:16]}"
    deadline = time.monotonic() + _CLAIM_SECONDS
    with contextlib.ExitStack() as held:
        while True:
            try:
                held.enter_context(locked_name(directory, claim))
                break
            except FileExistsError:
                with contextlib.suppress(OSError):
                    if remove_if_abandoned(directory, claim):
                        continue
                if time.monotonic() > deadline:
                    with contextlib.suppress(OSError):
                        os.unlink(claim, dir_fd=directory)
                time.sleep(0.01)
        yield


def is_named(fd: int, directory: int, name: str) -> bool:
    """Whether a name in a directory still is the open file."""
    try:
        status = os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return os.path.samestat(status, os.fstat(fd))


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
    with open_directory(os.path.dirname(path)) as directory:
        remove_all_abandoned(directory)
        with new_file(directory, chunks, mode=mode, durable=durable) as file:
            file.give_name(os.path.basename(path))
        if durable:
            sync_directory(directory)


@contextlib.contextmanager
def locked_name(directory: int, temp: str) -> Iterator[None]:
    """An empty file of that name, which is not abandoned as long as this process lives.

    Raises:
        OSError
    """
    with TemporaryFile(directory, temp, 0o666) as file:
        adopt_from_directory(file.fd, directory)
        yield


def _create_locked(directory: int, name: str, mode: int) -> int:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    while True:
        fd = os.open(name, flags, mode, dir_fd=directory)
        is_locked = try_flock(fd)
        if is_named(fd, directory, name):
            if is_locked:
                return fd
            with contextlib.suppress(FileNotFoundError):  # whoever holds it might never end
                os.unlink(name, dir_fd=directory)
        os.close(fd)  # another process has removed the file before it was locked


def remove_if_abandoned(directory: int, temp: str) -> bool:
    """Remove a temporary file whose writer is gone; False if it lives, or that is unknown.

    A writer holds flock on its file, which the system releases when the writer dies; on a file
    system without flock it is unknown.

    Raises:
        OSError: it cannot be opened or removed.
    """
    if not temp.startswith(TEMP_PREFIX):
        return False
    fd = os.open(temp, READ_FLAGS, dir_fd=directory)
    try:
        require_flock(fd)
        os.unlink(temp, dir_fd=directory)
    finally:
        os.close(fd)
    return True


def remove_all_abandoned(directory: int) -> None:
    """Remove the temporary files in a directory whose writers are known to be gone."""
    with contextlib.suppress(OSError):
        for name in os.listdir(directory):
            with contextlib.suppress(OSError):
                remove_if_abandoned(directory, name)


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
    """Take the lock if it is free; (descriptor, whether the file was made for it).

    On a full disk nobody can make the file, JAX included: there the directory itself is locked.
    """
    try:
        fd, is_new = open_lock(directory, LOCKFILE)
        name = LOCKFILE
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        fd, is_new, name = os.open(".", os.O_RDONLY | os.O_CLOEXEC, dir_fd=directory), False, "."
    try:
        if try_flock(fd) and is_named(fd, directory, name):
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


@contextlib.contextmanager
def hold_lock(directory: int, name: str, *, seconds: float = 0.0) -> Iterator[bool]:
    """Lock a file of a directory, which stays; yield False where another process keeps it locked.

    Args:
        seconds: how long to wait for it.
    """
    fd, _ = open_lock(directory, name)
    try:
        deadline = time.monotonic() + seconds
        while not (is_held := try_flock(fd)) and time.monotonic() < deadline:
            time.sleep(0.005)
        yield is_held
    finally:
        with contextlib.suppress(OSError):  # also for a child that has inherited the descriptor
            fcntl.flock(fd, fcntl.LOCK_UN)
        os.close(fd)


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
                if part == OWN_DIR:
                    _tag_cache(fd)
            if fd != directory:
                os.close(fd)
            fd = inner
        yield fd
    finally:
        if fd != directory:
            os.close(fd)


#: The signature that backups look for, and a line for people.
_TAG = b"""Signature: 8a477f597d28d172789f06886806bc55
# A cache of JAX or torch, tagged by jaxcache; see https://bford.info/cachedir/
"""


def _tag_cache(directory: int) -> None:
    """Tag a directory as a cache, once; not where a name shows that other files are in it."""
    with contextlib.suppress(OSError):
        if all(map(is_cache_name, os.listdir(directory))):
            with new_file(directory, [_TAG], like=directory, durable=False) as file:
                file.give_name(CACHE_TAG, replace=False)


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
