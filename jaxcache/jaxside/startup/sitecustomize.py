"""Runs at the start of every Python below ``jaxcache warm`` or ``run``, before any user code.

It leaves the process as it found it: its folder goes off ``sys.path`` again, a ``sitecustomize``
that it hides is run in its place, and nothing more happens until the script itself has imported
jax. Only then is the listener loaded; the script may set ``XLA_FLAGS`` and the like before.
"""

import os
import sys
from importlib.machinery import PathFinder

_HERE = os.path.dirname(os.path.abspath(__file__))
#: Address of the parent's socket. The variables are read here and in ``channel.py`` alone.
_EVENTS = "JAXCACHE_EVENTS"
#: Process id of jaxcache: some wishes are for its own children, and not for theirs.
_PARENT = "JAXCACHE_PARENT"
#: The parent's request to compile for a target, too.
_TARGET = "JAXCACHE_TARGET"
#: The child is to stop where jax is missing.
_NEEDS_JAX = "JAXCACHE_NEEDS_JAX"
_NO_JAX_EXIT_CODE = 13


def _load_side():
    """Load the package that this folder belongs to, under a name that clashes with nothing."""
    import importlib.util

    name = "_jaxcache_side"
    if name not in sys.modules:
        folder = os.path.dirname(_HERE)
        spec = importlib.util.spec_from_file_location(
            name, os.path.join(folder, "__init__.py"), submodule_search_locations=[folder]
        )
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])


def _listen(jax):
    """Attach to the jax that has just been imported; a failure here is not the script's."""
    try:
        _load_side()
        if os.environ.get(_TARGET):
            from _jaxcache_side.target import abroad as observer
        else:
            from _jaxcache_side import listener as observer

        observer.attach(jax)
    except Exception as error:
        _report({"event": "trouble", "detail": f"{type(error).__name__}: {error}"})


def _report(event):
    try:
        _load_side()
        from _jaxcache_side import channel

        channel.CHANNEL.send(event)
    except Exception as error:
        print(f"jaxcache: cannot report: {error}", file=sys.stderr)


class _JaxFinder:
    """Stands first on ``sys.meta_path``, finds nothing itself, and notices jax."""

    def __init__(self):
        self._looking = False

    def find_spec(self, name, path=None, target=None):  # noqa: ARG002
        if name != "jax" or self._looking:
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

    def _tap(self, loader):
        """Run ``exec_module`` of this one loader, then listen; the loader ends as it was."""
        run = loader.exec_module

        def exec_module(module):
            del loader.exec_module
            try:
                run(module)
            except Exception as error:
                _report({"event": "jax-failed", "detail": f"{type(error).__name__}: {error}"})
                raise
            if self in sys.meta_path:
                sys.meta_path.remove(self)
            _listen(module)

        loader.exec_module = exec_module


def _run_hidden_sitecustomize():
    """Run the sitecustomize that would have run without us, as ``sitecustomize``."""
    sys.path[:] = [p for p in sys.path if os.path.abspath(p) != _HERE]
    spec = PathFinder.find_spec("sitecustomize")
    if spec is None or spec.loader is None:
        return
    from importlib.util import module_from_spec

    sys.modules["sitecustomize"] = module = module_from_spec(spec)
    spec.loader.exec_module(module)


if os.environ.get(_EVENTS):
    if "jax" in sys.modules:  # a .pth file was quicker
        _listen(sys.modules["jax"])
    else:
        sys.meta_path.insert(0, _JaxFinder())
_run_hidden_sitecustomize()
_OWN_CHILD = os.environ.get(_PARENT) == str(os.getppid())
if _OWN_CHILD and os.environ.get(_NEEDS_JAX) and PathFinder.find_spec("jax") is None:
    _report({"event": "no-jax", "executable": sys.executable, "python": sys.version.split()[0]})
    os._exit(_NO_JAX_EXIT_CODE)
