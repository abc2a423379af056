"""Waits until this Python has imported jax (or torch), and then loads the listener.

Nothing else happens before: the script may still set ``XLA_FLAGS`` and the like. There are two
ways in: ``startup/sitecustomize.py`` on ``PYTHONPATH``, and ``jaxcache.pth``, where jaxcache is
installed beside jax and ``PYTHONPATH`` was lost (``-E``, ``-I``, a launcher that sets its own).
Python reads the second first; it leaves the process to the first, which is of the version that
started the program. Both are off unless ``JAXCACHE_EVENTS`` is set; the second also lets the live
layer begin to fetch, where ``JAXCACHE_LIVE_TIERS`` is set.

This runs at the start of every Python: what is not needed then is imported later.
"""

from __future__ import annotations

import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

#: Address of the parent's socket. The variables are read here and in ``channel.py`` alone.
EVENTS = "JAXCACHE_EVENTS"
#: The parent's request to compile for a target, too.
_TARGET = "JAXCACHE_TARGET"
#: The module to listen to, where it is not jax.
_LISTEN_TO = "JAXCACHE_LISTEN_TO"
#: Switches the live layer on; jaxcache need not be installed next to this jax.
_LIVE = "JAXCACHE_LIVE"
#: Defines a guard; see ``guard/guard.py``.
_GUARD = "JAXCACHE_GUARD"
HERE = os.path.dirname(os.path.abspath(__file__))
#: Under which name whoever was first is found by the other.
_NAME = "_jaxcache_hook"
_installed = False
#: The event of the import that was waited for; None where it came before.
imported: dict[str, Any] | None = None


def install() -> None:
    """Listen to the jax or torch of this process, once it is imported."""
    global _installed
    if __name__ != _NAME and os.environ.get(EVENTS) and _sitecustomize_is_ours():
        return
    this = sys.modules[__name__]
    if sys.modules.setdefault(_NAME, this) is not this or _installed:
        return
    _installed = True
    if not os.environ.get(EVENTS):
        when_imported(_ignore)  # for _begin_early()
        return
    _leave_out_our_frames()
    if os.environ.get(_LISTEN_TO) == "torch":
        when_imported(_listen, "torch", "compile")
    else:
        when_imported(_listen)


def _sitecustomize_is_ours() -> bool:
    """Whether Python is about to run ``startup/sitecustomize.py`` of some jaxcache."""
    from importlib.machinery import PathFinder

    spec = PathFinder.find_spec("sitecustomize")
    ours = os.path.join("injected", "startup", "sitecustomize.py")
    return spec is not None and (spec.origin or "").endswith(os.sep + ours)


def _leave_out_our_frames() -> None:
    """Have Python print an uncaught exception as without us: JAX filters no Ctrl-C.

    If the program ends because it cannot import jax, jaxcache gets an event before that.
    """
    print_error = sys.excepthook
    ours = tuple(os.path.join(os.path.dirname(HERE), part) for part in ("core", "injected", "live"))

    def print_without_ours(kind: Any, error: BaseException, trace: Any) -> None:
        frames = [trace]
        while frames[-1] is not None:
            frames.append(frames[-1].tb_next)
        kept = [f for f in frames if not (f and f.tb_frame.f_code.co_filename.startswith(ours))]
        for position, frame in enumerate(kept[:-1]):
            frame.tb_next = kept[position + 1]
        trace = kept[0] or trace
        if isinstance(error, ModuleNotFoundError) and error.name == "jax":
            report(
                {
                    "event": "unobserved",
                    "detail": f"the program's Python, {sys.executable}, has no jax",
                }
            )
        print_error(kind, error.with_traceback(trace), trace)

    sys.excepthook = print_without_ours


def when_imported(then: Callable[[Any], None], name: str = "jax", last: str = "jit") -> Any:
    """Call a function with jax as soon as it is imported; at once where it is.

    Args:
        name: the module, where it is not jax.
        last: a name that it has only when all of it is imported.

    Returns:
        What waits on ``sys.meta_path``; None where nothing has to.
    """
    module = sys.modules.get(name)
    if module is not None and hasattr(module, last):
        then(module)
        return None
    finder = _Finder(then, name)
    sys.meta_path.insert(0, finder)
    return finder


def make_private_package() -> None:
    """Make ``_jaxcache``, whose subpackages are those of the jaxcache that holds this file.

    ``jaxcache/__init__.py`` is not executed, and a jaxcache that the user has is left alone.
    """
    if "_jaxcache" not in sys.modules:
        from importlib.machinery import ModuleSpec
        from importlib.util import module_from_spec

        spec = ModuleSpec("_jaxcache", None, is_package=True)
        spec.submodule_search_locations = [os.path.dirname(HERE)]
        sys.modules["_jaxcache"] = module_from_spec(spec)


def _listen(module: Any) -> None:
    """Attach to the jax or torch just imported; a failure here is not the script's."""
    try:
        make_private_package()
        if module.__name__ == "torch":
            from _jaxcache.injected import torch_listener as observer
        elif os.environ.get(_TARGET):
            from _jaxcache.injected import cross_observer as observer
        else:
            from _jaxcache.injected import listener as observer

        observer.attach(module)
        if module.__name__ == "jax" and os.environ.get(_GUARD):
            from _jaxcache.injected.guard import start

            start()
        if module.__name__ == "jax" and os.environ.get(_LIVE):
            from _jaxcache.live import plugin

            plugin.switch_on()
    except Exception as error:
        report({"event": "trouble", "detail": f"{type(error).__name__}: {error}"})


def _ignore(module: Any) -> None:
    """Leave the jax just imported alone: no listener is wanted."""


def _begin_early() -> None:
    """Let the live layer fetch from its tiers while jax is imported."""
    try:
        if os.environ.get(EVENTS):
            make_private_package()
            from _jaxcache.live import layer
        else:  # where JAX will find the layer by its entry point
            from jaxcache.live import layer

        layer.begin_early()
    except Exception:
        return  # the layer itself reports what is wrong with its settings


def report(event: dict[str, Any]) -> None:
    """Send an event to the parent."""
    try:
        make_private_package()
        from _jaxcache.injected import channel

        channel.CHANNEL.send(event)
    except Exception as error:
        print(f"jaxcache: cannot report: {error}", file=sys.stderr)


class _Finder:
    """Stands first on ``sys.meta_path``, finds nothing itself, and notices one module."""

    def __init__(self, then: Callable[[Any], None], name: str) -> None:
        self._then = then
        self._name = name
        self._looking = False

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:  # noqa: ARG002
        if name != self._name or self._looking:
            return None
        from importlib.util import find_spec

        self._looking = True
        try:
            spec = find_spec(name)
        finally:
            self._looking = False
        if spec is None or spec.loader is None:
            return None
        self._tap(spec.loader)
        return spec

    def _tap(self, loader: Any) -> None:
        """Run ``exec_module`` of this one loader, then listen; the loader ends as it was."""
        run = loader.exec_module

        def exec_module(module: Any) -> None:
            global imported
            loader.__dict__.pop("exec_module", None)  # another one of ours may be around it
            started = time.time()
            if self._name == "jax" and os.environ.get(_LIVE):
                _begin_early()
            try:
                run(module)
            except Exception as error:
                if self._then is _listen and self._name == "jax":
                    report({"event": "jax-failed", "detail": f"{type(error).__name__}: {error}"})
                raise
            imported = {"event": "phases", "spans": [(started, time.time(), "import")]}
            if self in sys.meta_path:
                sys.meta_path.remove(self)
            self._then(module)

        loader.exec_module = exec_module
