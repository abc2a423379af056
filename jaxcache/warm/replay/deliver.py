"""Bring what a worker has written into the cache: whole, once, and under JAX's own name."""

import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from jaxcache.cache.inventory import take_inventory
from jaxcache.cache.ledger import append
from jaxcache.cache.ledger_record import COMPILE, Event
from jaxcache.cache.recipe.model import Request
from jaxcache.entry.names import ATIME_SUFFIX, FileKind, parse_name
from jaxcache.errors import JaxcacheError
from jaxcache.model import Codec
from jaxcache.store.base import ExistsError, Store
from jaxcache.warm.target.framing import frame_payload

_CHUNK_BYTES = 1 << 20


class Delivery:
    """One cache that is being filled, from several threads.

    JAX writes entries in place, so a worker that is killed would leave half of one, which no run
    ever mends. Workers therefore write elsewhere, and the store writes atomically.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        inventory = take_inventory(store)
        self._there = {e.key_text for e in inventory.entries}
        # A JAX with a size cap, before 0.11.2, fails on the first entry that lacks one.
        self._with_atimes = bool(inventory.atimes)
        self._learnt: list[Event] = []
        self._lock = threading.Lock()

    def has(self, key: str) -> bool:
        """Whether the cache holds an entry of that key."""
        with self._lock:
            return key in self._there

    def take(
        self, file: Path, key: str, facts: Mapping[str, Any], *, codec: Codec | None = None
    ) -> int | None:
        """Move one file of a worker into the cache.

        Args:
            codec: the file is an executable without header, for an entry with this codec.

        Returns:
            Its size in bytes; None where somebody else has written that entry meanwhile.

        Raises:
            JaxcacheError: it cannot be written, or is not what the worker said.
        """
        name = parse_name(file.name)
        if name.kind not in (FileKind.ENTRY, FileKind.LEGACY_ENTRY) or str(name.key) != key:
            raise JaxcacheError(f"{file.name} is not the entry of {key}", code="bad-name")
        now_ns = time.time_ns()
        if self._with_atimes and name.kind is FileKind.ENTRY:
            stamp = now_ns.to_bytes(8, "little")
            self._store.write(f"{key}{ATIME_SUFFIX}", [stamp])
        try:
            chunks = _chunks(file)
            if codec is not None:
                framed = frame_payload(file, float(facts.get("compile_seconds") or 0), codec)
                chunks = iter([framed.frame])
            info = self._store.write(file.name, chunks, replace=False)
            size_bytes = info.size_bytes
            if facts.get("tuning"):
                about = {"tuning_mtime_ns": info.mtime_ns, "tuning_size_bytes": size_bytes}
                facts = {**facts, **about}
        except ExistsError:
            size_bytes = None
        file.unlink(missing_ok=True)
        file.with_name(f"{key}{ATIME_SUFFIX}").unlink(missing_ok=True)
        with self._lock:
            self._there.add(key)
            if size_bytes is not None:
                self._learnt.append(Event(key, COMPILE, now_ns, facts))
        return size_bytes

    def remember(self) -> None:
        """Put what was learnt of the entries into the cache's ledger, if it takes it."""
        with self._lock:
            learnt, self._learnt = self._learnt, []
        if learnt:
            try:
                append(self._store, learnt)
            except JaxcacheError:
                return


def facts_of(
    request: Request,
    ready: Mapping[str, Any],
    components: Mapping[str, str],
    seconds: float | None,
    flags: str,
) -> dict[str, Any]:
    """What the ledger learns of one entry."""
    facts = {
        "jax_version": ready.get("jax_version"),
        "jaxlib_version": ready.get("jaxlib_version"),
        "jaxlib_digest": ready.get("jaxlib_digest"),
        "platform": ready.get("platform"),
        "platform_version": ready.get("platform_version"),
        "device_kind": ready.get("device_kind"),
        "xla_flags": flags,
        "function": request.function,
        "components": dict(components),
        "compile_seconds": None if seconds is None else round(seconds, 6),
    }
    return {name: value for name, value in facts.items() if value is not None}


def _chunks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            yield chunk
