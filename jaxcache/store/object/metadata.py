"""The metadata of an object, and the two items that we add."""

import hashlib
from contextlib import suppress
from decimal import Decimal
from typing import Any

from jaxcache.model import FileInfo

#: Names of user metadata. ``mtime`` is rclone's: seconds since the epoch with a fraction.
_MTIME = "mtime"
_SHA256 = "sha256"
_HEX_DIGITS = 64
_NS = 1_000_000_000
#: Years 1970 to 2262: other times are nobody's, and no file system takes all of them.
_MAX_NS = 1 << 63


def attributes_of(digest: str, mtime_ns: int | None) -> dict[str, str]:
    """Return the metadata to put: the SHA-256 of the bytes, and the time of the entry."""
    if mtime_ns is None:
        return {_SHA256: digest}
    return {_SHA256: digest, _MTIME: f"{mtime_ns // _NS}.{mtime_ns % _NS:09d}"}


def digest_in(attributes: Any) -> str | None:
    """The SHA-256 that an object was put with; other clients leave none."""
    value = attributes.get(_SHA256)
    return value if isinstance(value, str) and len(value) == _HEX_DIGITS else None


def info_of(meta: Any, attributes: Any = None) -> FileInfo:
    """An object as a file: dated as it was told to be, else when it was put."""
    mtime_ns = min(max(int(meta["last_modified"].timestamp() * _NS), 0), _MAX_NS - 1)
    modified = (attributes or {}).get(_MTIME)
    if modified is not None:
        with suppress(ArithmeticError, ValueError):
            given_ns = Decimal(modified) * _NS
            mtime_ns = int(given_ns) if 0 <= given_ns < _MAX_NS else mtime_ns
    return file_info(meta["path"], meta["size"], mtime_ns, meta)


def file_info(name: str, size_bytes: int, mtime_ns: int, meta: Any) -> FileInfo:
    """The same of an object whose size and time are known."""
    # Azure quotes ETags in headers and not in listings.
    etag = (meta["e_tag"] or "").strip('"')
    # A number that changes with the ETag, for the index, which keeps numbers.
    inode = int.from_bytes(hashlib.blake2b(etag.encode(), digest_size=8).digest(), "big") >> 1
    return FileInfo(name, "file", size_bytes, mtime_ns, 0, inode, 0, -1, etag)
