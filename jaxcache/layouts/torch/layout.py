"""The cache of torch's compilers; each group of functions is imported when used."""

from pathlib import Path
from typing import TYPE_CHECKING

from jaxcache.layouts.torch import names
from jaxcache.layouts.words import Words

if TYPE_CHECKING:
    from jaxcache.layouts import base
    from jaxcache.layouts.torch.scan import GraphIndex


class TorchLayout:
    """torch's cache: see :class:`jaxcache.layouts.base.Layout`."""

    name = "torch"
    words = Words("torch", "jaxcache warm --layout torch SCRIPT", None)
    single_file_entries = False
    has_headers = False
    keeps_index = True
    directories = None

    def own_directory(self) -> str:
        """The directory that torch uses by itself."""
        return names.own_directory()

    def key_of(self, name: str) -> str | None:
        """The key in a file's name."""
        return names.key_of(name)

    def load_index(self, directory: Path, url: str, *, now_ns: int) -> "GraphIndex":
        """Open the index."""
        from jaxcache.layouts.torch.scan import GraphIndex

        return GraphIndex.load(directory, url, now_ns=now_ns)

    @property
    def scans(self) -> "base.Scans":
        from jaxcache.layouts.torch import scan

        return scan

    @property
    def shows(self) -> "base.Shows":
        from jaxcache.layouts.torch import show

        return show

    @property
    def checks(self) -> "base.Checks":
        from jaxcache.layouts.torch import check

        return check

    @property
    def removals(self) -> "base.Removals":
        from jaxcache.layouts.torch import units

        return units

    @property
    def exports(self) -> "base.Exports":
        from jaxcache.layouts.torch import bundle

        return bundle

    @property
    def imports(self) -> "base.Imports":
        from jaxcache.layouts.torch import bundle

        return bundle

    @property
    def sides(self) -> "base.Sides":
        from jaxcache.layouts.torch import sides

        return sides

    @property
    def explains(self) -> "base.Explains":
        from jaxcache.layouts.torch import explain

        return explain
