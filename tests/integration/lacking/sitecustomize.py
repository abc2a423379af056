"""On PYTHONPATH: takes the names in ``LACKING`` out of jax, as another version of it might."""

import importlib
import os
import sys
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


if "LACKING" in os.environ:
    # Behind jaxcache's own finder, if that is there: it is to meet the jax that lacks them.
    first = bool(os.environ.get("JAXCACHE_EVENTS"))
    sys.meta_path.insert(int(first), _Finder())
