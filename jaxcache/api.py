"""The Python interface: what the command line does, as functions that return data."""

import os
import time
from collections.abc import Iterator, Sequence

from jaxcache.cache.listing import Listing, list_cache
from jaxcache.cache.scan import Progress
from jaxcache.cache.stats import Stats, count_cache
from jaxcache.model import Entry
from jaxcache.store import open_store
from jaxcache.store.base import Store


class Cache:
    """One cache directory."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def __repr__(self) -> str:
        return f"Cache({self.store.url!r})"

    def entries(self) -> Iterator[Entry]:
        """Yield every entry, by key; see :class:`jaxcache.model.Entry` for what it tells."""
        return iter(self.select().entries)

    def select(
        self,
        *keys: str,
        filters: Sequence[str] = (),
        sort: str = "key",
        limit: int | None = None,
        progress: Progress | None = None,
    ) -> Listing:
        """List entries as ``jaxcache ls`` does.

        Args:
            keys: full keys, unique prefixes, or module globs; none for all.
            filters: expressions such as ``"size>1MB"``.
            sort: a field, with ``:asc`` or ``:desc`` behind it.
            progress: called with (done, total) now and then.

        Raises:
            UsageError: a filter or an order that cannot be read.
            JaxcacheError: a key that fits nothing, or more than it may.
        """
        return list_cache(
            self.store, keys=keys, filters=filters, sort=sort, limit=limit,
            heads=True, now_ns=time.time_ns(), progress=progress,
        )  # fmt: skip

    def stats(self, *, progress: Progress | None = None) -> Stats:
        """Count everything in the directory, as ``jaxcache stats`` does."""
        return count_cache(self.store, now_ns=time.time_ns(), progress=progress)


def open(location: str | os.PathLike[str]) -> Cache:  # noqa: A001
    """Open the cache at a path or URL.

    Raises:
        NoCacheError: no directory there, or not readable.
    """
    return Cache(open_store(os.fspath(location)))
