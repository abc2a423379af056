"""Keep what JAX logs of the parts of a key, without showing it to anybody.

``jax._src.cache_key`` logs, at DEBUG and in the thread that compiles, the hash of every component
(``get`` in jax/_src/cache_key.py, 0.4.30 to 0.12). Each is hashed twice then, which costs a tenth
of a compile that hits: only done where it was asked for.
"""

import logging
import os
import re
import threading
from typing import Any

_WANTED = "JAXCACHE_KEY_PARTS"
_PART = re.compile(r"get_cache_key hash (of|after) serializ(?:ed|ing) (.+): ([0-9a-f]{64})$")
_FLAG = re.compile(r"^(Including|Not including) XLA flag in cache key: (.*)$")
_LISTS = {"Including": "xla_flags", "Not including": "ignored_flags"}
_FIRST, _LAST = "computation", "custom_hook"
#: Keys that nobody has asked for are forgotten beyond this number.
_MAX_KEPT = 4096


class KeyParts(logging.Filter):
    """A filter that reads every record, and lets through what the logger's level would have."""

    def __init__(self, shown_from: int) -> None:
        super().__init__()
        self._shown_from = shown_from
        self._local = threading.local()
        self._kept: dict[str, dict[str, Any]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Read a record; an odd one is none of ours."""
        message = record.getMessage()
        if match := _PART.search(message):
            self._read(*match.groups())
        elif match := _FLAG.search(message):
            found = self._now()[_LISTS[match[1]]]
            if match[2].strip() not in found:
                found.append(match[2].strip())
        return record.levelno >= self._shown_from

    def _read(self, kind: str, name: str, digest: str) -> None:
        if kind == "of":
            if name == _FIRST:
                self._local.parts = None
            self._now()["components"][name] = digest
        elif name == _LAST:  # the hash after the last part is the key's own
            while len(self._kept) >= _MAX_KEPT:
                self._kept.pop(next(iter(self._kept)))
            self._kept[digest] = self._now()
            self._local.parts = None

    def _now(self) -> "dict[str, Any]":
        if getattr(self._local, "parts", None) is None:
            self._local.parts = {"components": {}, "xla_flags": [], "ignored_flags": []}
        parts: dict[str, Any] = self._local.parts
        return parts

    def take(self, key: "str | None") -> "dict[str, Any]":
        """The parts of a key, once; nothing if they are not known."""
        return self._kept.pop(key[-64:], {}) if key else {}


def listen() -> "KeyParts | None":
    """Start to listen, where that is wanted."""
    if not os.environ.get(_WANTED):
        return None
    logger = logging.getLogger("jax._src.cache_key")
    parts = KeyParts(logger.getEffectiveLevel())
    logger.addFilter(parts)
    logger.setLevel(logging.DEBUG)
    return parts
