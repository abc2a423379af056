"""The XLA flags that went into a key and those that JAX left out, from JAX's log.

``jax._src.cache_key`` names each flag at DEBUG, in the thread that compiles, and ends with the
key's own hash (``get`` and ``_hash_xla_flags`` in jax/_src/cache_key.py, 0.4.30 to 0.12). At that
level every component is hashed twice, a tenth of a compile that hits: only done on request.
"""

import logging
import os
import re
import threading
from typing import Any

_WANTED = "JAXCACHE_COMPONENTS"
_FLAG = re.compile(r"^(Including|Not including) XLA flag in cache key: (.*)$")
_LISTS = {"Including": "xla_flags", "Not including": "ignored_flags"}
#: The hash after the last component is the key's own.
_KEY = re.compile(r"get_cache_key hash after serializing custom_hook: ([0-9a-f]{64})$")
#: The most keys to keep that were not requested; the oldest are dropped.
_MAX_KEPT = 4096


class KeyFlags(logging.Filter):
    """A filter that reads every record, and lets through what the logger's level would have."""

    def __init__(self, shown_from: int) -> None:
        super().__init__()
        self._shown_from = shown_from
        self._local = threading.local()
        self._kept: dict[str, dict[str, Any]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Read a record; ignore records of other messages."""
        message = record.getMessage()
        if match := _FLAG.search(message):
            flags = self._now()[_LISTS[match[1]]]
            if match[2].strip() not in flags:
                flags.append(match[2].strip())
        elif match := _KEY.search(message):
            while len(self._kept) >= _MAX_KEPT:
                self._kept.pop(next(iter(self._kept)))
            self._kept[match[1]] = self._now()
            self._local.flags = None
        return record.levelno >= self._shown_from

    def show_from(self, level: "int | str") -> None:
        """The program's own ``setLevel``: it decides what it sees, not what we read."""
        number = logging.getLevelName(level) if isinstance(level, str) else level
        self._shown_from = number if isinstance(number, int) else self._shown_from

    def _now(self) -> "dict[str, Any]":
        if getattr(self._local, "flags", None) is None:
            self._local.flags = {"xla_flags": [], "ignored_flags": []}
        flags: dict[str, Any] = self._local.flags
        return flags

    def take(self, key: "str | None") -> "dict[str, Any]":
        """The flags of a key, once; nothing if they are not known."""
        return self._kept.pop(key[-64:], {}) if key else {}


def listen() -> "KeyFlags | None":
    """Start to listen, where that is wanted."""
    if not os.environ.get(_WANTED):
        return None
    logger = logging.getLogger("jax._src.cache_key")
    flags = KeyFlags(logger.getEffectiveLevel())
    logger.addFilter(flags)
    logger.setLevel(logging.DEBUG)
    logger.setLevel = flags.show_from  # type: ignore[method-assign]
    return flags
