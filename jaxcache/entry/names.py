"""The meaning of names in a cache directory, over every generation of JAX.

Source: ``jax/_src/lru_cache.py`` and ``jax/_src/compilation_cache.py``. Up to 0.4.16 a key is the
bare hash, since 0.4.17 ``<module>-<hash>``; up to 0.4.30 the file is named by the key alone,
since 0.4.31 ``<key>-cache`` with ``<key>-atime`` beside it (always until 0.5.0, then only under a
size cap). JAX before 0.4.30 wrote through ``_temp_<key>``. XLA keeps its own caches next to them.
"""

import re
from enum import StrEnum
from typing import Literal

from jaxcache.core.names import (
    ATIME_SUFFIX,
    AUTOTUNE_DIR,
    CACHE_SUFFIX,
    CACHE_TAG,
    KERNEL_CACHE,
    LEDGER_DIR,
    LOCKFILE,
    OWN_DIR,
    QUARANTINE_DIR,
    TEMP_PREFIX,
)

#: The directories of graphs that torch's compilers make in their cache, and JAX never.
TORCH_GRAPHS = ("aotautograd", "fxgraph")
#: The directory of their locks, the only sign of a cache that holds kernels alone.
TORCH_LOCKS = "locks"
#: The caches of torch's compilers.
TorchTier = Literal["aotautograd", "fxgraph", "dynamo"]


class FileKind(StrEnum):
    """The meaning of one name in a cache directory."""

    ENTRY = "entry"
    LEGACY_ENTRY = "legacy-entry"
    ATIME = "atime"
    LOCKFILE = "lockfile"
    TEMP = "temp"
    KERNEL_CACHE = "kernel-cache"
    AUTOTUNE = "autotune"
    LEDGER = "ledger"
    QUARANTINE = "quarantine"
    OWN = "own"
    STRAY = "stray"
    UNKNOWN = "unknown-directory"
    """A directory of another program, or a file in it."""


def split_name(name: str) -> tuple[FileKind, str | None]:
    """Tell what a name in the root of a cache directory is, and the key in it, as text.

    A name that no version of JAX or XLA would write is :attr:`FileKind.STRAY`; so is ``._NAME``,
    in which macOS keeps the attributes of ``NAME`` on other file systems.
    """
    if name.startswith("._"):
        return FileKind.STRAY, None
    match = _KEY_AND_SUFFIX.fullmatch(name)
    if match and match[2]:
        return _BY_SUFFIX[match[2]], match[1]
    if not name.endswith(tuple(_BY_SUFFIX)):
        if name.startswith(("_temp_", TEMP_PREFIX)):
            return FileKind.TEMP, None
        if fixed := _FIXED.get(name.partition("/")[0]):
            return fixed, None
        if match:
            return FileKind.LEGACY_ENTRY, name
    return FileKind.STRAY, None


def key_of(name: str) -> str | None:
    """The key of an entry's file; None for any other."""
    kind, key = split_name(name)
    return key if kind in (FileKind.ENTRY, FileKind.LEGACY_ENTRY) else None


#: One pass, because a large cache has many names.
_KEY_AND_SUFFIX = re.compile(rf"(?s)((?:.+-)?[0-9a-f]{{64}})({CACHE_SUFFIX}|{ATIME_SUFFIX}|)")
_BY_SUFFIX = {CACHE_SUFFIX: FileKind.ENTRY, ATIME_SUFFIX: FileKind.ATIME}
_FIXED = {
    LOCKFILE: FileKind.LOCKFILE,
    KERNEL_CACHE: FileKind.KERNEL_CACHE,
    AUTOTUNE_DIR: FileKind.AUTOTUNE,
    OWN_DIR: FileKind.OWN,
    CACHE_TAG: FileKind.OWN,
}


def own_kind(path: str) -> str:
    """Tell what a file in our own directory is: ``ledger``, ``quarantine`` or ``own``."""
    directory = "/".join(path.split("/", 2)[:2])
    return {LEDGER_DIR: "ledger", QUARANTINE_DIR: "quarantine"}.get(directory, "own")
