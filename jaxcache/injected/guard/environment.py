"""``JAXCACHE_GUARD=compile:raise``: a guard for the whole process, up once it has warmed up.

``ON:ACTION`` or ``ON:ACTION:SECONDS``. With seconds the guard is up that long after jax was
imported; without, as soon as the program calls ``jaxcache.warmed_up()``.
"""

import atexit
import contextlib
import importlib.util
import os
import sys
import threading
from typing import Any

from .. import channel
from .guard import CompileGuard, guard

VARIABLE = "JAXCACHE_GUARD"
_FORM = "ON:ACTION[:SECONDS] such as compile:raise or load:warn:60"
_NAME = "injected.guard.environment"
_armed: "CompileGuard | None" = None
_is_reported = False
_lock = threading.RLock()


def read_variable(text: str) -> "tuple[CompileGuard, float | None]":
    """Return the guard that the variable defines, and after how many seconds it is up.

    Raises:
        ValueError: the text has another form.
    """
    on, _, words = text.strip().partition(":")
    action, _, seconds = words.partition(":")
    try:
        after = float(seconds) if seconds else None
        requested = guard(on, action or "raise", threads="all")
        requested.is_of_process = True
    except ValueError as error:
        raise ValueError(f"{VARIABLE} must be {_FORM} (got {text!r}): {error}") from None
    return requested, after


def start() -> None:
    """Begin to count the seconds, where the variable gives any; never raises."""
    global _is_reported
    text = os.environ.get(VARIABLE)
    if not text or _first_copy() is not sys.modules[__name__]:
        return
    try:
        requested, after = read_variable(text)
    except ValueError as error:
        print(f"jaxcache: this program runs without a guard: {error}", file=sys.stderr)
        _is_reported = True
        return
    if not os.environ.get("JAXCACHE_EVENTS"):  # else ``run`` reports it
        atexit.register(_say_never_up, after)
    if after is None and importlib.util.find_spec("jaxcache") is None:
        print(
            f"jaxcache: only jaxcache.warmed_up() puts this guard up, and {sys.executable} has no "
            f"jaxcache; give seconds, such as {requested.on}:{requested.action}:60",
            file=sys.stderr,
        )
    if after is not None:
        timer = threading.Timer(after, warmed_up)
        timer.daemon = True
        timer.start()


def _say_never_up(after: "float | None") -> None:
    if _armed is None:
        ended = f" and ended within {after:g} s" if after is not None else ""
        with contextlib.suppress(Exception):  # standard error is closed
            sys.stderr.write(
                f"jaxcache: {VARIABLE} had no effect: the program did not call "
                f"jaxcache.warmed_up(){ended}\n"
            )


def _say_counts(armed: CompileGuard) -> None:
    counts = ", ".join(f"{n} × {step}" for step, n in armed.counts.items()) or "nothing"
    with contextlib.suppress(Exception):  # standard error is closed
        sys.stderr.write(f"jaxcache: the guard counted after the warm-up: {counts}\n")


def warmed_up() -> "CompileGuard | None":
    """Declare that this process has compiled what it needs: raise the guard of ``JAXCACHE_GUARD``.

    Does nothing if that variable is not set. A variable of another form is reported once on
    standard error.

    Returns:
        The guard, with its ``counts``; None if none is set.
    """
    global _armed
    if (first := _first_copy()) is not sys.modules[__name__]:
        armed: CompileGuard | None = first.warmed_up()
        return armed
    with _lock:
        if _armed is None and not _is_reported and (text := os.environ.get(VARIABLE)):
            try:
                _armed = read_variable(text)[0].__enter__()
                if text.split(":")[1:2] == ["count"]:
                    atexit.register(_say_counts, _armed)
                channel.CHANNEL.send({"event": "guarded"})
            except Exception as error:
                print(f"jaxcache: this program runs without a guard: {error}", file=sys.stderr)
        return _armed


def _first_copy() -> Any:
    """This module, or the copy that ``jaxcache run`` loaded before by its path."""
    return next(m for name, m in list(sys.modules.items()) if name.endswith(_NAME))
