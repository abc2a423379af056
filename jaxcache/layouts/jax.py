"""JAX's own cache, and a bundle of its entries; each group of functions is imported when used."""

from pathlib import Path
from typing import TYPE_CHECKING

from jaxcache.entry.names import key_of
from jaxcache.layouts.base import FunctionGroup, Words

if TYPE_CHECKING:
    from jaxcache.cache.index import Index
    from jaxcache.layouts import base


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

    def load_index(self, directory: Path, url: str, *, now_ns: int) -> "Index":
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
    explains: FunctionGroup["base.Explains"] = FunctionGroup("jaxcache.cache.explain.churn")


class BundleLayout:
    """A bundle as a cache, as far as :class:`jaxcache.layouts.Layout` is asked to look."""

    name = "bundle"
    words = JaxLayout.words
    single_file_entries = True
    has_headers = True
    keeps_index = False

    scans: FunctionGroup["base.Scans"] = FunctionGroup("jaxcache.cache.bundle.reader")
    shows: FunctionGroup["base.Shows"] = FunctionGroup("jaxcache.cache.bundle.reader")
