"""The caches of several compilers, with one interface; :func:`choose_layout` picks one.

Each group of functions is imported when used.
"""

import os
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from jaxcache.entry.names import TORCH_GRAPHS, TORCH_LOCKS, key_of, split_name
from jaxcache.errors import UsageError
from jaxcache.layouts.base import FunctionGroup, Words
from jaxcache.store.base import MissingError, Store

if TYPE_CHECKING:
    from jaxcache.cache.diff import DiffSide
    from jaxcache.cache.index import Index
    from jaxcache.layouts import base
    from jaxcache.layouts.torch import TorchLayout
    from jaxcache.layouts.torch.explain import GraphDetails as GraphDetails
    from jaxcache.model import FileInfo


class JaxLayout:
    """The cache of JAX; torch's class has the same members."""

    #: The name for ``--layout``.
    name = "jax"
    #: The words of screens that all layouts share.
    words = Words("JAX", "jaxcache warm SCRIPT, or jaxcache run -- CMD", "jaxcache run -- CMD")
    #: Whether each entry is one file, which can be loaded, forecast, signed and sent singly.
    single_file_entries = True
    #: Whether an entry begins with its codec and seconds, so that no more need be read. Otherwise
    #: the facts of an entry require all of it, and it has no codec.
    has_headers = True
    #: Whether facts of its entries are worth remembering.
    keeps_index = True

    def own_directory(self) -> None:
        """JAX has none: its settings name one."""

    #: The key in a file's name.
    key_of = staticmethod(key_of)

    def load_index(self, directory: str, url: str, *, now_ns: int) -> "Index":
        """Open the index."""
        from jaxcache.cache.index import Index

        return Index.load(directory, url, now_ns=now_ns)

    scans: FunctionGroup["base.Scans"] = FunctionGroup("jaxcache.cache.scan")
    shows: FunctionGroup["base.Shows"] = FunctionGroup("jaxcache.cache.show")
    checks: FunctionGroup["base.Checks"] = FunctionGroup("jaxcache.cache.verify.check")
    removals: FunctionGroup["base.Removals"] = FunctionGroup("jaxcache.cache.prune.removable")
    exports: FunctionGroup["base.Exports"] = FunctionGroup("jaxcache.cache.move.export_plan")
    imports: FunctionGroup["base.Imports"] = FunctionGroup("jaxcache.cache.move.import_bundle")
    sides: FunctionGroup["base.Sides"] = FunctionGroup("jaxcache.cache.diff")
    explains: FunctionGroup["base.Explains"] = FunctionGroup("jaxcache.cache.explain.keys")
    examines: FunctionGroup[Any] = FunctionGroup("jaxcache.cache.doctor.run_checks")


class BundleLayout:
    """A bundle as a cache, as far as :class:`jaxcache.layouts.Layout` is asked to look."""

    name = "bundle"
    words = JaxLayout.words
    single_file_entries = True
    has_headers = True
    keeps_index = False

    scans: FunctionGroup["base.Scans"] = FunctionGroup("jaxcache.cache.bundle.reader")
    shows: FunctionGroup["base.Shows"] = FunctionGroup("jaxcache.cache.bundle.reader")


#: The facts about one compiler's cache; both classes have the same members.
Layout: TypeAlias = "JaxLayout | TorchLayout"

JAX: "Layout" = JaxLayout()
#: A bundle of JAX's entries, which can be looked at and no more.
BUNDLE = cast("Layout", BundleLayout())
NAMES = ("jax", "torch")


def load_layout(name: str) -> "Layout":
    """The layout of that name.

    Raises:
        UsageError: ``bad-layout``.
    """
    if name == "jax":
        return JAX
    if name == "torch":
        from jaxcache.layouts.torch import TorchLayout

        return TorchLayout()
    raise UsageError(
        f"{name!r} is not a layout", code="bad-layout", hint=f"one of {', '.join(NAMES)}"
    )


