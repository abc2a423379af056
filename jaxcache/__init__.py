"""Manage JAX's persistent compilation cache: look inside, explain misses, check, shrink, move.

>>> import jaxcache
>>> cache = jaxcache.open()  # doctest: +SKIP
>>> for entry in cache.entries():  # doctest: +SKIP
...     print(entry.module, entry.size_bytes, entry.compile_seconds)

===================  =============================================================================
open(location)       a cache: ``entries``, ``stats``, ``show``, ``verify``, ``plan_prune``, …
watch()              a block of this program: its hits, compiles, and why each was compiled
last_misses()        the modules that the last such block compiled
explain_miss(f, x)   why ``f(x)`` would compile
warm_up(f, x)        compile or load for ``f(x)`` before the first request
guard()              a block that may not compile; ``warmed_up()``, for a whole process
enable()             the live layer in this program: checked reads, a bound, shared tiers
counters()           what the live layer of this program has counted
JaxcacheError        what goes wrong: ``code``, ``message``, ``hint``
===================  =============================================================================

``help(jaxcache.open)``, ``help(jaxcache.Cache)`` and ``help(jaxcache.watch)`` show the rest.

(To pytest: PYTEST_DONT_REWRITE, because ``jaxcache run`` imports this package before pytest does.)
"""

TYPE_CHECKING = False  # typing itself takes longer to import than all of this
if TYPE_CHECKING:
    from typing import Any

    from jaxcache.api import Cache as Cache
    from jaxcache.api import open as open  # noqa: A004
    from jaxcache.entry.summary import Entry as Entry
    from jaxcache.errors import JaxcacheError as JaxcacheError
    from jaxcache.injected.guard import UnexpectedCompileError as UnexpectedCompileError
    from jaxcache.injected.guard import guard as guard
    from jaxcache.injected.guard import warmed_up as warmed_up
    from jaxcache.inprocess.warm_up import explain_miss as explain_miss
    from jaxcache.inprocess.warm_up import warm_up as warm_up
    from jaxcache.inprocess.watch import last_misses as last_misses
    from jaxcache.inprocess.watch import watch as watch
    from jaxcache.live.layer import counters as counters
    from jaxcache.live.layer import enable as enable
    from jaxcache.live.settings import ConfigError as ConfigError
    from jaxcache.options import PruneOptions as PruneOptions

__version__ = "1.0.0rc2"

#: Where each name is that is imported when it is used: the command line must start without them.
_HOMES = {
    "Cache": "jaxcache.api",
    "ConfigError": "jaxcache.live.settings",
    "Entry": "jaxcache.entry.summary",
    "JaxcacheError": "jaxcache.errors",
    "PruneOptions": "jaxcache.options",
    "UnexpectedCompileError": "jaxcache.injected.guard",
    "counters": "jaxcache.live.layer",
    "enable": "jaxcache.live.layer",
    "explain_miss": "jaxcache.inprocess.warm_up",
    "guard": "jaxcache.injected.guard",
    "last_misses": "jaxcache.inprocess.watch",
    "load_ipython_extension": "jaxcache.inprocess.notebook",
    "open": "jaxcache.api",
    "warm_up": "jaxcache.inprocess.warm_up",
    "warmed_up": "jaxcache.injected.guard",
    "watch": "jaxcache.inprocess.watch",
}
__all__ = [
    "Cache",
    "ConfigError",
    "Entry",
    "JaxcacheError",
    "PruneOptions",
    "UnexpectedCompileError",
    "__version__",
    "counters",
    "enable",
    "explain_miss",
    "guard",
    "last_misses",
    "open",
    "warm_up",
    "warmed_up",
    "watch",
]


def __getattr__(name: str) -> "Any":
    if name not in _HOMES:
        raise AttributeError(f"module 'jaxcache' has no attribute {name!r}")
    import sys
    from importlib import import_module

    home = _HOMES[name]
    # A command may have put its own copy of the guard into this process: one guard, one exception.
    return getattr(sys.modules.get(f"_{home}") or import_module(home), name)


def __dir__() -> list[str]:
    """Return the names to use, imported or not."""
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
