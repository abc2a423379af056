"""Stop a process at each system call that writes, and decide what becomes of the call.

A seccomp filter in the child hands the calls that change a file to its supervisor
(seccomp_unotify(2), Linux 5.5 and later; no privilege, no ptrace, no tracer program). The
supervisor lets a call go on, makes it fail with an error, leaves it waiting, or kills the process
before it happens.
"""

import contextlib
import ctypes
import errno
import fcntl
import os
import platform
import select
import signal
import socket
import stat
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, auto
from pathlib import Path

#: Number by architecture (x86_64, aarch64) of the calls that change a file or a directory; None
#: where the architecture has no such call. From the kernel's tables of system calls.
_NUMBERS: dict[str, tuple[int | None, int | None]] = {
    "read": (0, 63),
    "pread64": (17, 67),
    "write": (1, 64),
    "pwrite64": (18, 68),
    "writev": (20, 66),
    "pwritev": (296, 70),
    "pwritev2": (328, 287),
    "sendfile": (40, 71),
    "copy_file_range": (326, 285),
    "open": (2, None),
    "openat": (257, 56),
    "creat": (85, None),
    "openat2": (437, 437),
    "truncate": (76, 45),
    "ftruncate": (77, 46),
    "fallocate": (285, 47),
    "rename": (82, None),
    "renameat": (264, 38),
    "renameat2": (316, 276),
    "link": (86, None),
    "linkat": (265, 37),
    "symlink": (88, None),
    "symlinkat": (266, 36),
    "unlink": (87, None),
    "unlinkat": (263, 35),
    "rmdir": (84, None),
    "mkdir": (83, None),
    "mkdirat": (258, 34),
    "chmod": (90, None),
    "fchmod": (91, 52),
    "fchmodat": (268, 53),
    "fchmodat2": (452, 452),
    "chown": (92, None),
    "lchown": (94, None),
    "fchown": (93, 55),
    "fchownat": (260, 54),
    "utimensat": (280, 88),
    "futimesat": (261, None),
    "utimes": (235, None),
    "fsync": (74, 82),
    "fdatasync": (75, 83),
}
_MACHINES = {"x86_64": (0, 0xC000003E, 317), "aarch64": (1, 0xC00000B7, 277)}
#: Calls on a descriptor, which count only where that is a file.
_ON_DESCRIPTOR = frozenset({"write", "pwrite64", "writev", "pwritev", "pwritev2", "sendfile"})
#: Calls that read, counted on their own, and only where they read a file of the world.
_READS = frozenset({"read", "pread64"})
#: Opening counts only where it may make or empty a file; the flags are argument 1 or 2.
_OPENS = {"open": 1, "openat": 2}

_NOTIFY = struct.Struct("=QIIiIQ6Q")  # struct seccomp_notif
_ANSWER = struct.Struct("=QqiI")  # struct seccomp_notif_resp
_RECEIVE, _SEND = 0xC0502100, 0xC0182101
_CONTINUE = 1


class Verdict(Enum):
    """What becomes of a call."""

    GO_ON = auto()
    KILL = auto()
    INTERRUPT = auto()
    """SIGINT, as by Ctrl-C; the call itself goes on."""
    WAIT = auto()
    """It stays where it is until :meth:`Supervised.release`."""


@dataclass(frozen=True, slots=True)
class Call:
    """One call that writes, before it happens."""

    number: int
    """Counted from 1 over all threads of the process."""
    name: str
    reads: bool = False
    """Whether it reads; such calls are counted apart."""


#: Decides over a call: a verdict, or the errno that it fails with.
Decide = Callable[[Call], Verdict | int]


def go_on(call: Call) -> Verdict:
    """Let everything happen."""
    return Verdict.GO_ON


