"""Ask the user's Python what its jax would do with a cache."""

import os
from collections.abc import Mapping

from jaxcache.cache.doctor.facts import Interpreter, Setting
from jaxcache.cache.doctor.settings import (
    DEFAULTS,
    settings_of_environment,
    settings_of_jax,
    settings_of_live,
)
from jaxcache.entry.options import read_options
from jaxcache.entry.wire import Budget, WireError
from jaxcache.errors import NoJaxError
from jaxcache.warm.child import ask_once
from jaxcache.warm.process import find_python

_TIMEOUT_SECONDS = 120


def ask_settings(
    python: str | None, environment: Mapping[str, str]
) -> tuple[Interpreter | None, list[Setting], str | None]:
    """Ask a Python; without jax there, read the settings off the environment, and say why."""
    try:
        return *ask_python(python), None
    except NoJaxError as error:
        return None, settings_of_environment(environment), error.message


def ask_python(python: str | None = None) -> tuple[Interpreter, list[Setting]]:
    """The interpreter with its jax, and its settings as the environment here makes them.

    Args:
        python: an interpreter; our own by default.

    Raises:
        NoJaxError: it cannot run, has no jax, or dies over it.
    """
    python = find_python(python)
    told = ask_once(python, "settings", *DEFAULTS, seconds=_TIMEOUT_SECONDS, answers=2)
    interpreter = Interpreter(
        executable=python,
        python_version=str(told["python_version"]),
        jax_version=str(told["jax_version"]),
        jaxlib_version=str(told["jaxlib_version"]),
        jaxlib_digest=told["jaxlib_digest"],
        key_codec=str(told["key_codec"]),
        written_codec=str(told["written_codec"]),
        has_filelock=bool(told["has_filelock"]),
        flags=_flags(told.get("compile_options")),
    )
    settings = settings_of_jax(told["settings"], os.environ)
    return interpreter, [*settings, *settings_of_live(told["live"])]


def _flags(options: str | None) -> frozenset[str] | None:
    if not options:
        return None
    try:
        flags = read_options(memoryview(bytes.fromhex(options)), None, Budget()).flags
    except (WireError, ValueError):
        return None
    return frozenset(flags) if flags else None