def choose_layout(store: Store, name: str | None = None) -> "Layout":
    """Return the requested layout, else the one that the cache has.

    Raises:
        UsageError: ``bad-layout``, or ``two-layouts`` where JAX and torch share a directory.
    """
    return load_layout(name or detect_layout(store))


def detect_layout(store: Store) -> str:
    """Determine by its directories what wrote a cache; an empty one counts as JAX's.

    Opens no file, and sends no request: in an object store, it is JAX's unless the caller names
    another.

    Raises:
        UsageError: ``two-layouts``.
    """
    if store.remote or not _has_torch(store):
        return "jax"
    if _has_jax_entries(store):
        raise UsageError(
            f"{store.url} holds entries of JAX and of torch",
            code="two-layouts",
            hint="choose with --layout jax or --layout torch",
        )
    return "torch"


def check_not_torch(store: Store) -> None:
    """Refuse a cache of torch's compilers for what only one of JAX can be asked.

    One that has entries of both will do; it costs two lookups.

    Raises:
        UsageError: ``other-layout``.
    """
    if not store.remote and _has_torch(store) and not _has_jax_entries(store):
        raise UsageError(
            f"{store.url} is a cache of torch's compilers, and this is for JAX's",
            code="other-layout",
            hint="seal, compile, target check and ci are for JAX's caches alone",
        )


def check_layout(store: Store, layout: str) -> None:
    """Refuse to put what one compiler made into a cache of another.

    Raises:
        UsageError: ``other-layout``.
    """
    if store.remote:
        return
    has_torch = _has_torch(store)
    if has_torch if layout == "jax" else _has_jax_entries(store) and not has_torch:
        other = "torch" if layout == "jax" else "JAX"
        raise UsageError(
            f"{store.url} is a cache of {other}",
            code="other-layout",
            hint="name another directory",
        )


def _has_torch(store: Store) -> bool:
    if any(_is_directory(store, name) for name in TORCH_GRAPHS):
        return True
    if not _is_directory(store, TORCH_LOCKS):
        return False
    from jaxcache.layouts.torch.names import LOCK

    return any(LOCK.fullmatch(info.name) for info in store.list(TORCH_LOCKS))


def _has_jax_entries(store: Store) -> bool:
    return any(split_name(info.name)[1] for info in store.list() if info.type == "file")


def _is_directory(store: Store, name: str) -> bool:
    try:
        return store.info(name).type == "dir"
    except MissingError:
        return False


def open_side(location: str, *, layout: str | None = None) -> "DiffSide":
    """Read what a bundle or a cache holds.

    Raises:
        BundleError, NoCacheError
        UsageError: ``two-layouts``.
    """
    from jaxcache.cache.bundle.format import is_bundle, open_bundle
    from jaxcache.store import open_store

    if not is_bundle(location):
        store = open_store(location)
        return choose_layout(store, layout).sides.read_side(store)
    bundle = open_bundle(location)
    with bundle.file:
        return load_layout(bundle.manifest.layout).sides.read_bundle(bundle)


def names_there(location: str) -> frozenset[str]:
    """Return the names of all regular files at a path or URL; none if it does not exist yet.

    Raises:
        NoCacheError: it cannot be listed.
    """
    from jaxcache.store import is_remote, open_store

    if not is_remote(location) and not os.path.isdir(location):
        return frozenset()
    store = open_store(location)
    files: list[FileInfo] = []
    for info in store.list():
        files += store.walk(info.name) if info.type == "dir" else [info]
    return frozenset(info.name for info in files if info.type == "file")


def check_same_layout(left: "DiffSide", right: "DiffSide") -> None:
    """Refuse to compare what no compiler could exchange.

    Raises:
        UsageError: ``other-layout``.
    """
    if left.layout != right.layout and left.entries and right.entries:
        raise UsageError(
            f"one side is a cache of {left.layout}, the other of {right.layout}",
            code="other-layout",
        )
