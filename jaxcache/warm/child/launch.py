"""Start the user's commands with the listener in them, and gather its events.

A command runs as it would without us: same standard streams, arguments, working directory and
exit code. What is added is environment: ``injected/startup`` on ``PYTHONPATH``, whose
``sitecustomize`` waits for jax and then reports over a Unix socket.
"""

import contextlib
import errno
import math
import os
import queue
import select
import shlex
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from jaxcache.errors import UsageError, reporting

if TYPE_CHECKING:
    from jaxcache.core.compile_event import RunEvent

#: What a socket's address leaves of 107 bytes (Linux) for its directory.
_MAX_DIRECTORY_BYTES = 100


@contextlib.contextmanager
def socket_directory() -> Iterator[str]:
    """Make a private directory for a socket, and remove it at the end.

    A socket needs no space for contents, so a full disk does not keep the program from starting.
    :mod:`tempfile` would take longer to import than all that is done here.

    Raises:
        OSError: it cannot be made in any directory for temporary files.
    """
    named = filter(None, map(os.environ.get, ("TMPDIR", "TEMP", "TMP")))
    for top in (*named, "/tmp", "/var/tmp", "/dev/shm"):  # noqa: S108
        directory = os.path.abspath(f"{top}/jaxcache-{os.urandom(8).hex()}")
        if len(os.fsencode(directory)) <= _MAX_DIRECTORY_BYTES:
            with contextlib.suppress(OSError):
                os.mkdir(directory, 0o700)
                break
    else:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/tmp")  # noqa: S108
    try:
        yield directory
    finally:
        import shutil

        shutil.rmtree(directory, ignore_errors=True)


class EventServer:
    """A listening socket, and one queue for what every connection sends."""

    def __init__(self, directory: str) -> None:
        self.address = os.path.join(directory, "events")
        self._server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._server.bind(self.address)
        self._server.listen(64)
        self._events: queue.SimpleQueue[RunEvent | None] = queue.SimpleQueue()
        self._open = 0
        self._lock = threading.Lock()

    def __enter__(self) -> "EventServer":
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)  # closing alone leaves the thread in accept()
        self._server.close()

    def wake(self) -> None:
        """Make :meth:`next` return."""
        self._events.put(None)

    def next(self, timeout_seconds: float | None) -> "RunEvent | None":
        """The next event; None after a wake or when the time is up."""
        try:
            return self._events.get(timeout=timeout_seconds)
        except queue.Empty:
            return None

    def drain(self, linger_seconds: float) -> "Iterator[RunEvent]":
        """Yield what is still to come, at the latest until the time is up."""
        from jaxcache.warm.report.events import Message

        marked = False
        # Connections are accepted in order: those after ours were made later.
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as last:
            try:
                last.connect(self.address)
                last.sendall(b'{"event": "marker"}\n')
            except OSError:
                marked = True  # the program has removed the socket
        deadline = time.monotonic() + linger_seconds
        while not marked or self._open or not self._events.empty():
            left_seconds = deadline - time.monotonic()
            event = self.next(max(left_seconds, 0.001))
            if event is None and left_seconds <= 0:
                return
            if isinstance(event, Message) and event.event == "marker":
                marked = True
            elif event is not None:
                yield event

    def _accept(self) -> None:
        number = 0
        while True:
            try:
                connection, _ = self._server.accept()
            except OSError:
                return
            number += 1
            with self._lock:
                self._open += 1
            threading.Thread(target=self._read, args=(connection, number), daemon=True).start()

    def _read(self, connection: socket.socket, number: int) -> None:
        # In this thread: the program that sends the first line has started long before.
        from jaxcache.warm.report.events import MAX_LINE_BYTES, parse_event

        try:
            with connection, connection.makefile("rb") as lines:
                while line := lines.readline(MAX_LINE_BYTES):
                    if event := parse_event(line, number):
                        self._events.put(event)
        except OSError:  # its writer was cut off
            pass
        finally:
            with self._lock:
                self._open -= 1
            self.wake()


