"""Start the user's commands with the listener in them, and gather what the listener tells.

A command runs as it would without us: same standard streams, arguments, working directory and
exit code. What is added is environment: ``jaxside/startup`` on ``PYTHONPATH``, whose
``sitecustomize`` waits for jax and then reports over a Unix socket.
"""

import contextlib
import math
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from jaxcache.errors import UsageError
from jaxcache.warm.inbox import Event, Inbox, socket_folder

STARTUP = Path(__file__).parents[1] / "jaxside" / "startup"
#: How long processes that outlive the command may go on reporting.
_LINGER_SECONDS = 1.0
_KILL_AFTER_SECONDS = 10.0
#: How long the processes of one program may outlive the first of them that failed.
_MOURN_SECONDS = 10.0
_TICK_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Launch:
    """One command to run."""

    command: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    """Over the caller's environment."""
    cwd: str | None = None
    needs_jax: bool = False
    """The command itself is a Python that must have jax; where it has none, it stops with exit
    code 13 after a ``no-jax`` event."""
    aside: bool = False
    """Not the one at the terminal: no standard input, and its output to standard error."""
    unset: tuple[str, ...] = ()
    """Left out of the caller's environment."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How the commands ended."""

    exit_code: int
    """As the system has it: negative for a signal. Of several, the first that is not 0."""
    timed_out: bool
    interrupted: bool
    wall_seconds: float
    idle: bool = False
    """It was stopped because nothing new was told for too long."""


def listening_environment(launch: Launch, *, events: str) -> dict[str, str]:
    """The command's environment: the caller's, its own over it, and the listener's."""
    own = {name: value for name, value in os.environ.items() if name not in launch.unset}
    env = {**own, **launch.env, "JAXCACHE_EVENTS": events}
    path = [str(STARTUP), *filter(None, [env.get("PYTHONPATH")])]
    env["PYTHONPATH"] = os.pathsep.join(path)
    env["JAXCACHE_PARENT"] = str(os.getpid())
    if launch.needs_jax:
        env["JAXCACHE_NEEDS_JAX"] = "1"
    return env


def run_listening(
    launches: Sequence[Launch],
    *,
    on_event: Callable[[Event], None],
    on_tick: Callable[[], None] | None = None,
    jobs: int = 1,
    together: bool = False,
    stdout_to_stderr: bool = False,
    timeout_seconds: float | None = None,
    patience_seconds: float | None = None,
) -> Ended:
    """Run commands to their end, calling ``on_event`` in this thread for what they report.

    An interrupt reaches the commands too; we wait for them to end, so that the report says what
    is known. A second one kills them.

    Args:
        on_tick: called about twice a second.
        jobs: how many to run at once.
        patience_seconds: stop the commands when no event came for so long since the first.
        together: they are the processes of one program; when one fails, the others cannot go on.
        stdout_to_stderr: keep our standard output free for a document.

    Raises:
        UsageError: ``cannot-run`` where a command cannot be started.
    """
    with socket_folder() as folder, Inbox(folder) as inbox:
        crew = _Crew(launches, inbox, jobs, together=together, stdout_to_stderr=stdout_to_stderr)
        started = time.monotonic()
        with _passing_signals(crew) as interrupted:
            clock = _Clock(timeout_seconds, patience_seconds)
            _wait(crew, inbox, on_event, on_tick, clock)
        wall_seconds = time.monotonic() - started
        for event in inbox.drain(_LINGER_SECONDS):
            on_event(event)
    return Ended(
        crew.exit_code, clock.timed_out, bool(interrupted), wall_seconds, idle=clock.is_idle
    )


class _Crew:
    """The commands: those that wait for their turn, those that run, and how the others ended."""

    def __init__(
        self,
        launches: Sequence[Launch],
        inbox: Inbox,
        jobs: int,
        *,
        together: bool,
        stdout_to_stderr: bool,
    ) -> None:
        self._waiting = list(launches)
        self._inbox = inbox
        self._jobs = len(launches) if together else jobs
        self._together = together
        self._stdout_to_stderr = stdout_to_stderr
        self._running: list[subprocess.Popen[bytes]] = []
        self._stopped = False
        self._mourn_until: float | None = None
        self._mourned = False
        self.exit_code = 0

    def advance(self) -> bool:
        """Bury the dead, start those whose turn it is; whether anything runs or will."""
        for child in [c for c in self._running if c.poll() is not None]:
            self._running.remove(child)
            self.exit_code = self.exit_code or child.returncode
            if child.returncode and self._together and self._mourn_until is None:
                self._mourn_until = time.monotonic() + _MOURN_SECONDS
        if self._mourn_until is not None and time.monotonic() > self._mourn_until:
            self._mourn_until = time.monotonic() + _MOURN_SECONDS
            # JAX's own notifier of preemption may catch the first.
            self.signal(signal.SIGKILL if self._mourned else signal.SIGTERM)
            self._mourned = True
        while self._waiting and not self._stopped and len(self._running) < self._jobs:
            self._start(self._waiting.pop(0))
        return bool(self._running)

    def _start(self, launch: Launch) -> None:
        aside = launch.aside
        try:
            child = subprocess.Popen(
                launch.command,
                env=listening_environment(launch, events=self._inbox.address),
                cwd=launch.cwd,
                stdin=subprocess.DEVNULL if aside else None,
                stdout=2 if aside or self._stdout_to_stderr else None,
            )
        except OSError as error:
            self.signal(signal.SIGTERM)
            reason = os.strerror(error.errno or 0).lower()
            raise UsageError(
                f"cannot run {launch.command[0]}: {reason}", code="cannot-run"
            ) from error
        self._running.append(child)

        def wait() -> None:
            child.wait()
            self._inbox.wake()

        threading.Thread(target=wait, daemon=True).start()

    def signal(self, number: int) -> None:
        """Send a signal to all that run; nothing more is started."""
        self._stopped = True
        for child in list(self._running):
            child.send_signal(number)

    def stop_starting(self) -> None:
        """Let what runs end, and start nothing more."""
        self._stopped = True


class _Clock:
    """Says when the commands have had enough time: in all, or without telling anything new."""

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
        """Something was told."""
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


def _wait(
    crew: _Crew,
    inbox: Inbox,
    on_event: Callable[[Event], None],
    on_tick: Callable[[], None] | None,
    clock: _Clock,
) -> None:
    """Hand on events until all have ended, or the clock stops them."""
    while crew.advance():
        left = clock.left()
        if left <= 0:
            crew.signal(clock.expire())
            continue
        event = inbox.next(min(_TICK_SECONDS, left))
        if event is not None:
            clock.heard()
            on_event(event)
        if on_tick is not None:
            on_tick()


@contextlib.contextmanager
def _passing_signals(crew: _Crew) -> Iterator[list[int]]:
    """Outlive the signals that end the commands, and pass on those that only we have got."""
    seen: list[int] = []

    def on_interrupt(number: int, _: object) -> None:
        # The terminal has sent it to the commands as well; a second one means: now.
        seen.append(number)
        crew.stop_starting()
        if len(seen) > 1:
            crew.signal(signal.SIGKILL)

    def on_terminate(number: int, _: object) -> None:
        seen.append(number)
        crew.signal(number)

    handlers = {
        signal.SIGINT: on_interrupt,
        signal.SIGTERM: on_terminate,
        signal.SIGHUP: on_terminate,
    }
    if threading.current_thread() is not threading.main_thread():
        yield seen
        return
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield seen
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
