"""Where bytes live. :func:`open_store` picks the store that a location asks for."""

import os

from jaxcache.errors import NoCacheError, UsageError
from jaxcache.store.base import Store


def make_store(location: str) -> Store:
    """Open the store at a path, making the directory where there is none.

    Raises:
        NoCacheError: it cannot be made.
        UsageError: a URL of a kind that no store serves.
    """
    if "://" not in location:
        try:
            os.makedirs(location, exist_ok=True)
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise NoCacheError(f"cannot make {location}: {reason}", code="io-error") from error
    return open_store(location)


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
