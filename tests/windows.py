"""Run ``jaxcache`` as far as that can be done like on Windows: without what Python lacks there.

``python windows.py [ARG…]``. Modules of POSIX cannot be imported, functions and flags of ``os``,
``signal`` and ``socket`` are missing, no function takes ``dir_fd``, and a directory cannot be
opened. What other packages do on Windows is theirs: they are imported before. Paths, drives and
files that are open elsewhere stay as on Linux.
"""

import contextlib
import errno
import importlib.abc
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from typing import Any

MODULES = ("fcntl", "grp", "pwd", "resource", "termios", "tty", "pty", "syslog", "readline")
#: Of Python 3.11 on Windows (docs.python.org, "Availability: Unix").
OS = (
    *("getuid", "geteuid", "getgid", "getegid", "getgroups", "getresuid", "setuid"),
    *("O_NOFOLLOW", "O_DIRECTORY", "O_CLOEXEC", "O_NONBLOCK", "O_NOATIME", "O_SYNC", "O_PATH"),
    *("ST_RDONLY", "ST_NOATIME", "WNOHANG", "EX_OK", "major", "minor", "mkfifo", "mknod"),
    *("chown", "fchown", "lchown", "fchmod", "fchdir", "fork", "forkpty", "killpg", "setsid"),
    *("getpgid", "getpgrp", "statvfs", "fstatvfs", "sysconf", "uname", "nice", "wait", "wait4"),
    *("pread", "pwrite", "preadv", "readv", "writev", "sendfile", "memfd_create"),
    *("posix_fadvise", "posix_fallocate", "posix_spawn", "sched_getaffinity", "register_at_fork"),
    *("getxattr", "setxattr", "listxattr", "removexattr", "sync", "fdatasync", "lockf", "openpty"),
    *("set_blocking", "get_blocking", "pathconf", "fpathconf", "getloadavg", "ctermid", "chroot"),
)
SIGNALS = (
    *("SIGHUP", "SIGKILL", "SIGQUIT", "SIGPIPE", "SIGCHLD", "SIGUSR1", "SIGUSR2", "SIGALRM"),
    *("SIGCONT", "SIGSTOP", "SIGTSTP", "SIGTTIN", "SIGTTOU", "SIGWINCH", "pthread_sigmask"),
)
#: Functions of ``os`` that take ``dir_fd`` elsewhere.
WITH_DIRECTORIES = ("open", "stat", "mkdir", "unlink", "rename", "replace", "link", "rmdir")


class _Blocker(importlib.abc.MetaPathFinder):
    def find_spec(self, name: str, *_: Any) -> None:
        if name in MODULES:
            raise ModuleNotFoundError(f"No module named {name!r} (as on Windows)", name=name)


def _without_directories(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(path: Any, *args: Any, **keywords: Any) -> Any:
        if any(keywords.get(n) is not None for n in ("dir_fd", "src_dir_fd", "dst_dir_fd")):
            raise NotImplementedError("dir_fd unavailable on this platform")
        if function is _open and os.path.isdir(path):
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return function(path, *args, **keywords)

    return call


_open = os.open


def _status(function: Callable[..., os.stat_result]) -> Callable[..., os.stat_result]:
    """Give each file the owner 0 and permissions for everybody."""

    def call(*args: Any, **keywords: Any) -> os.stat_result:
        status = function(*args, **keywords)
        times = {n: getattr(status, n) for n in ("st_atime_ns", "st_mtime_ns", "st_ctime_ns")}
        return os.stat_result((status.st_mode | 0o666, *status[1:4], 0, 0, *status[6:]), times)

    return call


def _scandir(path: Any = ".") -> Any:
    if isinstance(path, int):
        raise TypeError("scandir: path should be string, bytes, os.PathLike or None, not int")
    return _REAL_SCANDIR(path)


_REAL_SCANDIR = os.scandir


def pretend() -> None:
    """Take from this process what Windows lacks."""
    for package in ("typer.main", "typer.core", "rich.console", "humanize", "cramjam"):
        __import__(package)
    with contextlib.suppress(ImportError):  # which Typer 0.29 loads where it parses
        from pydantic import TypeAdapter

        TypeAdapter(int).validate_python("1")
    for package in ("google.protobuf.message", "tempfile", "subprocess", "importlib.metadata"):
        __import__(package)
    sys.meta_path.insert(0, _Blocker())
    for name in MODULES:
        sys.modules.pop(name, None)
    for owner, names in ((os, OS), (signal, SIGNALS), (socket, ("AF_UNIX",)), (time, ("tzset",))):
        for name in names:
            if hasattr(owner, name):
                delattr(owner, name)
    for name in WITH_DIRECTORIES:
        setattr(os, name, _without_directories(getattr(os, name)))
    for name in ("stat", "lstat", "fstat"):
        setattr(os, name, _status(getattr(os, name)))
    os.scandir = _scandir  # type: ignore[assignment]
    for name in ("supports_dir_fd", "supports_fd", "supports_effective_ids"):
        setattr(os, name, set())
    sys.platform = "win32"


if __name__ == "__main__":
    pretend()
    from jaxcache.cli.main import run

    sys.exit(run(sys.argv[1:]))