STARTUP = os.path.abspath(f"{__file__}/../../../injected/startup")
#: How long processes that outlive the command may go on reporting.
_LINGER_SECONDS = 1.0
_KILL_AFTER_SECONDS = 10.0
#: How long the processes of one program may outlive the first of them that failed.
_GRACE_SECONDS = 10.0
#: The longest time between two calls of ``on_tick``.
_TICK_SECONDS = 0.25


class RunCallbacks(NamedTuple):
    """Functions to call while it runs."""

    on_start: Callable[[], None] | None = None
    """Called once the first program has started, to import what the end of the run needs."""
    on_event: "Callable[[RunEvent], None] | None" = None


class Launch(NamedTuple):
    """One command to run."""

    command: tuple[str, ...]
    env: Mapping[str, str] = {}
    """Over the caller's environment."""
    needs: tuple[str, ...] = ()
    """Modules that the command must have if it is a Python; without one of them it stops with exit
    code 13 after a ``no-module`` event. What the live layer needs may be missing beside no jax."""
    aside: bool = False
    """Not the one at the terminal: no standard input, and its output to standard error."""
    silent: bool = False
    """Its output and its errors are thrown away."""
    unset: tuple[str, ...] = ()
    """Left out of the caller's environment."""


def _hint_to_run(command: Sequence[str]) -> str | None:
    """Return the command that runs an existing file which the system does not run as it is."""
    path = command[0]
    if not os.path.isfile(path):
        return None
    if path.endswith(".py"):
        script = shlex.join(command)
        return f"to run the script: jaxcache warm {script}, or jaxcache run -- python {script}"
    return f"make it executable, and name it with its directory: ./{os.path.relpath(path)}"


class RunResult(NamedTuple):
    """The end of the commands."""

    exit_code: int
    """Negative for a signal; with several processes, the first that is not 0."""
    timed_out: bool
    interrupted: bool
    wall_seconds: float
    ended_at: float = 0.0
    """Seconds since the epoch."""
    idle: bool = False
    """It was stopped because no event came for too long."""


def describe_failure(library: str) -> str:
    """Explain why nothing was observed of a program that failed."""
    return f"the program failed before any use of {library} was seen; its own output says why"


def listening_environment(launch: Launch, *, events: str) -> dict[str, str]:
    """The command's environment: the caller's, its own over it, and the listener's."""
    own = {name: value for name, value in os.environ.items() if name not in launch.unset}
    env = {**own, **launch.env, "JAXCACHE_EVENTS": events}
    env["PYTHONPATH"] = os.pathsep.join(filter(None, (STARTUP, env.get("PYTHONPATH"))))
    env["JAXCACHE_PARENT"] = str(os.getpid())
    if launch.needs:
        env["JAXCACHE_NEEDS"] = " ".join(launch.needs)
    return env


def run_listening(
    launches: Sequence[Launch],
    *,
    on_event: "Callable[[RunEvent], None]",
    on_start: Callable[[], object] | None = None,
    on_tick: Callable[[], None] | None = None,
    stdout_to_stderr: bool = False,
    timeout_seconds: float | None = None,
    patience_seconds: float | None = None,
) -> RunResult:
    """Run a command, or the processes of one program, to their end.

    ``on_event`` is called in this thread for what they report. Signals are passed on to them. When
    one fails, the others cannot go on, and are stopped. We wait for all to end, so that the report
    is complete.

    Args:
        on_start: called once, when all have started.
        on_tick: called at least four times a second.
        patience_seconds: stop the commands when no event came for so long since the first.
        stdout_to_stderr: keep our standard output free for a document.

    Raises:
        UsageError: ``cannot-run`` where a command cannot be started.
        ReportError: a callback failed; no callback was called after that.
    """
    failures: list[Exception] = []

    def tell(callback: Callable[..., object] | None, *args: object) -> None:
        """Call what makes the report; the commands run to their end although it fails."""
        if callback is not None and not failures:
            try:
                callback(*args)
            except Exception as error:
                failures.append(error)

    with socket_directory() as directory, EventServer(directory) as inbox:
        crew = _Processes(inbox, stdout_to_stderr=stdout_to_stderr)
        started = time.monotonic()
        with _Signals(inbox) as signals:
            clock = _Clock(timeout_seconds, patience_seconds)
            for launch in launches:
                crew.start(launch)
            tell(on_start)
            while crew.running():
                signals.pass_on(crew)
                left_seconds = clock.left()
                if left_seconds <= 0:
                    crew.signal(clock.expire())
                    continue
                event = inbox.next(min(_TICK_SECONDS, left_seconds))
                if event is not None:
                    clock.heard()
                    tell(on_event, event)
                tell(on_tick)
            signals.pass_on(crew)  # one may have ended the commands since the last look
        wall_seconds = time.monotonic() - started
        ended_at = time.time()
        for event in inbox.drain(_LINGER_SECONDS):
            tell(on_event, event)
    with reporting(crew.exit_code):
        for error in failures:
            raise error
    return RunResult(
        crew.exit_code,
        clock.timed_out,
        signals.interrupted,
        wall_seconds,
        ended_at,
        idle=clock.is_idle,
    )


