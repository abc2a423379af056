"""``warm`` and ``run``: a program with the cache on, and an account of every compile."""

import os
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from jaxcache.errors import NoJaxError, UsageError
from jaxcache.warm.launch import Event, run_listening
from jaxcache.warm.report import Recorder, Report


@dataclass(frozen=True, slots=True)
class WarmOptions:
    """How to run the program."""

    cache_dir: str
    """Absolute path or URL."""
    python: str | None = None
    platform: str | None = None
    devices: int | None = None
    force_cache_dir: bool = False
    timeout_seconds: float | None = None
    stdout_to_stderr: bool = False
    key_parts: bool = False
    """Also report the hash of each component of every key; see ``jaxside/keyparts.py``."""


def warm_script(
    script: str,
    arguments: Sequence[str],
    options: WarmOptions,
    on_event: Callable[[Event], None] | None = None,
) -> Report:
    """Run a Python script with both thresholds lifted, so that everything cacheable is cached.

    Raises:
        UsageError: no such script, or no such Python.
        NoJaxError: that Python has no jax.
    """
    if not os.path.isfile(script):
        raise UsageError(
            f"there is no script {script}", code="no-script", hint="name a Python file"
        )
    python = find_python(options.python)
    lifted = {
        "JAX_ENABLE_COMPILATION_CACHE": "true",
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }
    command = [python, script, *arguments]
    return _run(command, options, lifted, on_event, needs_jax=True)


def run_command(
    command: Sequence[str],
    options: WarmOptions,
    on_event: Callable[[Event], None] | None = None,
) -> Report:
    """Run any command line with the cache directory set and nothing else changed.

    Raises:
        UsageError: the command cannot be run.
    """
    return _run(command, options, {}, on_event, needs_jax=False)


def _run(
    command: Sequence[str],
    options: WarmOptions,
    extra_env: dict[str, str],
    on_event: Callable[[Event], None] | None,
    *,
    needs_jax: bool,
) -> Report:
    recorder = Recorder(options.cache_dir)

    def take(event: Event) -> None:
        recorder.add(event)
        if on_event:
            on_event(event)

    ended = run_listening(
        command,
        extra_env={**extra_env, **_environment(options)},
        on_event=take,
        needs_jax=needs_jax,
        stdout_to_stderr=options.stdout_to_stderr,
        timeout_seconds=options.timeout_seconds,
    )
    if recorder.no_jax is not None:
        raise NoJaxError(
            f"{command[0]} has no jax",
            hint="name a Python that has it with --python, or: pip install 'jaxcache[jax]'",
        )
    return recorder.report(ended)


def _environment(options: WarmOptions) -> dict[str, str]:
    env = {"JAX_COMPILATION_CACHE_DIR": options.cache_dir}
    if options.force_cache_dir:
        env["JAXCACHE_FORCE_CACHE_DIR"] = options.cache_dir
    if options.key_parts:
        env["JAXCACHE_KEY_PARTS"] = "1"
    if options.platform:
        env["JAX_PLATFORMS"] = options.platform
    if options.devices:
        flags = os.environ.get("XLA_FLAGS", "")
        count = f"--xla_force_host_platform_device_count={options.devices}"
        env["XLA_FLAGS"] = f"{flags} {count}".strip()
    return env


def find_python(python: str | None) -> str:
    """The interpreter to run: the one named, else our own.

    Raises:
        NoJaxError: ``no-python`` where the named one is not to be found.
    """
    if python is None:
        return sys.executable
    found = shutil.which(python)
    if not found:
        raise NoJaxError(
            f"there is no Python {python}", code="no-python", hint="name an interpreter's path"
        )
    return found
