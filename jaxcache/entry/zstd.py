"""zstd, by Python 3.14's standard library or its backport.

Never by the package ``zstandard``: JAX uses that where it imports, and writes its name into every
key (``jax/_src/cache_key.py``). Installing it next to JAX would make each cached entry a miss.
"""

import sys
import threading
from collections.abc import Mapping
from typing import Any

from jaxcache.errors import MissingPackageError


class _Library:
    """The module, imported at first use."""

    def __getattr__(self, name: str) -> Any:
        try:
            if sys.version_info >= (3, 14):
                from compression import zstd
            else:
                from backports import zstd
        except ImportError as error:
            raise MissingPackageError("backports.zstd") from error
        vars(self).update(vars(zstd))  # whole: a stream that ends with Python can import no more
        return getattr(zstd, name)


#: The module, of the interface of Python 3.14's ``compression.zstd``.
library: Any = _Library()

#: Refuse frames that want a larger window: what the zstd command refuses without --long.
MAX_WINDOW_LOG = 27


def compressor(level: int, parameters: Mapping[int, int] | None = None) -> Any:
    """Make a compressor of one frame that ends with the checksum of its content."""
    names = library.CompressionParameter
    options = {names.compression_level: level, names.checksum_flag: 1, **(parameters or {})}
    return library.ZstdCompressor(options=options)


#: The compressors of a thread for small contents, by level: to make one takes as long as its work.
_OF_THREAD = threading.local()
#: The memory of a compressor grows with the content.
_SMALL_BYTES = 256 << 10


def compress(content: bytes, level: int) -> bytes:
    """Compress into one frame that announces the size of its content and has its checksum."""
    idle = _OF_THREAD.__dict__
    encoder = idle.pop(str(level), None) or compressor(level)
    frame: bytes = encoder.compress(content, library.ZstdCompressor.FLUSH_FRAME)
    if len(content) <= _SMALL_BYTES:
        idle[str(level)] = encoder
    return frame


def decompressor() -> Any:
    """Make a decompressor of one frame."""
    options = {library.DecompressionParameter.window_log_max: MAX_WINDOW_LOG}
    return library.ZstdDecompressor(options=options)
