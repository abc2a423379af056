"""On PYTHONPATH: breaks jax, as the variables ``LACKING`` and ``DEADLY`` say.

``LACKING`` holds names that are taken out of jax, as another version of it might. A worker dies
while it compiles the module that ``DEADLY`` names, and the first that compiles another one: it
makes the file ``DEADLY_ONCE``.
"""

import importlib
import os
import signal
import sys
import threading
import time
from importlib.util import find_spec


class _Finder:
    """Notices jax being imported, and finds nothing itself."""

    def find_spec(self, name, path=None, target=None):
        if name != "jax" or self not in sys.meta_path:
            return None
        sys.meta_path.remove(self)
        spec = find_spec(name)
        run = spec.loader.exec_module

        def exec_module(module):
            run(module)
            for text in os.environ["LACKING"].split():
                place, _, attribute = text.rpartition(".")
                delattr(importlib.import_module(place), attribute)

        spec.loader.exec_module = exec_module
        return spec


def arm():
    """Wait for jax, then put the trap where every compile that misses passes."""
    while not hasattr(sys.modules.get("jax._src.compiler"), "_compile_and_write_cache"):
        time.sleep(0.001)
    compiler = sys.modules["jax._src.compiler"]
    compile_ = compiler._compile_and_write_cache

    def trap(*args):
        if os.environ["DEADLY"] in [a for a in args if isinstance(a, str)] or is_first():
            os.kill(os.getpid(), signal.SIGKILL)
        return compile_(*args)

    compiler._compile_and_write_cache = trap


def is_first():
    """Whether nobody has died of another module yet."""
    try:
        os.close(os.open(os.environ["DEADLY_ONCE"], os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


if "LACKING" in os.environ:
    # Behind jaxcache's own finder, if that is there: it is to meet the jax that lacks them.
    first = bool(os.environ.get("JAXCACHE_EVENTS"))
    sys.meta_path.insert(int(first), _Finder())
if "DEADLY" in os.environ and "JAXCACHE_WORKER" in os.environ:
    threading.Thread(target=arm, daemon=True).start()
