"""Watches ``jax.experimental.colocated_python``, whose functions no compile request shows.

Each signature is one call of ``_compile_to_executable(name, fun, in_tree, in_specs, …)`` in
``jax/experimental/colocated_python/func.py`` (JAX 0.4.38 to 0.12). The module is imported by few
programs, so we wait for them to do it.
"""

import functools
import time
from collections.abc import Callable
from typing import Any

from .channel import safely
from .hook import when_imported


def watch(send: Callable[[dict[str, Any]], None]) -> None:
    """Tell of every signature that a colocated function is compiled for."""

    def wrap(module: Any) -> None:
        original = getattr(module, "_compile_to_executable", None)
        if original is None:
            send(
                {
                    "event": "remark",
                    "detail": "this jax compiles colocated functions in a way not known here "
                    "(known are 0.4.38 to 0.12): they are left out of the report; upgrade jaxcache",
                }
            )
            return

        @functools.wraps(original)
        def compile_to_executable(*args: Any, **kwargs: Any) -> Any:
            started = time.time()
            result = original(*args, **kwargs)

            def report() -> None:
                event = _describe(args, kwargs, started)
                if event["file"] != module.__file__:  # not JAX's own helpers
                    send(event)

            safely(send, report)
            return result

        module._compile_to_executable = compile_to_executable

    when_imported(wrap, "jax.experimental.colocated_python.func", "__name__")


def _describe(args: tuple[Any, ...], kwargs: dict[str, Any], started: float) -> dict[str, Any]:
    """One call as an event; its arguments are given by position or by keyword."""
    named = dict(zip(("name", "fun", "in_tree", "in_specs_leaves"), args, strict=False), **kwargs)
    function = getattr(named["fun"], "__wrapped__", named["fun"])
    code = getattr(function, "__code__", None)
    return {
        "event": "colocated",
        "function": getattr(function, "__name__", str(named["name"])),
        "kind": "colocated_python",
        "file": getattr(code, "co_filename", None),
        "line": getattr(code, "co_firstlineno", None),
        "arguments": [
            {"name": "", "dtype": str(s.dtype), "shape": [int(d) for d in s.shape]}
            for s in named["in_specs_leaves"]
        ],
        "compile": [started, time.time() - started],
    }
