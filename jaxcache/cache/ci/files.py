"""One digest over the files that globs name, for keys that shall change with the code."""

import glob
import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass

from jaxcache.errors import UsageError

_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class HashedFiles:
    """The files that were hashed, and their digest."""

    digest: str
    """SHA-256 over names and contents, in the order of the names."""
    names: tuple[str, ...]


def hash_files(patterns: Sequence[str], root: str) -> HashedFiles:
    """Hash every file that one of the globs names; ``**`` crosses folders, links are followed.

    Args:
        patterns: relative to ``root``; one that begins with ``!`` takes files out again.

    Raises:
        UsageError: ``no-match`` where no file is left, ``io-error`` where one cannot be read.
    """
    chosen: set[str] = set()
    for pattern in patterns:
        found = glob.glob(pattern.removeprefix("!"), root_dir=root, recursive=True)
        files = {os.path.normpath(f) for f in found if os.path.isfile(os.path.join(root, f))}
        chosen = chosen - files if pattern.startswith("!") else chosen | files
    if not chosen:
        raise UsageError(
            f"no file matches {' '.join(patterns)}",
            code="no-match",
            hint="quote the glob, so that it reaches jaxcache, and mind the current directory",
        )
    names = tuple(sorted(chosen))
    digest = hashlib.sha256()
    for name in names:
        digest.update(os.fsencode(name) + b"\0" + _digest(os.path.join(root, name)))
    return HashedFiles(digest.hexdigest(), names)


def _digest(path: str) -> bytes:
    digest = hashlib.sha256()
    try:
        with open(path, "rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                digest.update(chunk)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise UsageError(f"cannot read {path}: {reason}", code="io-error") from error
    return digest.digest()
