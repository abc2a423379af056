"""Add to a compile what a cache and its ledger record of it."""

import math
from collections.abc import Mapping
from dataclasses import replace

from jaxcache.cache.explain.sides import Compile, Side, is_helper
from jaxcache.cache.inventory import take_inventory
from jaxcache.cache.ledger.segments import Ledger
from jaxcache.cache.scan import read_entries
from jaxcache.cache.selection import select_by_keys
from jaxcache.core.names import HEADER_BYTES, parse_key
from jaxcache.core.sketch import read_sketch
from jaxcache.entry.codec import CodecError, detect_codec
from jaxcache.entry.decode import decode_payload, find_hlo_module, read_payload
from jaxcache.entry.hlo import outline, parameter_names
from jaxcache.entry.wire import WireError
from jaxcache.errors import MissingPackageError, NoCacheError
from jaxcache.model import Depth
from jaxcache.store import open_store
from jaxcache.store.base import MissingError, Store, StoreError


class CachedFacts:
    """The entries and the ledger of one cache, opened one by one on request.

    Args:
        earlier: compiles by key that the ledger may not have yet.
    """

    def __init__(self, store: Store, earlier: Mapping[str | None, Compile] | None = None) -> None:
        self._store = store
        self._earlier = earlier or {}
        inventory = take_inventory(store)
        self._files = {f.key_text: f for f in inventory.entries}
        self._ledger = Ledger.load(store)
        self._complete: dict[tuple[str, float], Compile] = {}

    def has(self, key: str) -> bool:
        """Whether the cache has an entry of a key."""
        return key in self._files

    def knows(self, key: str) -> bool:
        """Whether the cache has an entry of a key, or its ledger had one."""
        record = self._ledger.record(key)
        return key in self._files or bool(record and record.payload_sha256)

    def keys_of(self, module: str) -> list[str]:
        """The keys of a module, those written last first."""
        files = [f for f in self._files.values() if f.key.module == module]
        return [f.key_text for f in sorted(files, key=lambda f: -f.info.mtime_ns)]

    def side(self, wanted: str) -> Side:
        """A KEY argument as a side: every compile that it fits, not yet opened.

        Raises:
            JaxcacheError: ``no-match`` or ``ambiguous-key``.
        """
        if (record := self._ledger.record(wanted)) and wanted not in self._files:
            parsed = parse_key(wanted)
            compiled = Compile(parsed.module if parsed else "", wanted, record=record)
            return Side(wanted, (compiled,), is_run=False)
        stubs, _ = read_entries(self._store, list(self._files.values()), {}, depth=Depth.LISTED)
        chosen = select_by_keys(stubs, [wanted])
        return Side(wanted, tuple(Compile(e.module, e.key) for e in chosen), is_run=False)

    def whole(self) -> Side:
        """Everything in the cache as a side, not yet opened."""
        files = self._files.values()
        return Side(
            self._store.url, tuple(Compile(f.key.module, f.key_text) for f in files), is_run=False
        )

    def complete(self, compile_: Compile, *, max_bytes: float = math.inf) -> Compile:
        """Add the ledger's record and the entry's contents, where the key is known.

        Args:
            max_bytes: larger entries are not opened.
        """
        key = compile_.key
        if key is None:
            return compile_
        compile_ = self._earlier.get(key, compile_)
        place = key, max_bytes
        if place not in self._complete:
            self._complete[place] = self._read(key, max_bytes)
        facts = self._complete[place]
        record = compile_.record or facts.record
        components = compile_.components or (record and record.components) or None
        flags = compile_.xla_flags
        if flags is None and record and record.xla_flags is not None:
            flags = tuple(sorted(record.xla_flags.split()))
        return replace(
            compile_,
            contents=facts.contents,
            is_damaged=facts.is_damaged,
            unreadable=facts.unreadable,
            outline=facts.outline,
            names=compile_.names or facts.names,
            codec=facts.codec,
            record=record,
            components=components,
            xla_flags=flags,
            jax_version=compile_.jax_version or (record.jax_version if record else None),
            jaxlib_version=compile_.jaxlib_version or (record.jaxlib_version if record else None),
            device_count=compile_.device_count or (record.device_count if record else None),
            sketch=compile_.sketch or (read_sketch(record.sketch) if record else None),
            script=compile_.script or (record.script if record else None),
            is_helper=compile_.is_helper
            or bool(record and record.file and is_helper(record.function, record.file)),
        )

    def _read(self, key: str, max_bytes: float) -> Compile:
        file = self._files.get(key)
        record = self._ledger.record(key)
        blank = Compile("", key, record=record)
        if file is None or file.info.size_bytes > max_bytes:
            return blank
        try:
            with self._store.open(file.info.name) as stream:
                codec = detect_codec(stream.read(HEADER_BYTES))
                payload = read_payload(stream, file.info.size_bytes)
            decoded = replace(blank, contents=decode_payload(payload, check=False), codec=codec)
        except CodecError:
            return replace(blank, is_damaged=True)
        except (MissingError, MissingPackageError):
            return blank
        except StoreError as error:
            return replace(blank, unreadable=error.reason)
        try:
            module = find_hlo_module(payload)
            return replace(decoded, outline=tuple(outline(module)), names=parameter_names(module))
        except WireError:
            return decoded


def open_cached_facts(path: str, *, explicit: bool = False) -> CachedFacts | None:
    """Open a cache; None if it does not exist.

    Raises:
        NoCacheError: it does not exist, and the user named it.
    """
    try:
        return CachedFacts(open_store(path))
    except NoCacheError:
        if explicit:
            raise
        return None
