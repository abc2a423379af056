"""Files of our own outside the cache: written atomically, checked when read, never needed."""

import contextlib
import os
import zlib
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path

from jaxcache.core.atomic import make_private_directory, replace_file

_MAX_BYTES = 1 << 30
_CRC_BYTES = 4
#: What every file system takes, with room for a suffix.
_LONGEST_NAME = 200


def side_path(directory: Path, url: str, suffix: str) -> Path:
    """Return the path of the file of that kind for the cache at ``url``."""
    name = url.replace("%", "%25").replace("/", "%2F")
    if "://" in url or len(os.fsencode(name)) > _LONGEST_NAME:
        import hashlib  # takes OpenSSL along

        name = hashlib.sha256(os.fsencode(url)).hexdigest()[:32]
    return directory / f"{name}{suffix}"


def read_checked(path: Path, magic: bytes) -> memoryview:
    """The bytes between magic and checksum of a file that is whole.

    Raises:
        OSError, ValueError: there is none, or it is damaged or of another version.
    """
    with open(path, "rb") as file:
        if os.fstat(file.fileno()).st_size > _MAX_BYTES:
            raise ValueError("too large")
        data = memoryview(file.read(_MAX_BYTES))
    body = data[:-_CRC_BYTES]
    if body[: len(magic)] != magic or zlib.crc32(body) != int.from_bytes(data[-4:], "big"):
        raise ValueError("damaged, or of another version")
    return body[len(magic) :]


def write_checked(path: Path, magic: bytes, parts: Iterable[bytes]) -> None:
    """Write a file that :func:`read_checked` reads; where it cannot be written, do nothing."""
    with contextlib.suppress(OSError):
        make_private_directory(str(path.parent))
        is_new = not path.exists()
        replace_file(path, _with_checksum(chain([magic], parts)), mode=0o600, durable=False)
        if is_new:
            _remove_files_of_gone_caches(path.parent)


def _remove_files_of_gone_caches(directory: Path) -> None:
    """Remove the files of local caches that exist no more; a hashed name does not tell."""
    for name in os.listdir(directory):
        cache = name.rpartition(".")[0].replace("%2F", "/").replace("%25", "%")
        if cache.startswith("/") and not os.path.lexists(cache):
            with contextlib.suppress(OSError):
                os.unlink(directory / name)


def _with_checksum(parts: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the parts as they are made, and their checksum behind them."""
    checksum = 0
    for part in parts:
        checksum = zlib.crc32(part, checksum)
        yield part
    yield checksum.to_bytes(_CRC_BYTES, "big")