@dataclass
class Supervised:
    """A forked process whose writing calls are asked about."""

    pid: int
    listener: int
    decide: Decide
    root: Path | None = None
    """The directory whose files count when they are read; None where reading counts nowhere."""
    is_family: bool = False
    """Whether the calls of the programs that it started count, too; a kill is of who calls."""
    calls: list[str] = field(default_factory=list)
    """The names of the calls that write."""
    reads: int = 0
    """The number of the calls that read."""
    status: int | None = None
    """As of waitpid, once it has ended."""
    _waiting: list[int] = field(default_factory=list)

    def run(
        self, *, timeout_seconds: float = 120.0, signal_at: tuple[float, int] | None = None
    ) -> int | None:
        """Serve the process until it ends or waits; its exit code, -signal, or None if it waits.

        Args:
            signal_at: after how many seconds which signal is sent to it.

        Raises:
            TimeoutError: it did neither in time; it has been killed.
        """
        started = time.monotonic()
        deadline = started + timeout_seconds
        poll = select.poll()
        poll.register(self.listener, select.POLLIN)
        while not self._waiting:
            if signal_at and time.monotonic() > started + signal_at[0]:
                os.kill(self.pid, signal_at[1])  # not reaped yet, so the number is its own
                signal_at = None
            for _, happened in poll.poll(1 if signal_at else 20):
                if happened & select.POLLIN:
                    self._serve()
            if self._ended():
                return self.exit_code
            if time.monotonic() > deadline:
                self.kill()
                raise TimeoutError(f"stuck after {len(self.calls)} calls: {self.calls[-3:]}")
        return None

    def release(self) -> None:
        """Let the calls that wait happen."""
        waiting, self._waiting = self._waiting, []
        for notice in waiting:
            self._answer(notice, 0)

    def kill(self) -> None:
        """Kill it and everything that it started."""
        if self.status is None:
            os.killpg(self.pid, signal.SIGKILL)
            _, self.status = os.waitpid(self.pid, 0)
            self._close()

    @property
    def exit_code(self) -> int:
        """As subprocess has it: negative is a signal."""
        assert self.status is not None
        return os.waitstatus_to_exitcode(self.status)

    def _ended(self) -> bool:
        if self.status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if not pid:
                return False
            self.status = status
            self._close()
        return True

    def _close(self) -> None:
        os.close(self.listener)
        self.listener = -1

    def _serve(self) -> None:
        notice = bytearray(_NOTIFY.size)
        try:
            fcntl.ioctl(self.listener, _RECEIVE, notice)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.EINTR):
                return  # the caller is dead already
            raise
        number, thread, _, call, _, _, *arguments = _NOTIFY.unpack(notice)
        name = _NAMES[call]
        is_ours = self._is_ours(thread)
        if (is_ours or self.is_family) and self._counts(name, thread, arguments):
            if name in _READS:
                self.reads += 1
                call_made = Call(self.reads, name, reads=True)
            else:
                self.calls.append(name)
                call_made = Call(len(self.calls), name)
            verdict = self.decide(call_made)
            if verdict is Verdict.KILL:
                if is_ours:
                    self.kill()
                else:
                    os.kill(thread, signal.SIGKILL)
                return
            if verdict is Verdict.INTERRUPT:
                os.kill(self.pid, signal.SIGINT)
            if verdict is Verdict.WAIT:
                self._waiting.append(number)
                return
            if not isinstance(verdict, Verdict):
                self._answer(number, -verdict)
                return
        self._answer(number, 0)

    def _counts(self, name: str, thread: int, arguments: list[int]) -> bool:
        if name in _READS:
            return _path_of(thread, arguments[0]).startswith(f"{self.root}/")
        return _writes(name, thread, arguments)

    def _is_ours(self, thread: int) -> bool:
        """Whether it is a thread of the process itself, and not of a program that it started."""
        return os.path.exists(f"/proc/{self.pid}/task/{thread}")

    def _answer(self, notice: int, error: int) -> None:
        answer = _ANSWER.pack(notice, 0, error, 0 if error else _CONTINUE)
        try:
            fcntl.ioctl(self.listener, _SEND, answer)
        except OSError as failure:
            if failure.errno != errno.ENOENT:
                raise


def _path_of(thread: int, descriptor: int) -> str:
    try:
        return os.readlink(f"/proc/{thread}/fd/{descriptor}")
    except OSError:
        return ""


def _writes(name: str, thread: int, arguments: list[int]) -> bool:
    if name in _OPENS:
        return bool(arguments[_OPENS[name]] & (os.O_CREAT | os.O_TRUNC))
    if name in _ON_DESCRIPTOR:
        try:
            status = Path(f"/proc/{thread}/fd/{arguments[0]}").stat()
        except OSError:
            return False
        return arguments[0] > 2 and stat.S_ISREG(status.st_mode)
    return True


