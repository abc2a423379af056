"""``where``: which cache directories a command really uses."""

import contextlib
import os
import signal
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from jaxcache.core.compile_event import RunEvent
from jaxcache.options.run import WhereOptions
from jaxcache.warm.child.launch import Launch, run_listening
from jaxcache.warm.programs import DIRECTORY
from jaxcache.warm.report.builder import ReportBuilder
from jaxcache.warm.report.events import LiveSetting
from jaxcache.warm.report.report import Process, Report


@dataclass(frozen=True, slots=True)
class Use:
    """One Python with jax below the command, and the cache it used."""

    pid: int
    executable: str
    opened: str | None
    """The directory that JAX opened; None where it opened none."""
    setting: str | None
    """``jax_compilation_cache_dir`` as it last was."""
    enabled: bool | None
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the cache at the last compile, with the directory that JAX opened."""
    uncacheable: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Modules that JAX could not cache, by the reason."""
    live: Mapping[str, LiveSetting] | None = None
    """Settings of the live layer that are not defaults: value and origin; None if it is off."""


def find_where(
    command: Sequence[str],
    options: WhereOptions | None = None,
    *,
    environment: Mapping[str, str] | None = None,
) -> tuple[tuple[Use, ...], str | None, Report]:
    """Run a command as it is, nothing changed, and see which caches JAX opens.

    What it prints goes to standard error, because standard output is the answer's.

    Args:
        environment: variables of the command over the caller's; none by default.

    Returns:
        The Pythons that imported jax, in the order of their first word; why one of them could not
        be listened to, if so; and the report of the run.

    Raises:
        UsageError: ``cannot-run``.
    """
    options = options or WhereOptions()
    recorder = ReportBuilder()
    stopped: set[int] = set()

    def take(event: RunEvent) -> None:
        recorder.add(event)
        process = recorder.processes[event.process]
        if (
            options.stop
            and process.configured.opened_directory
            and process.pid > 1
            and process.pid not in stopped
        ):
            stopped.add(process.pid)
            with contextlib.suppress(OSError, OverflowError):  # it has ended, or names none
                os.kill(process.pid, signal.SIGTERM)

    ended = run_listening(
        [Launch(tuple(command), environment or {})],
        on_event=take,
        stdout_to_stderr=True,
        timeout_seconds=options.timeout_seconds,
    )
    unobserved = (notice.detail for notice in recorder.heard("unobserved"))
    uses = (_use(recorder, process) for process in recorder.processes.values() if process.jax)
    return tuple(uses), next(unobserved, None), recorder.report(ended, {})


def _use(recorder: ReportBuilder, process: Process) -> Use:
    settings = process.settings
    reasons: defaultdict[str, dict[str, None]] = defaultdict(dict)
    for done in recorder.modules:
        if done.process == process.process and done.outcome == "uncacheable":
            reasons[done.reason][done.module] = None
    setting = settings.get(DIRECTORY)
    if process.ignored_directory:
        settings = {**settings, DIRECTORY: process.configured.opened_setting}
    enabled = settings.get("jax_enable_compilation_cache")
    return Use(
        pid=process.pid,
        executable=process.executable,
        opened=process.configured.opened_directory,
        setting=None if setting is None else str(setting),
        enabled=None if enabled is None else bool(enabled),
        settings=settings,
        uncacheable={k: tuple(v) for k, v in reasons.items()},
        live=process.configured.live,
    )
