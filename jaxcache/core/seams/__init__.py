"""Every private name of JAX, by subject, each with the versions it was tried on.

``settings``: what acts on keys; ``cache``: what the live layer replaces; ``listening``: what is
observed of compiles; ``tracing``: traces, and what a guard stands before; ``compiling``: keys,
options, devices and executables. Here is what they share: functions in place of JAX's.

``register_exclusion`` of ``traceback_util.py`` and ``source_info_util.py`` is tried on 0.4.30 to
0.12; where it is gone, tracebacks show our frames.
"""

import functools
import os
import sys
from collections.abc import Callable
from typing import Any

_PACKAGE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
#: What runs inside the user's program.
_GUESTS = ("core", "core/seams", "injected", "live")


class UnknownJaxError(Exception):
    """This JAX lacks a name that is needed here."""


def wrap(owner: Any, name: str, around: "Callable[..., Any]") -> None:
    """Have ``around(original, args, kwargs)`` called in place of an attribute of ``owner``.

    JAX looks up the attributes of its modules at each call, so that this is enough.
    """
    original = getattr(owner, name)

    @functools.wraps(original)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return around(original, args, kwargs)

    setattr(owner, name, wrapper)


def hide_frames() -> None:
    """Ask JAX to leave frames of our files out of tracebacks, and of source lines of entries."""
    try:
        for guest in _GUESTS:
            ours = os.path.join(_PACKAGE, guest)
            for name in os.listdir(ours):
                if name.endswith(".py"):
                    path = os.path.join(ours, name)
                    sys.modules["jax._src.traceback_util"].register_exclusion(path)
            sys.modules["jax._src.source_info_util"].register_exclusion(ours)
    except Exception:  # noqa: S110 - nothing but looks depends on it
        pass
