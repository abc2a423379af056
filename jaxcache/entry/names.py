"""The meaning of names in a cache directory, over every generation of JAX.

Source: ``jax/_src/lru_cache.py`` and ``jax/_src/compilation_cache.py``. Up to 0.4.16 a key is the
bare hash, since 0.4.17 ``<module>-<hash>``; up to 0.4.30 the file is named by the key alone,
since 0.4.31 ``<key>-cache`` with ``<key>-atime`` beside it (always until 0.5.0, then only under a
size cap). JAX before 0.4.30 wrote through ``_temp_<key>``. XLA keeps its own caches beside.
"""

import re
from enum import StrEnum
from typing import NamedTuple

from jaxcache.store import TEMP_PREFIX

CACHE_SUFFIX = "-cache"
ATIME_SUFFIX = "-atime"
LOCKFILE = ".lockfile"
KERNEL_CACHE = "xla_gpu_kernel_cache_file"
AUTOTUNE_DIR = "xla_gpu_per_fusion_autotune_cache_dir"
#: Our own folder inside a cache: ledger, quarantine, signatures. JAX never looks into it.
OWN_DIR = ".jaxcache"
LEDGER_DIR = f"{OWN_DIR}/ledger"
QUARANTINE_DIR = f"{OWN_DIR}/quarantine"

_HASH_DIGITS = 64
_HASH = re.compile(f"[0-9a-f]{{{_HASH_DIGITS}}}")


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


class Key(NamedTuple):
    """A cache key: the module's name and 64 hexadecimal digits of SHA-256."""

    module: str
    """Empty for keys made by JAX before 0.4.17."""
    hash: str

    def __str__(self) -> str:
        return f"{self.module}-{self.hash}" if self.module else self.hash


def parse_key(text: str) -> Key | None:
    """Read ``<module>-<64 hex>`` or a bare hash; None if it is neither."""
    if not _ends_key(text, len(text)):
        return None
    return Key(text[: -_HASH_DIGITS - 1], text[-_HASH_DIGITS:])


def _ends_key(text: str, end: int) -> bool:
    """Whether a key ends there that begins at the start."""
    start = end - _HASH_DIGITS
    if _HASH.fullmatch(text, max(start, 0), end) is None:
        return False
    return start == 0 or (start > 1 and text[start - 1] == "-")


def split_name(name: str) -> tuple[FileKind, str | None]:
    """Tell what a name in the root of a cache directory is, and the key in it, as text.

    A name that no version of JAX or XLA would write is :attr:`FileKind.STRAY`.
    """
    if name.endswith(CACHE_SUFFIX):
        kind, end = FileKind.ENTRY, len(name) - len(CACHE_SUFFIX)
    elif name.endswith(ATIME_SUFFIX):
        kind, end = FileKind.ATIME, len(name) - len(ATIME_SUFFIX)
    elif name.startswith(("_temp_", TEMP_PREFIX)):
        return FileKind.TEMP, None
    elif fixed := _FIXED.get(name.partition("/")[0]):
        return fixed, None
    else:
        kind, end = FileKind.LEGACY_ENTRY, len(name)
    return (kind, name[:end]) if _ends_key(name, end) else (FileKind.STRAY, None)


def key_of(name: str) -> str | None:
    """The key of an entry's file; None for any other."""
    kind, key = split_name(name)
    return key if kind in (FileKind.ENTRY, FileKind.LEGACY_ENTRY) else None


_FIXED = {
    LOCKFILE: FileKind.LOCKFILE,
    KERNEL_CACHE: FileKind.KERNEL_CACHE,
    AUTOTUNE_DIR: FileKind.AUTOTUNE,
    OWN_DIR: FileKind.OWN,
}


def own_kind(path: str) -> str:
    """Tell what a file in our own folder is: ``ledger``, ``quarantine`` or ``own``."""
    folder = "/".join(path.split("/", 2)[:2])
    return {LEDGER_DIR: "ledger", QUARANTINE_DIR: "quarantine"}.get(folder, "own")
