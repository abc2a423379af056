"""The base of :class:`jaxcache.api.Cache`: where a cache is, what it is, and what serves it."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import cached_property, partial
from typing import TYPE_CHECKING, Literal, cast

from jaxcache import layouts
from jaxcache.core.names import OWN_DIR
from jaxcache.errors import NoCacheError
from jaxcache.model import reporting_to
from jaxcache.store import find_store, is_remote, make_store, open_store, require_writable
from jaxcache.store.base import Store
from jaxcache.store.location import Location, locate_cache

if TYPE_CHECKING:
    from jaxcache.cache.ledger.segments import Ledger
    from jaxcache.cache.listing import ReadCache
    from jaxcache.cache.recipe import RecipeFile
    from jaxcache.layouts import Layout
    from jaxcache.model import Progress

PlaceKind = Literal["cache", "bundle", "recipe"]
#: Caches below a directory that an error names.
_CACHES_NAMED = 5


#: Makes what shows the progress of one piece of work, from its title and ``in_bytes``: a context
#: whose value is called with (done, total); None shows nothing.
MakeProgress = Callable[..., "AbstractContextManager[Progress | None]"]


def show_nothing(*_: object, **__: object) -> "AbstractContextManager[Progress | None]":
    """Show no progress."""
    return nullcontext()


@contextmanager
def _show(make: MakeProgress, title: str, *, in_bytes: bool = False) -> Iterator[None]:
    """Show the progress that the work inside reports."""
    with make(title, in_bytes=in_bytes) as show, reporting_to(show):
        yield


def locate(cache_dir: str | None, layout: str | None = None) -> Location:
    """Return the location of a cache: a path or URL, else the directory of that compiler.

    Raises:
        UsageError: ``bad-layout``, ``bad-config`` or ``bad-path``.
    """
    if layout is not None:
        chosen = layouts.load_layout(layout)
        cache_dir = chosen.own_directory() if cache_dir is None else cache_dir
    return locate_cache(cache_dir)


class Handle:
    """One place, resolved once; what serves it is opened when it is first used.

    Attributes:
        layout_name: the layout that the caller named.
        spelling: the directory as programs are given it; None where JAX gets none.

    Args:
        location: a path or URL, and the setting that it comes from.
        layout: ``"jax"`` or ``"torch"``; None for that of its directories.
        creates: make a local directory that does not exist.
        progress: makes what shows the progress of a piece of work.
        note: takes lines for people, such as warnings.
        workers: processes to read with in a large directory.
        index_directory: where indexes are kept; None: without one.
        clock: returns the time in nanoseconds since 1970.
    """

    def __init__(
        self,
        location: Location,
        layout: str | None = None,
        *,
        creates: bool = False,
        progress: MakeProgress = show_nothing,
        note: Callable[..., None] = lambda *_: None,
        workers: int = 1,
        index_directory: str | None = None,
        clock: Callable[[], int] | None = None,
    ) -> None:
        self.location = location
        self.spelling = location.spelling
        self.progress = partial(_show, progress)
        self.note = note
        self.workers = workers
        self.clock = clock or time.time_ns
        self.layout_name = layout
        self._creates = creates
        self._index_directory = index_directory

    def __repr__(self) -> str:
        return f"Cache({self.location.path!r})"

    @property
    def path(self) -> str:
        """The absolute path; a URL as it is."""
        path = self.location.path
        return path if is_remote(path) else os.path.abspath(path)

    @cached_property
    def kind(self) -> PlaceKind:
        """What is there: a cache, a bundle or a recipe."""
        path = self.location.path
        return kind_of_file(path) if os.path.isfile(path) else "cache"

    @cached_property
    def store(self) -> "Store":
        """Where the bytes of the cache are.

        Raises:
            NoCacheError: no directory there, not readable, all in it is of other programs, or it
                has caches below it alone.
        """
        path = self.location.path
        store = self.existing = self.make() if self._creates else open_store(path)
        self.refuse_caches_below()
        if not self._creates:
            refuse_foreign(path)
        return store

    @cached_property
    def existing(self) -> "Store | None":
        """The store of a target; None where no directory is yet.

        Raises:
            NoCacheError: it exists but cannot be read, or cannot be made.
        """
        return find_store(self.location.path)

    def make(self) -> "Store":
        """Return the store of a target, making the directory if it does not exist.

        >>> jaxcache.open("other").make().writable
        True

        Raises:
            NoCacheError: it cannot be made.
        """
        self.existing = self.existing or make_store(self.location.path)
        return self.existing

    @cached_property
    def layout(self) -> "Layout":
        """The facts about the compiler that fills it.

        Raises:
            UsageError: ``two-layouts`` where JAX and torch share a directory.
        """
        return layouts.choose_layout(self.store, self.layout_name)

    @cached_property
    def compiler(self) -> str:
        """The name of its layout, also of a directory that does not exist: JAX's, if none is named.

        Raises:
            UsageError: ``two-layouts``.
        """
        if self.layout_name is None and os.path.isdir(self.location.path):
            with suppress(NoCacheError):  # it may not be read
                return layouts.detect_layout(open_store(self.location.path))
        return self.layout_name or "jax"

    @cached_property
    def readable(self) -> "tuple[Store, Layout]":
        """The cache, or a bundle as one, for what only looks.

        Raises:
            NoCacheError: the directory does not exist or cannot be read.
            UsageError: ``two-layouts`` where JAX and torch share a directory.
            BundleError: the bundle is damaged.
        """
        if self.kind != "bundle":
            return self.store, self.layout
        from jaxcache.cache.bundle.reader import open_as_store

        store = open_as_store(self.location.path)
        return cast("Store", store), layouts.BUNDLE

    @property
    def index_directory(self) -> str | None:
        """The directory of its index; None without one."""
        return self._index_directory if self.readable[1].keeps_index else None

    @property
    def ledger(self) -> "Ledger":
        """What is recorded of its entries, as it is now."""
        from jaxcache.cache.ledger.segments import Ledger

        return Ledger.load(self.store)

    @property
    def jax_store(self) -> "Store":
        """The store, for what only a cache of JAX can be asked.

        Raises:
            UsageError: ``other-layout``: it is a cache of torch's compilers.
        """
        layouts.check_not_torch(self.store)
        return self.store

    def request_listings(self) -> None:
        """Request the listings of a bucket ahead, while all else is imported.

        >>> cache.request_listings()
        """
        if "://" in self.location.path and (
            request := getattr(self.store, "request_listings", None)
        ):
            request("", OWN_DIR)

    def open_recipe(self) -> "RecipeFile":
        """Open the recipe that this is, as a context.

        >>> report = cache.warm("train.py", record="train.recipe")
        >>> with jaxcache.open("train.recipe").open_recipe() as file:
        ...     len(file.select()) > 0
        True

        Raises:
            RecipeError: it cannot be read, or was changed.
        """
        from jaxcache.cache.recipe import open_recipe

        return open_recipe(self.location.path)

    def note_foreign(self) -> None:
        """Say of a directory without a cache that it has files of other programs, and stays theirs.

        >>> cache.note_foreign()
        """
        from jaxcache.cache.files import is_foreign

        path = self.path
        if os.path.isdir(path) and is_foreign(path):
            self.note(
                f"note: {path} has files of other programs, and the cache is written beside them"
            )

    def require_compiler(self, compiler: str) -> None:
        """Refuse a place for the files of one compiler that has those of another one.

        >>> cache.require_compiler("jax")

        Raises:
            UsageError: ``other-layout``.
            NoCacheError: it has caches below it alone.
        """
        if os.path.isdir(self.location.path) and self.existing:
            self.refuse_caches_below()
            layouts.check_layout(self.existing, compiler)
            self.note_foreign()

    def require_there(self) -> None:
        """Refuse a place that does not exist; one of a bucket is not asked.

        >>> cache.require_there()

        Raises:
            NoCacheError: nothing is there.
        """
        from jaxcache.cache.files import nothing_there

        path = self.location.path
        if not (is_remote(path) or os.path.exists(path)):
            raise nothing_there(path)

    @property
    def is_bundle_name(self) -> bool:
        """Whether it is a bundle, or would be one."""
        from jaxcache.cache.move.bundle_file import is_bundle_name

        return is_bundle_name(self.location.path)

    def require_writable(self) -> None:
        """Refuse to change a cache that cannot be changed, before any work.

        >>> cache.require_writable()

        Raises:
            JaxcacheError: ``read-only``.
        """
        require_writable(self.store)

    def refuse_caches_below(self) -> None:
        """Refuse a directory that holds caches below it, and no entries of its own.

        >>> cache.refuse_caches_below()

        Raises:
            NoCacheError: it names the caches.
        """
        from jaxcache.cache.files import find_caches

        if below := find_caches(self.location.path):
            import shlex

            names = ", ".join(os.path.relpath(path, self.path) for path in below[:_CACHES_NAMED])
            more = len(below) - _CACHES_NAMED
            raise NoCacheError(
                f"no cache in {self.location.path}; caches below it: {names}"
                + (f", and {more:,} more" if more > 0 else ""),
                hint=f"name one with -C, such as -C {shlex.quote(below[0])}",
            )

    @contextmanager
    def _reading(self, place: "tuple[Store, Layout]") -> "Iterator[ReadCache]":
        """Show the progress of what reads the entries, and give the cache to read."""
        from jaxcache.cache.listing import ReadCache

        with self.progress("reading entries"):
            yield ReadCache(*place, self.clock(), self.index_directory, self.workers)


def kind_of_file(path: str) -> PlaceKind:
    """Tell a bundle and a recipe by how they begin; any other file counts as part of a cache."""
    from jaxcache.cache.bundle.format import is_bundle
    from jaxcache.cache.recipe import is_recipe

    return "recipe" if is_recipe(path) else "bundle" if is_bundle(path) else "cache"


def refuse_foreign(path: str) -> None:
    """Refuse a local directory whose visible files all belong to other programs.

    Raises:
        NoCacheError: ``no-cache``.
    """
    from jaxcache.cache.files import foreign_directory, is_foreign

    if not is_remote(path) and is_foreign(path):
        raise foreign_directory(path)