class _Processes:
    """The processes of one program: those that run, and how the others ended."""

    def __init__(self, inbox: EventServer, *, stdout_to_stderr: bool) -> None:
        self._inbox = inbox
        self._stdout_to_stderr = stdout_to_stderr
        self._running: list[subprocess.Popen[bytes]] = []
        self._grace_until: float | None = None
        self._asked_to_end = False
        self.exit_code = 0

    def running(self) -> bool:
        """Reap those that have ended, stop the others where one failed; whether any still runs."""
        for child in [c for c in self._running if c.poll() is not None]:
            self._running.remove(child)
            self.exit_code = self.exit_code or child.returncode
            if child.returncode and self._grace_until is None:
                self._grace_until = time.monotonic() + _GRACE_SECONDS
        if self._grace_until is not None and time.monotonic() > self._grace_until:
            self._grace_until = time.monotonic() + _GRACE_SECONDS
            # JAX's own notifier of preemption may catch the first.
            self.signal(signal.SIGKILL if self._asked_to_end else signal.SIGTERM)
            self._asked_to_end = True
        return bool(self._running)

    def start(self, launch: Launch) -> None:
        """Start one process.

        Raises:
            UsageError: ``cannot-run``.
        """
        aside = launch.aside
        silence = subprocess.DEVNULL if launch.silent else None
        try:
            child = subprocess.Popen(
                launch.command,
                env=listening_environment(launch, events=self._inbox.address),
                stdin=subprocess.DEVNULL if aside else None,
                stdout=silence or (2 if aside or self._stdout_to_stderr else None),
                stderr=silence,
            )
        except (OSError, ValueError) as error:  # the latter for a null byte
            self.signal(signal.SIGTERM)
            reason = (getattr(error, "strerror", None) or str(error)).lower()
            raise UsageError(
                f"cannot run {launch.command[0]}: {reason}",
                code="cannot-run",
                hint=_hint_to_run(launch.command),
            ) from error
        self._running.append(child)

        def wait() -> None:
            child.wait()
            self._inbox.wake()

        threading.Thread(target=wait, daemon=True).start()

    def signal(self, number: int) -> None:
        """Send a signal to all that run."""
        for child in list(self._running):
            child.send_signal(number)


class _Clock:
    """A deadline for the commands: for the whole run, and for the time without an event."""

    def __init__(self, timeout_seconds: float | None, patience_seconds: float | None) -> None:
        now = time.monotonic()
        self._deadline = math.inf if timeout_seconds is None else now + timeout_seconds
        self._patience = patience_seconds
        self._patient_until = math.inf
        self.timed_out = False
        self.is_idle = False

    def left(self) -> float:
        """Seconds until they are to be stopped."""
        return min(self._deadline, self._patient_until) - time.monotonic()

    def heard(self) -> None:
        """Note that an event came."""
        if self._patience is not None and not self._is_over:
            self._patient_until = time.monotonic() + self._patience

    def expire(self) -> signal.Signals:
        """The time is up: the signal to stop them with, gentle the first time."""
        number = signal.SIGKILL if self._is_over else signal.SIGTERM
        if not self._is_over:
            self.timed_out = self._deadline <= self._patient_until
            self.is_idle = not self.timed_out
        self._patient_until = math.inf
        self._deadline = time.monotonic() + _KILL_AFTER_SECONDS
        return number

    @property
    def _is_over(self) -> bool:
        return self.timed_out or self.is_idle


