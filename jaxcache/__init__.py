"""jaxcache manages JAX's persistent compilation cache.

>>> import jaxcache
>>> for entry in jaxcache.open().entries():  # doctest: +SKIP
...     print(entry.module, entry.size_bytes, entry.compile_seconds)
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jaxcache.api import Cache as Cache
    from jaxcache.api import open as open  # noqa: A004
    from jaxcache.errors import JaxcacheError as JaxcacheError
    from jaxcache.live.enable import enable as enable

__version__ = "0.1.0.dev0"

__all__ = ["Cache", "JaxcacheError", "__version__", "enable", "open"]


def __getattr__(name: str) -> Any:
    """Import the API when it is used: the command line must start without it."""
    if name in ("Cache", "open"):
        from jaxcache import api

        return getattr(api, name)
    if name == "enable":
        from jaxcache.live.enable import enable

        return enable
    if name == "JaxcacheError":
        from jaxcache.errors import JaxcacheError

        return JaxcacheError
    raise AttributeError(f"module 'jaxcache' has no attribute {name!r}")


def __dir__() -> list[str]:
    """Return the names to use, imported or not."""
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
