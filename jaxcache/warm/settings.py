"""Ask the user's Python what its jax would do with a cache."""

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jaxcache.cache.doctor.facts import Interpreter, Setting
from jaxcache.cache.doctor.settings import DEFAULTS, settings_of_environment, settings_of_jax
from jaxcache.entry.options import read_options
from jaxcache.entry.wire import Budget, WireError
from jaxcache.errors import NoJaxError
from jaxcache.warm.process import NO_JAX_HINT, find_python

_SCRIPT = Path(__file__).parents[1] / "jaxside" / "settings.py"
_TIMEOUT_SECONDS = 120


def ask_settings(
    python: str | None, environment: Mapping[str, str]
) -> tuple[Interpreter | None, list[Setting], str | None]:
    """As :func:`ask_python`; where there is no jax, what the environment says, and why."""
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
    try:
        done = subprocess.run(
            [python, str(_SCRIPT), *DEFAULTS],
            stdin=subprocess.DEVNULL, capture_output=True, timeout=_TIMEOUT_SECONDS, check=False,
        )  # fmt: skip
    except OSError as error:
        raise NoJaxError(f"cannot run {python}: {error.strerror}", hint=NO_JAX_HINT) from error
    except subprocess.TimeoutExpired as error:
        raise NoJaxError(
            f"{python} took more than {_TIMEOUT_SECONDS} s", hint=NO_JAX_HINT
        ) from error
    documents = [d for d in map(_document, done.stdout.splitlines()) if d]
    if not documents or "jax_version" not in documents[0]:
        lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
        reason = lines[-1] if lines else f"exit status {done.returncode}"
        raise NoJaxError(f"{python} has no usable jax: {reason}", hint=NO_JAX_HINT)
    told = {k: v for d in documents for k, v in d.items()}
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
    return interpreter, settings_of_jax(told["settings"], os.environ)


def _document(line: bytes) -> dict[str, Any] | None:
    """One line of the child; anything else that somebody printed there is left out."""
    try:
        document = json.loads(line)
    except ValueError:
        return None
    return document if isinstance(document, dict) else None


def _flags(options: str | None) -> frozenset[str] | None:
    if not options:
        return None
    try:
        flags = read_options(memoryview(bytes.fromhex(options)), None, Budget()).flags
    except (WireError, ValueError):
        return None
    return frozenset(flags) if flags else None