#: Signals that are not passed on: they stop or resume a job, report a fault of ours, or the
#: terminal sends them to everybody.
_KEPT = {
    *("SIGKILL", "SIGSTOP", "SIGTSTP", "SIGTTIN", "SIGTTOU", "SIGCONT", "SIGCHLD", "SIGWINCH"),
    *("SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL", "SIGABRT", "SIGTRAP", "SIGSYS", "SIGPIPE", "SIGURG"),
}
_PASSED = [s for s in signal.Signals if s.name not in _KEPT]
#: After these the user expects an end.
_ENDING = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT}
_READY_SECONDS = 5.0
_WITNESS_SECONDS = 0.3
#: Says each signal that it gets, and ends with us.
_WITNESS = """for n; do trap "got=$n; echo $n" $n; done; echo ready
while :; do got=; read line || [ "$got" ] || exit; done"""


class _Signals:
    """Takes the signals that this process gets, and passes on those that the commands have not.

    A terminal or a scheduler signals a whole process group, and the commands must not get a signal
    twice. So a shell that does nothing else runs in our group and prints the signals that it gets.
    """

    def __init__(self, inbox: EventServer) -> None:
        self._inbox = inbox
        self._taken: list[tuple[int, float]] = []
        self._before: dict[int, Any] = {}
        self._witness: subprocess.Popen[bytes] | None = None
        self._witnessed: dict[bytes, float] = {}
        self.interrupted = False

    def __enter__(self) -> "_Signals":
        if threading.current_thread() is threading.main_thread():
            # What the caller ignores (nohup) the commands ignore, too.
            passed = [n for n in _PASSED if signal.getsignal(n) not in (signal.SIG_IGN, None)]
            self._before = {number: signal.signal(number, self._take) for number in passed}
            numbers = [str(int(n)) for n in passed]
            with contextlib.suppress(OSError):  # without one, the commands get everything from us
                self._witness = subprocess.Popen(
                    ["/bin/sh", "-c", _WITNESS, "sh", *numbers],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    bufsize=0,
                )
                # The commands start when its traps are set, or a signal could reach them twice.
                if self._witness.stdout is not None:
                    select.select([self._witness.stdout], [], [], _READY_SECONDS)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if self._witness is not None:
            self._witness.kill()
            self._witness.communicate()

    def _take(self, number: int, _: object) -> None:
        self._taken.append((number, time.monotonic()))
        self._inbox.wake()

    def pass_on(self, crew: _Processes) -> None:
        """Deal with what was taken since the last call."""
        while self._taken:
            number, at = self._taken.pop(0)
            if number in _ENDING:
                self.interrupted = True
            if not self._is_witnessed(b"%d" % number, at):
                crew.signal(number)

    def _is_witnessed(self, line: bytes, at: float) -> bool:
        """Return whether the witness printed the line shortly before that time, or does soon after.

        One line may mean several signals: the system, too, merges signals that arrive at once.
        """
        while self._witness is not None and self._witness.stdout is not None:
            if self._witnessed.get(line, 0.0) > at - _WITNESS_SECONDS:
                return True
            left_seconds = max(0.0, at + _WITNESS_SECONDS - time.monotonic())
            if not select.select([self._witness.stdout], [], [], left_seconds)[0]:
                return False
            if not (output := self._witness.stdout.read(4096)):
                return False
            self._witnessed.update(dict.fromkeys(output.split(), time.monotonic()))
        return False
