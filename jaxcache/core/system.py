"""What not every system or file system has, each with another way where it is missing."""

import contextlib
import errno
import fcntl
import math
import os
import stat
from typing import BinaryIO

#: The system's errors for a lock that another process holds: EACCES and EAGAIN.
HELD_ELSEWHERE = (PermissionError, BlockingIOError)


def expand_home(path: str) -> str:
    """Return a path whose leading ``~`` or ``~NAME`` is that user's home directory.

    Raises:
        FileNotFoundError: no such directory is known, as where ``HOME`` is unset and the user has
            no account. What ``os.path.expanduser`` returns then is a directory that is called ``~``
            and that anybody can have put into the working directory.
    """
    expanded = os.path.expanduser(path)
    if path.startswith("~") and not os.path.isabs(expanded):  # noqa: PTH117 (the path may be any)
        raise FileNotFoundError(errno.ENOENT, "no home directory is known", path)
    return expanded


def user_directory(variable: str, usual: str) -> str:
    """Return the directory that a variable names, else a usual one below the home directory.

    Raises:
        FileNotFoundError: no home directory is known.
    """
    return expand_home(os.environ.get(variable) or usual)


def is_full(directory: str) -> bool:
    """Return whether the file system of a directory has no room, or no inode, for this user."""
    try:
        space = os.statvfs(directory)
    except OSError:
        return False
    return not space.f_bavail or bool(space.f_files and not space.f_favail)


def open_regular(path: "str | os.PathLike[str]") -> "BinaryIO":
    """Open a regular file to read; a FIFO that somebody put in its place is not waited for.

    Raises:
        OSError
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "not a regular file", os.fspath(path))
    return os.fdopen(fd, "rb")


#: How a file that others may replace is opened: never through a link, nor waiting for a writer.
READ_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
_NOATIME = getattr(os, "O_NOATIME", 0)


def open_unread(path: str, flags: int = READ_FLAGS, directory: "int | None" = None) -> int:
    """Open a file whose access time stays as it is as far as this user may.

    Raises:
        OSError
    """
    try:
        return os.open(path, flags | _NOATIME, dir_fd=directory)
    except PermissionError:  # O_NOATIME is the owner's
        return os.open(path, flags, dir_fd=directory)


def is_own_or_roots(owner: int) -> bool:
    """Return whether a file of that owner is the user's or root's."""
    return owner in (os.geteuid(), 0)


def require_flock(fd: int, *, shared: bool = False) -> None:
    """Take ``flock`` without waiting.

    Raises:
        OSError: another process holds it, or the file system has none.
    """
    kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    fcntl.flock(fd, kind | fcntl.LOCK_NB)


def try_flock(fd: int) -> bool:
    """Take ``flock`` without waiting; True also where the file system has none to take."""
    try:
        require_flock(fd)
    except HELD_ELSEWHERE:
        return False
    except OSError:
        return True
    return True


def wait_for_flock(fd: int, *, shared: bool = False) -> None:
    """Take ``flock``, alone or together with others; nothing where the file system has none."""
    with contextlib.suppress(OSError):
        fcntl.flock(fd, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)


def try_lock(fd: int, start: int = 0, length: int = 0) -> bool:
    """Take a POSIX record lock without waiting; the system frees it when the process ends."""
    try:
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, length, start)
    except HELD_ELSEWHERE:
        return False
    return True


def try_lock_where_possible(fd: int) -> bool:
    """Take a record lock that only saves work; True also where the file system has no locks."""
    try:
        return try_lock(fd)
    except OSError:
        return True


def available_cores() -> int:
    """Return how many cores this process may use: by its affinity, and by whole ones of a quota."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max(1, int(min(cores or 1, processor_quota())))


def processor_quota(root: str = "/") -> float:
    """Return how many processors the control groups of this process allow; inf without a limit.

    Inside a container, the path of a group may be that of the host: the container's own group is
    then at the top of what is mounted.
    """
    quota = math.inf
    with contextlib.suppress(OSError), open(f"{root}proc/self/cgroup") as groups:
        for line in groups:
            controllers, path = line.rstrip("\n").split(":", 2)[1:]
            if not {"", "cpu"} & set(controllers.split(",")):
                continue
            directory = f"{root}sys/fs/cgroup/{controllers and 'cpu'}"  # none: version 2
            names = ("cpu.cfs_quota_us", "cpu.cfs_period_us") if controllers else ("cpu.max",)
            for part in ("", *path.split("/")):
                directory += f"/{part}"
                with contextlib.suppress(OSError, ValueError):  # the word "max": no limit
                    words = [word for name in names for word in _read_words(f"{directory}/{name}")]
                    limit, period = map(int, words)
                    quota = min(quota, limit / period) if limit > 0 else quota
    return quota


def _read_words(path: str) -> "list[str]":
    with open(path) as file:
        return file.read().split()


def resident_bytes(*pids: int) -> int:
    """Resident memory of processes; those that cannot be looked at count nothing."""
    total = 0
    for pid in pids:
        with (
            contextlib.suppress(OSError, ValueError, IndexError),
            open(f"/proc/{pid}/statm") as file,
        ):
            total += int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return total
