"""The one listener of a process: for the parent that started it, and for blocks that watch.

``jax.experimental.colocated_python`` is watched apart, because no compile request shows its
functions. Each signature is one call of ``_compile_to_executable(name, fun, in_tree, in_specs, …)``
in ``jax/experimental/colocated_python/func.py`` (JAX 0.4.38 to 0.12). The module is imported by
few programs, so we wait for them to do it.
"""

import atexit
import functools
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from ..core.seams import UnknownJaxError
from . import channel, hook
from .adapter import Jax, join_processes, seal_writes
from .channel import safely
from .hook import when_imported
from .listener import Listener
from .process_observer import Sink


def watch_colocated(send: Callable[[dict[str, Any]], None]) -> None:
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
        "spans": {"compile": [started, time.time() - started]},
    }


#: The only one of this process.
LISTENER: "Listener | None" = None
_lock = threading.RLock()


def listen(module: Any, sink: Sink, *, seal: bool = False, is_new: bool = False) -> Listener:
    """Send the events of the imported jax to a sink, by the one listener of this process.

    Args:
        seal: add a checksum to each entry that JAX writes from now on.
        is_new: whether the program has not run since jax was imported.

    Raises:
        UnknownJaxError: no adapter supports this jax.
    """
    global LISTENER
    with _lock:
        if LISTENER is None:
            jax = Jax(module, is_new=is_new or hook.imported is not None)
            LISTENER = Listener(jax)
            if seal:
                seal_writes(jax.cache)
            jax.listen(LISTENER)
            watch_colocated(LISTENER.send)
    LISTENER.add(sink)
    return LISTENER


def attach(module: Any) -> None:
    """Send the events of the jax that was just imported to the parent process."""
    send = channel.CHANNEL.send
    if imported := getattr(sys.modules.get("_jaxcache_hook"), "imported", None):
        send(imported)
    try:
        atexit.register(listen(module, send, seal=True, is_new=True).on_exit)
    except UnknownJaxError as error:
        send({"event": "unobserved", "detail": str(error)})
    join_processes(module)
