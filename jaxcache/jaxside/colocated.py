"""Watches ``jax.experimental.colocated_python``, whose functions no compile request shows.

Each signature is one call of ``_compile_to_executable(name, fun, in_tree, in_specs, …)`` in
``jax/experimental/colocated_python/func.py`` (JAX 0.4.38 to 0.12). The module is imported by few
programs, so we wait for them to do it.
"""

import functools
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

_MODULE = "jax.experimental.colocated_python.func"


class _Waiter:
    """Stands on ``sys.meta_path`` until the module is imported, and finds nothing itself."""

    def __init__(self, then: Callable[[Any], None]) -> None:
        self._then = then

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:  # noqa: ARG002
        if name != _MODULE or self not in sys.meta_path:
            return None
        sys.meta_path.remove(self)
        spec = find_spec(name)
        if spec is None or spec.loader is None:
            return None
        run = spec.loader.exec_module

        def exec_module(module: Any) -> None:
            run(module)
            self._then(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


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
            try:
                event = _describe(inspect_call(args, kwargs), started)
                if event["file"] != module.__file__:  # not JAX's own helpers
                    send(event)
            except Exception as error:
                send({"event": "trouble", "detail": f"{type(error).__name__}: {error}"})
            return result

        module._compile_to_executable = compile_to_executable

    if _MODULE in sys.modules:
        wrap(sys.modules[_MODULE])
    else:
        sys.meta_path.insert(0, _Waiter(wrap))


def inspect_call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[str, Any, Any]:
    """Name, function and argument specs of one call, by position or by keyword."""
    named = dict(zip(("name", "fun", "in_tree", "in_specs_leaves"), args, strict=False), **kwargs)
    return str(named["name"]), named["fun"], named["in_specs_leaves"]


def _describe(call: tuple[str, Any, Any], started: float) -> dict[str, Any]:
    name, function, specs = call
    function = getattr(function, "__wrapped__", function)
    code = getattr(function, "__code__", None)
    return {
        "event": "colocated",
        "function": getattr(function, "__name__", name),
        "kind": "colocated_python",
        "file": getattr(code, "co_filename", None),
        "line": getattr(code, "co_firstlineno", None),
        "arguments": [
            {"name": "", "dtype": str(s.dtype), "shape": [int(d) for d in s.shape]} for s in specs
        ],
        "compile": [started, time.time() - started],
    }
