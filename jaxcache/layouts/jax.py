"""JAX's own cache, and a bundle of its entries; each group of functions is imported when used."""

from pathlib import Path
from typing import TYPE_CHECKING

from jaxcache.core.names import AUTOTUNE_DIR, OWN_DIR
from jaxcache.entry.names import key_of
from jaxcache.layouts.words import Words

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
    #: Whether an entry begins with its codec and seconds, so that no more need be read. Where not,
    #: what can be told of an entry takes reading all of it, and it has no codec.
    has_headers = True
    #: Whether facts of its entries are worth remembering.
    keeps_index = True
    #: The directories in a cache whose files belong to it; None for all.
    directories = (AUTOTUNE_DIR, OWN_DIR)

    def own_directory(self) -> None:
        """JAX has none: its settings name one."""

    def key_of(self, name: str) -> str | None:
        """The key in a file's name."""

        return key_of(name)

    def load_index(self, directory: Path, url: str, *, now_ns: int) -> "Index":
        """Open the index."""
        from jaxcache.cache.index import Index

        return Index.load(directory, url, now_ns=now_ns)

    @property
    def scans(self) -> "base.Scans":
        from jaxcache.cache import scan

        return scan

    @property
    def shows(self) -> "base.Shows":
        from jaxcache.cache import show

        return show

    @property
    def checks(self) -> "base.Checks":
        from jaxcache.cache.verify import check

        return check

    @property
    def removals(self) -> "base.Removals":
        from jaxcache.cache.prune import removable

        return removable

    @property
    def exports(self) -> "base.Exports":
        from jaxcache.cache.move import export_plan

        return export_plan

    @property
    def imports(self) -> "base.Imports":
        from jaxcache.cache.move import import_bundle

        return import_bundle

    @property
    def sides(self) -> "base.Sides":
        from jaxcache.cache import diff

        return diff

    @property
    def explains(self) -> "base.Explains":
        from jaxcache.cache.explain import churn

        return churn


class BundleLayout:
    """A bundle as a cache, as far as :class:`jaxcache.layouts.base.Layout` is asked to look."""

    name = "bundle"
    words = JaxLayout.words
    single_file_entries = True
    has_headers = True
    keeps_index = False
    directories = None

    @property
    def scans(self) -> "base.Scans":
        from jaxcache.cache.bundle import reader

        return reader  # type: ignore[return-value]

    @property
    def shows(self) -> "base.Shows":
        from jaxcache.cache.bundle import reader

        return reader  # type: ignore[return-value]
