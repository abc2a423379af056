"""The caches of torch's compilers: AOTAutogradCache, FxGraphCache and their generated code.

Each group of functions is imported when used.
"""

from typing import TYPE_CHECKING, Any

from jaxcache.layouts.base import FunctionGroup, Words
from jaxcache.layouts.torch import names

if TYPE_CHECKING:
    from jaxcache.layouts import base
    from jaxcache.layouts.torch.scan import GraphIndex


class TorchLayout:
    """torch's cache: see :class:`jaxcache.layouts.Layout`."""

    name = "torch"
    words = Words("torch", "jaxcache warm --layout torch SCRIPT", None)
    single_file_entries = False
    has_headers = False
    keeps_index = True

    own_directory = staticmethod(names.own_directory)
    key_of = staticmethod(names.key_of)

    def load_index(self, directory: str, url: str, *, now_ns: int) -> "GraphIndex":
        """Open the index."""
        from jaxcache.layouts.torch.scan import GraphIndex

        return GraphIndex.load(directory, url, now_ns=now_ns)

    scans: FunctionGroup["base.Scans"] = FunctionGroup("jaxcache.layouts.torch.scan")
    shows: FunctionGroup["base.Shows"] = FunctionGroup("jaxcache.layouts.torch.explain")
    checks: FunctionGroup["base.Checks"] = FunctionGroup("jaxcache.layouts.torch.check")
    removals: FunctionGroup["base.Removals"] = FunctionGroup("jaxcache.layouts.torch.units")
    exports: FunctionGroup["base.Exports"] = FunctionGroup("jaxcache.layouts.torch.bundle")
    imports: FunctionGroup["base.Imports"] = FunctionGroup("jaxcache.layouts.torch.bundle")
    sides: FunctionGroup["base.Sides"] = FunctionGroup("jaxcache.layouts.torch.scan")
    explains: FunctionGroup["base.Explains"] = FunctionGroup("jaxcache.layouts.torch.explain")
    examines: FunctionGroup[Any] = FunctionGroup("jaxcache.layouts.torch.doctor")
