"""Notice what the listener did not report: Pythons that it never reached, entries of theirs."""

import contextlib
import ctypes
import os
import socket
import struct
import sys
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from jaxcache.entry.names import key_of
from jaxcache.errors import JaxcacheError, NoJaxError

if TYPE_CHECKING:
    from jaxcache.warm.report.report import Report
    from jaxcache.warm.torch.report import TorchReport

#: What ``injected/hook.py`` adds to the address of the events.
_SUFFIX = ".alive"
#: More than so many connections at once wait for the next look; the kernel has a limit of its own.
_BACKLOG = 4096
_CREDENTIALS = struct.Struct("3i")
#: Torch asks a Python of its own what this CPU can do (``_inductor/cpu_vec_isa.py``, 2.9 to 2.13).
_PROBE = b"cdll.LoadLibrary("
#: To import jax or torch takes more; a child that has just been forked has used less.
_LEAST_CPU_SECONDS = 0.05
_SHOWN_CHARACTERS = 60
#: ``PR_SET_CHILD_SUBREAPER`` and ``PR_GET_CHILD_SUBREAPER`` of ``linux/prctl.h``.
_SET_REAPER = 36
_GET_REAPER = 37
#: Whether this process is jaxcache's own, as are all its children; the command line sets it.
owns_process = False


_NO_COMPILE = "the program failed before its first compile; its own output says why"


def describe_failure(library: str) -> str:
    """Explain why nothing was observed of a program that failed."""
    return f"the program failed before any use of {library} was seen; its own output says why"


def require_observed(report: "Report | TorchReport", library: str) -> None:
    """Refuse to explain a run of which nothing was observed, or that failed before any compile.

    Raises:
        JaxcacheError: ``program-failed``.
        NoJaxError: ``unknown-jax`` or ``unknown-torch``.
    """
    if report.modules:
        return
    if code := report.script_exit_code:
        how = f"exit code {code}" if code > 0 else f"signal {-code}"
        why = next(iter(report.unobserved), _NO_COMPILE)
        raise JaxcacheError(f"{how}: {why}", code="program-failed")
    if report.unobserved:
        raise NoJaxError(report.unobserved[0], code=f"unknown-{library}")


class HookConnections:
    """The processes that have the hook: each holds a connection while its program runs.

    The kernel closes it when the program ends or starts another one in its place (exec), and names
    its process. A forked child opens its own.
    """

    def __init__(self, events: str) -> None:
        self._server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._server.bind(events + _SUFFIX)
        self._server.listen(_BACKLOG)
        self._server.setblocking(False)
        self._connections: dict[socket.socket, int] = {}

    def __enter__(self) -> "HookConnections":
        return self

    def __exit__(self, *_: object) -> None:
        for opened in (self._server, *self._connections):
            opened.close()

    def pids(self) -> set[int]:
        """Return the ids of the processes that are connected now."""
        with contextlib.suppress(BlockingIOError):
            while True:
                connection, _ = self._server.accept()
                connection.setblocking(False)
                self._connections[connection] = _peer(connection)
        for connection in [c for c in self._connections if _is_closed(c)]:
            del self._connections[connection]
            connection.close()
        return set(self._connections.values())


def _peer(connection: socket.socket) -> int:
    if not sys.platform.startswith("linux"):
        return 0
    data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid: int = _CREDENTIALS.unpack(data)[0]
    return pid


def _is_closed(connection: socket.socket) -> bool:
    try:
        return not connection.recv(1)
    except BlockingIOError:
        return False
    except OSError:
        return True


class Descendants:
    """Looks through the processes of a run for those without the hook; on Linux, and nowhere else.

    Args:
        library: a part of the path of a library that nothing but jax (or torch) loads.
    """

    def __init__(self, library: bytes, presence: HookConnections) -> None:
        self._library = library
        self._presence = presence
        self.suspects: frozenset[int] = frozenset()
        """Those without the hook at the last look; at the next one it is certain."""
        self.unobserved: dict[int, str] = {}
        """Command lines of those that have loaded it without the listener, by process id."""

    def look(self, pids: Iterable[int]) -> None:
        """Look at the processes that run now: these, and all below them."""
        present = self._presence.pids()
        loaded: dict[int, str] = {}
        waiting = list(pids)
        while waiting:
            pid = waiting.pop()
            with contextlib.suppress(OSError, ValueError):  # it has ended
                waiting += _children(pid)
                if pid not in present and (command := self._loads(pid)) is not None:
                    loaded[pid] = command
        absent = loaded.keys() - self._presence.pids() if loaded else set()
        for pid in absent & self.suspects:
            self.unobserved.setdefault(pid, loaded[pid])
        self.suspects = frozenset(absent)

    def _loads(self, pid: int) -> str | None:
        """Return the command of a process that has loaded the library; None where it has not."""
        maps = Path(f"/proc/{pid}/maps").read_bytes()
        if self._library not in maps or _cpu_seconds(pid) < _LEAST_CPU_SECONDS:
            return None
        command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").strip()
        if not command:  # the program has overwritten it
            command = b"[%s]" % Path(f"/proc/{pid}/comm").read_bytes().strip()
        return None if _PROBE in command else os.fsdecode(command)[:_SHOWN_CHARACTERS]


def _cpu_seconds(pid: int) -> float:
    """Return what a process has used since it was forked (proc(5): ``utime`` and ``stime``)."""
    fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _children(pid: int) -> Iterator[int]:
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # this thread has ended
            yield from map(int, (task / "children").read_bytes().split())


class Orphans:
    """Makes this process the parent of descendants whose parents have ended, such as daemons.

    On Linux, and only in a process of jaxcache's own: elsewhere a new child may not be ours.
    """

    def __init__(self) -> None:
        self._before: frozenset[int] = frozenset()
        self._was = ctypes.c_int(0)
        self._adopts = False

    def __enter__(self) -> "Orphans":
        if owns_process and sys.platform.startswith("linux"):
            with contextlib.suppress(OSError):  # /proc is hidden
                self._before = frozenset(_children(os.getpid()))
                _prctl(_GET_REAPER, ctypes.byref(self._was))
                self._adopts = _prctl(_SET_REAPER, ctypes.c_ulong(1)) == 0
        return self

    def __exit__(self, *_: object) -> None:
        if self._adopts:
            _prctl(_SET_REAPER, ctypes.c_ulong(self._was.value))

    def running(self, own: Collection[int]) -> list[int]:
        """Return the orphans that run, and release those that have ended.

        Args:
                own: children that this process has started itself since, and that run.
        """
        if not self._adopts:
            return []
        with contextlib.suppress(OSError):
            adopted = {*_children(os.getpid())} - self._before - {*own}
            return [pid for pid in adopted if not _has_ended(pid)]
        return []


def _has_ended(pid: int) -> bool:
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return True


def _prctl(option: int, argument: object) -> int:
    zeros = (ctypes.c_ulong(0),) * 3
    result: int = ctypes.CDLL(None).prctl(option, argument, *zeros)
    return result


def unreported_entries(cache_dir: str, since_ns: int, reported: Collection[str]) -> list[str]:
    """Return names of entries that were written since then under keys that no process reported."""
    written: list[str] = []
    with contextlib.suppress(OSError):  # a bucket, or no directory yet
        if os.stat(cache_dir).st_mtime_ns < since_ns:
            return []
        for name in os.listdir(cache_dir):
            if (key := key_of(name)) and key not in reported:
                with contextlib.suppress(FileNotFoundError):
                    if os.stat(os.path.join(cache_dir, name)).st_mtime_ns >= since_ns:
                        written.append(name)
    return sorted(written)
