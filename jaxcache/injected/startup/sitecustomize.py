"""Runs at the start of every Python below ``jaxcache warm`` or ``run``, before any user code.

It leaves the process as it found it: its directory goes off ``sys.path`` again, and a
``sitecustomize`` that it hides is run in its place. ``hook.py`` does the rest.
"""

import os
import sys
from _frozen_importlib_external import PathFinder, SourceFileLoader

_HERE = os.path.dirname(os.path.abspath(__file__))
#: Process id of jaxcache: some requests are for its own children, and not for theirs.
_PARENT = "JAXCACHE_PARENT"
#: The modules without which the child is to stop: jax or torch, and what the live layer needs.
_NEEDS = "JAXCACHE_NEEDS"
_MISSING_EXIT_CODE = 13


def _load_hook():
    """Load hook.py by its path, unless jaxcache.pth has loaded it already."""
    if "_jaxcache_hook" not in sys.modules:
        path = os.path.join(os.path.dirname(_HERE), "hook.py")
        sys.modules["_jaxcache_hook"] = module = type(sys)("_jaxcache_hook")
        module.__file__ = path
        SourceFileLoader("_jaxcache_hook", path).exec_module(module)
    return sys.modules["_jaxcache_hook"]


def _run_hidden_sitecustomize():
    """Run the sitecustomize that would have run without us, as ``sitecustomize``."""
    sys.path[:] = [p for p in sys.path if os.path.abspath(p) != _HERE]
    spec = PathFinder.find_spec("sitecustomize")
    if spec is None or spec.loader is None:
        return
    from importlib.util import module_from_spec

    sys.modules["sitecustomize"] = module = module_from_spec(spec)
    spec.loader.exec_module(module)


_load_hook().install()
_run_hidden_sitecustomize()
_OWN_CHILD = os.environ.get(_PARENT) == str(os.getppid())
for _needed in os.environ.get(_NEEDS, "").split() if _OWN_CHILD else ():
    if PathFinder.find_spec(_needed) is not None:
        continue
    # A launcher has no jax, and another Python than this one does what the live layer is for.
    if _needed in ("jax", "torch") or PathFinder.find_spec("jax") is not None:
        event = {"event": "no-module", "executable": sys.executable, "detail": _needed}
        _load_hook().report(event)
        os._exit(_MISSING_EXIT_CODE)
