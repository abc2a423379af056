"""``where``: which cache directories a command really uses."""

import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from jaxcache.options.run import WhereOptions
from jaxcache.warm.inbox import Event
from jaxcache.warm.launch import Launch, run_listening


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
    """Settings of the cache at the last compile."""
    uncacheable: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Modules that JAX could not cache, by the reason."""


def find_where(
    command: Sequence[str],
    options: WhereOptions | None = None,
    *,
    stdout_to_stderr: bool = False,
) -> tuple[tuple[Use, ...], str | None]:
    """Run a command as it is, nothing changed, and see which caches JAX opens.

    Returns:
        The Pythons that imported jax, in the order of their first word; and why one of them could
        not be listened to, if so.

    Raises:
        UsageError: ``cannot-run``.
    """
    options = options or WhereOptions()
    processes: dict[int, Event] = {}
    unheard: list[str] = []

    def take(event: Event) -> None:
        if event["event"] == "unheard":
            unheard.append(str(event.get("detail")))
        known = processes.setdefault(event["process"], {})
        if event["event"] in ("start", "jax", "settings"):
            known.update({k: v for k, v in event.items() if k not in ("event", "at")})
            if event["event"] == "jax":
                known["has_jax"] = True
        if event["event"] == "module" and event.get("outcome") == "uncacheable":
            reasons = known.setdefault("uncacheable", {})
            reasons.setdefault(str(event.get("reason")), {})[str(event.get("module"))] = None
        pid = known.get("pid")
        if options.stop and known.get("opened_directory") and isinstance(pid, int) and pid > 1:
            os.kill(pid, signal.SIGTERM)
            known["pid_stopped"] = known.pop("pid")

    ended = run_listening(
        [Launch(tuple(command))],
        on_event=take,
        stdout_to_stderr=stdout_to_stderr,
        timeout_seconds=options.timeout_seconds,
    )
    unheard += [
        f"`{command}` ran jax where the listener did not reach" for command in ended.unheard
    ]
    uses = (
        Use(
            pid=int(p.get("pid") or p.get("pid_stopped") or 0),
            executable=str(p.get("executable") or ""),
            opened=p.get("opened_directory"),
            setting=p.get("jax_compilation_cache_dir"),
            enabled=p.get("jax_enable_compilation_cache"),
            settings={k: v for k, v in p.items() if k.startswith("jax_")},
            uncacheable={k: tuple(v) for k, v in p.get("uncacheable", {}).items()},
        )
        for p in processes.values()
        if p.get("has_jax")
    )
    return tuple(uses), next(iter(unheard), None)
