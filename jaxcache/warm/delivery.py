"""Bring what a child has made into the cache: whole, once, and under JAX's own name."""

import contextlib
import os
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO

from jaxcache.cache.admission import ImportPolicy
from jaxcache.cache.inventory import take_inventory
from jaxcache.cache.ledger.record import COMPILE, PAYLOAD, Event, digest_facts
from jaxcache.cache.ledger.write import append
from jaxcache.cache.leftovers import remove_leftovers
from jaxcache.cache.move.check import Check
from jaxcache.cache.move.conflicts import has_atimes, is_truncated
from jaxcache.cache.move.items import Item, MoveAction, Step
from jaxcache.cache.move.plan import Plan
from jaxcache.cache.move.stores import StoreParcel, StoreTarget
from jaxcache.cache.unknown_format import UnknownFormats
from jaxcache.entry.codec import CodecError
from jaxcache.entry.names import key_of
from jaxcache.errors import JaxcacheError
from jaxcache.model import FileInfo
from jaxcache.store.base import ChangedError, ExistsError, Store, StoreError


class Delivery:
    """One cache that is being filled, from several threads.

    JAX writes entries in place, so a worker that is killed would leave half of one, which no run
    ever mends. Workers therefore write elsewhere, and the store writes atomically. A truncated
    entry that is there counts as missing, and is replaced.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        remove_leftovers(store)
        inventory = take_inventory(store)
        now_ns = time.time_ns()
        formats = UnknownFormats(store)
        self._torn = {
            e.key_text: e.info for e in inventory.entries if is_truncated(formats, e.info, now_ns)
        }
        self._there = {e.key_text for e in inventory.entries} - self._torn.keys()
        self._gate = ImportPolicy((e.info.name for e in inventory.entries), allow_large=True)
        self._check = Check(self._gate)
        plan = Plan("", store.url, (), with_atimes=has_atimes(inventory, store, dated=False))
        self._target = StoreTarget(store, plan)
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
            Its file; None if another process has written that entry meanwhile.

        Raises:
            JaxcacheError: it cannot be written, is damaged, or is not what the child reported.
        """
        if key_of(name) != key:
            raise JaxcacheError(f"{name} is not the entry of {key}", code="bad-name")
        parcel = self._parcel(name, file, key, payload_sha256)
        with contextlib.closing(self._target.put([parcel])) as ends:
            (error,) = ends
        if error is not None:
            self._check_overtaken(name, error)
            info = None
        else:
            info = self._target.files[name]
        with self._lock:
            self._there.add(key)
            self._torn.pop(key, None)
            if info is not None:
                self._learnt += _events(key, info, info.mtime_ns, facts, payload_sha256)
        return info

    def _parcel(
        self, name: str, file: BinaryIO, key: str, payload_sha256: str | None
    ) -> StoreParcel:
        """Check an entry as any that comes into a cache."""
        if reason := self._gate.name_error(name):
            raise JaxcacheError(f"{name} {reason}", code="bad-name")
        now_ns = time.time_ns()
        size_bytes = file.seek(0, os.SEEK_END)
        file.seek(0)
        info = FileInfo(name, "file", size_bytes, now_ns, now_ns, 0, 0, -1)
        torn_file = self._torn.get(key)
        item = Item(name, key, size_bytes, now_ns, now_ns, info)
        try:
            checked = self._check.read(item, file, info)
        except CodecError as error:
            raise JaxcacheError(f"{name}: {error.detail}", code=error.kind) from error
        if payload_sha256 not in (None, checked.facts.sha256):
            raise JaxcacheError(f"{name} changed on its way", code="digest-mismatch")
        action = MoveAction.WRITE if torn_file is None else MoveAction.HEAL
        return StoreParcel(Step(item, action, there=torn_file), info, file, checked, changes=False)

    def _check_overtaken(self, name: str, error: StoreError) -> None:
        """Let an entry be that another process wrote meanwhile.

        Raises:
            StoreError: any other failure, or something else has the name.
        """
        if not isinstance(error, ExistsError | ChangedError):
            raise error
        present = self._store.info(name)
        if present.type != "file":
            raise StoreError(name, f"a {present.type} has its name", code="exists") from error

    def remember(self) -> None:
        """Append what was learnt of the entries to the cache's ledger, if it can be written."""
        with self._lock:
            learnt = self._learnt
            self._learnt = []
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
        tuned_file = {"tuning_mtime_ns": info.mtime_ns, "tuning_size_bytes": info.size_bytes}
        facts = {**facts, **tuned_file}
    if facts is not None:
        yield Event(key, COMPILE, now_ns, facts)
    if payload_sha256 is not None:
        yield Event(key, PAYLOAD, now_ns, digest_facts(payload_sha256, info))
