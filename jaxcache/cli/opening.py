"""Open the cache that a command is about, and choose its layout."""

import os
from typing import TYPE_CHECKING, NamedTuple, cast

from jaxcache.errors import UsageError
from jaxcache.store.location import Location, index_directory, locate_cache

if TYPE_CHECKING:
    from pathlib import Path

    from jaxcache.cache.ledger.segments import Ledger
    from jaxcache.layouts.base import Layout
    from jaxcache.store.base import Store


class Opened(NamedTuple):
    """A cache, and how to work on it."""

    store: "Store"
    layout: "Layout"

    @property
    def index_directory(self) -> "Path | None":
        """The directory of its index; None for a bundle, whose manifest is one."""
        return index_directory() if self.layout.keeps_index else None

    @property
    def ledger(self) -> "Ledger":
        """The ledger of it."""
        from jaxcache.cache.ledger.segments import Ledger

        ledger: Ledger | None = getattr(self.store, "ledger", None)
        return Ledger.load(self.store) if ledger is None else ledger


def names_recipe(path: str) -> bool:
    """Whether a path is that of a recipe; cheap where it is a directory."""
    if not os.path.isfile(path):
        return False
    from jaxcache.cache.recipe.format import is_recipe

    return is_recipe(path)


def open_to_look(cache_dir: str | None, layout: str | None = None) -> Opened:
    """Open a cache or a bundle, for commands that only look.

    Raises:
        UsageError, NoCacheError, BundleError
    """
    path = locate_cache(cache_dir).path
    if os.path.isfile(path):
        from jaxcache.cache.bundle.format import is_bundle

        if is_bundle(path):
            from jaxcache.cache.bundle.reader import open_as_store
            from jaxcache.layouts import BUNDLE

            return Opened(cast("Store", open_as_store(path)), cast("Layout", BUNDLE))
    return open_cache(cache_dir, layout)


def open_cache(cache_dir: str | None, layout: str | None = None) -> Opened:
    """Open the cache that the options name.

    ``--layout`` without ``--cache-dir`` means the compiler's own directory.

    Raises:
        UsageError, NoCacheError
    """
    from jaxcache.layouts import choose_layout

    store = _open_one(find_location(cache_dir, layout).path)
    return Opened(store, choose_layout(store, layout))


def _open_one(path: str) -> "Store":
    """Open a store that is one cache, and has files of caches."""
    from jaxcache.store import open_store

    store = open_store(path)
    refuse_root(path)
    refuse_foreign(path)
    return store


def refuse_root(path: str) -> None:
    """Refuse a root for a command that needs one cache.

    Raises:
        UsageError: ``root-of-caches``; its hint names the caches.
    """
    from jaxcache.cache.root import find_caches

    if caches := find_caches(path):
        import shlex

        shown = ", ".join(f"-C {shlex.quote(cache)}" for cache in caches[:5])
        more = f", and {len(caches) - 5:,} more" if caches[5:] else ""
        raise UsageError(
            f"{path} is a directory above {len(caches):,} caches, and this needs one",
            code="root-of-caches",
            hint=f"name one of them: {shown}{more}",
        )


def refuse_foreign(path: str) -> None:
    """Refuse a local directory whose visible files all belong to other programs.

    Raises:
        NoCacheError: ``no-cache``.
    """
    from jaxcache.cache.inventory import foreign_directory, is_foreign
    from jaxcache.store import is_remote

    if not is_remote(path) and is_foreign(path):
        raise foreign_directory(path)


def find_location(cache_dir: str | None, layout: str | None) -> Location:
    """Return the location of the cache: the option, else the directory of that compiler.

    Raises:
        UsageError: ``bad-layout``, ``bad-config`` or ``bad-path``.
    """
    from jaxcache.layouts import load_layout

    own = load_layout(layout).own_directory if layout is not None else None
    return locate_cache(own() if own and cache_dir is None else cache_dir)


def open_jax_cache(cache_dir: str | None) -> "Store":
    """Open the cache that the option names, for what only a cache of JAX can be asked.

    Raises:
        UsageError: ``other-layout``: it is one of torch's compilers.
        NoCacheError
    """
    from jaxcache.layouts import check_not_torch

    store = _open_one(locate_cache(cache_dir).path)
    check_not_torch(store)
    return store


def locate_target(cache_dir: str | None, layout: str | None, compiler: str) -> str:
    """Return the place for the files of one compiler: the option, else its own directory.

    Raises:
        UsageError: ``other-layout`` where ``--layout`` or what is there says otherwise;
            ``root-of-caches``.
    """
    from jaxcache.layouts import check_layout, load_layout
    from jaxcache.store import is_remote, open_store

    if layout is not None and load_layout(layout).name != compiler:
        raise UsageError(f"the file to import holds entries of {compiler}", code="other-layout")
    path = find_location(cache_dir, compiler).path
    if not is_remote(path) and os.path.isdir(path):
        refuse_root(path)
        check_layout(open_store(path), compiler)
    return path