def start(
    child: Callable[[], int],
    decide: Decide = go_on,
    *,
    prepare: Callable[[], None] | None = None,
    root: Path | None = None,
    is_family: bool = False,
) -> Supervised:
    """Fork; have the child run a function under supervision and exit with what it returns.

    The process must have one thread only. The child has a session of its own.

    Args:
        prepare: run in the child before the supervision starts.
        root: the directory whose files count when they are read; by default none.
        is_family: whether the calls of the programs that it starts count, too.

    Raises:
        OSError: this kernel or container has no such supervision.
    """
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if not pid:
        _run_child(prepare, child, theirs, with_reads=root is not None)
    theirs.close()
    with ours:
        _, fds, _, _ = socket.recv_fds(ours, 8, 1)
        failure = b"" if fds else ours.recv(8)
    if not fds:
        os.waitpid(pid, 0)
        number = int.from_bytes(failure, "little") or errno.ENOSYS
        raise OSError(number, os.strerror(number))
    return Supervised(pid, fds[0], decide, root, is_family)


def _run_child(
    prepare: Callable[[], None] | None,
    child: Callable[[], int],
    channel: socket.socket,
    *,
    with_reads: bool,
) -> None:
    code = 70
    try:
        os.setsid()
        signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in a background job
        if prepare:
            prepare()
        try:
            listener = _install(with_reads=with_reads)
        except OSError as error:
            channel.send(b"")
            channel.send((error.errno or errno.ENOSYS).to_bytes(4, "little"))
            os._exit(code)
        socket.send_fds(channel, [b"fd"], [listener])
        os.close(listener)
        channel.close()
        code = child()
    except KeyboardInterrupt:  # before its first line or after its last
        code = 130
    finally:
        os._exit(code)


def adopt_orphans() -> None:
    """Become the parent of what the programs started and left, so that it can be waited for."""
    set_child_subreaper = 36
    ctypes.CDLL(None).prctl(set_child_subreaper, 1, 0, 0, 0)


def wait_for_orphans() -> None:
    """Wait until everything has ended that this process has started or adopted."""
    with contextlib.suppress(ChildProcessError):
        while True:
            os.waitpid(-1, 0)


def why_not() -> str | None:
    """Why processes cannot be supervised here; None where they can."""
    if platform.system() != "Linux" or platform.machine() not in _MACHINES:
        return "needs Linux on x86-64 or aarch64"
    try:
        code = start(lambda: 0).run(timeout_seconds=10)
    except (OSError, TimeoutError) as error:
        return f"this kernel or container does not let a process supervise its child: {error}"
    return None if code == 0 else f"the supervised child ended with {code}"


def _install(*, with_reads: bool) -> int:
    """Install the filter on this process; the descriptor to supervise it by."""
    libc = ctypes.CDLL(None, use_errno=True)
    program = _filter(with_reads=with_reads)
    code = (ctypes.c_char * len(program)).from_buffer_copy(program)
    header = struct.pack("@HxxxxxxP", len(program) // 8, ctypes.addressof(code))
    no_new_privileges, set_mode_filter, new_listener = 38, 1, 1 << 3
    if libc.prctl(no_new_privileges, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")
    syscall = _MACHINES[platform.machine()][2]
    listener = libc.syscall(syscall, set_mode_filter, new_listener, header)
    if listener < 0:
        raise OSError(ctypes.get_errno(), "seccomp")
    return int(listener)


def _column() -> int:
    return _MACHINES.get(platform.machine(), (0, 0, 0))[0]


_NAMES = {
    numbers[_column()]: name for name, numbers in _NUMBERS.items() if numbers[_column()] is not None
}


def _filter(*, with_reads: bool) -> bytes:
    """Classic BPF: ask about the calls that we name, allow all others."""
    load, jump_equal, give = 0x20, 0x15, 0x06
    allow, ask = 0x7FFF0000, 0x7FC00000
    asked = (n for n, name in _NAMES.items() if with_reads or name not in _READS)
    numbers = sorted(n for n in asked if n is not None)
    words = [(load, 0, 0, 4), (jump_equal, 1, 0, _MACHINES[platform.machine()][1])]
    words += [(give, 0, 0, allow), (load, 0, 0, 0)]
    for index, number in enumerate(numbers):
        words.append((jump_equal, len(numbers) - index, 0, number))
    words += [(give, 0, 0, allow), (give, 0, 0, ask)]
    return b"".join(struct.pack("=HBBI", *word) for word in words)
