"""The cache of torch's compilers; each group of functions is imported when used."""

from pathlib import Path
from typing import TYPE_CHECKING

from jaxcache.layouts.members import Group, Words
from jaxcache.layouts.torch import names

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

    own_directory = staticmethod(names.own_directory)
    key_of = staticmethod(names.key_of)

    def load_index(self, directory: Path, url: str, *, now_ns: int) -> "GraphIndex":
        """Open the index."""
        from jaxcache.layouts.torch.scan import GraphIndex

        return GraphIndex.load(directory, url, now_ns=now_ns)

    scans: Group["base.Scans"] = Group("jaxcache.layouts.torch.scan")
    shows: Group["base.Shows"] = Group("jaxcache.layouts.torch.show")
    checks: Group["base.Checks"] = Group("jaxcache.layouts.torch.check")
    removals: Group["base.Removals"] = Group("jaxcache.layouts.torch.units")
    exports: Group["base.Exports"] = Group("jaxcache.layouts.torch.bundle")
    imports: Group["base.Imports"] = Group("jaxcache.layouts.torch.bundle")
    sides: Group["base.Sides"] = Group("jaxcache.layouts.torch.sides")
    explains: Group["base.Explains"] = Group("jaxcache.layouts.torch.explain")
