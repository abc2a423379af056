"""Bring what a child has made into the cache: whole, once, and under JAX's own name."""

import contextlib
import os
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO

from jaxcache.cache.gate import Gate
from jaxcache.cache.inventory import take_inventory
from jaxcache.cache.ledger.record import COMPILE, PAYLOAD, Event, digest_facts
from jaxcache.cache.ledger.segments import append
from jaxcache.cache.leftovers import delete_leftovers
from jaxcache.cache.pair import write_atime
from jaxcache.entry.codec import CodecError
from jaxcache.entry.names import key_of
from jaxcache.errors import JaxcacheError
from jaxcache.model import FileInfo
from jaxcache.store.base import ExistsError, Store

_CHUNK_BYTES = 1 << 20


class Delivery:
    """One cache that is being filled, from several threads.

    JAX writes entries in place, so a worker that is killed would leave half of one, which no run
    ever mends. Workers therefore write elsewhere, and the store writes atomically.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        delete_leftovers(store)
        inventory = take_inventory(store)
        self._there = {e.key_text for e in inventory.entries}
        self._gate = Gate((e.info.name for e in inventory.entries), allow_large=True)
        # A JAX with a size cap, before 0.11.2, fails on the first entry that lacks one.
        self._with_atimes = bool(inventory.atimes)
        self._learnt: list[Event] = []
        self._lock = threading.Lock()

    @property
    def url(self) -> str:
        """The location of the cache."""
        return self._store.url

    def has(self, key: str) -> bool:
        """Whether the cache holds an entry of that key."""
        with self._lock:
            return key in self._there

    def known_keys(self) -> list[str]:
        """Keys that the cache has."""
        with self._lock:
            return sorted(self._there)

    def take(
        self,
        name: str,
        file: BinaryIO,
        key: str,
        *,
        facts: Mapping[str, Any] | None = None,
        payload_sha256: str | None = None,
    ) -> FileInfo | None:
        """Write one entry into the cache, under the name that JAX gives it.

        Args:
            facts: what the ledger learns of its compile.
            payload_sha256: what the ledger learns of its payload.

        Returns:
            Its file; None where somebody else has written that entry meanwhile.

        Raises:
            JaxcacheError: it cannot be written, is damaged, or is not what the child said.
        """
        if key_of(name) != key:
            raise JaxcacheError(f"{name} is not the entry of {key}", code="bad-name")
        self._check(name, file, payload_sha256)
        now_ns = time.time_ns()
        if self._with_atimes:
            write_atime(self._store, name, now_ns, replace=True)
        try:
            info = self._store.write(
                name, iter(lambda: file.read(_CHUNK_BYTES), b""), replace=False
            )
        except ExistsError:
            info = None
        with self._lock:
            self._there.add(key)
            if info is not None:
                self._learnt += _events(key, info, now_ns, facts, payload_sha256)
        return info

    def _check(self, name: str, file: BinaryIO, payload_sha256: str | None) -> None:
        """Hold an entry against what any must be that comes into a cache."""
        if reason := self._gate.refuse_name(name):
            raise JaxcacheError(f"{name} {reason}", code="bad-name")
        try:
            content = self._gate.check_entry(name, file, file.seek(0, os.SEEK_END))
        except CodecError as error:
            raise JaxcacheError(f"{name}: {error.detail}", code=error.kind) from error
        if payload_sha256 not in (None, content.payload_sha256):
            raise JaxcacheError(f"{name} changed on its way", code="digest-mismatch")
        file.seek(0)

    def remember(self) -> None:
        """Append what was learnt of the entries to the cache's ledger, if it can be written."""
        with self._lock:
            learnt, self._learnt = self._learnt, []
        if learnt:
            with contextlib.suppress(JaxcacheError):
                append(self._store, learnt)


def _events(
    key: str,
    info: FileInfo,
    now_ns: int,
    facts: Mapping[str, Any] | None,
    payload_sha256: str | None,
) -> Iterator[Event]:
    """The ledger events of an entry."""
    if facts is not None and facts.get("tuning"):
        about = {"tuning_mtime_ns": info.mtime_ns, "tuning_size_bytes": info.size_bytes}
        facts = {**facts, **about}
    if facts is not None:
        yield Event(key, COMPILE, now_ns, facts)
    if payload_sha256 is not None:
        yield Event(key, PAYLOAD, now_ns, digest_facts(payload_sha256, info))
