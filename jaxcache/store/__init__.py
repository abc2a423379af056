"""Where bytes live. :func:`open_store` picks the store that a location asks for."""

from jaxcache.errors import UsageError
from jaxcache.store.base import Store


def open_store(location: str) -> Store:
    """Open the store at a path or URL.

    Raises:
        NoCacheError: nothing there, or not readable.
        UsageError: a URL of a kind that no store serves.
    """
    scheme, separator, rest = location.partition("://")
    if separator and scheme != "file":
        raise UsageError(
            f"no store serves {scheme}:// yet",
            code="unknown-store",
            hint="copy the cache to a local directory and name that",
        )
    from jaxcache.store.local import LocalStore

    return LocalStore(rest if separator else location)
