"""Digests of compiled code, which torch records nowhere: the name of a kernel says nothing of it.

A run that is listened to writes them into the ledger, by the path of the file. A kernel is named by
its source and the compiler's command, and torch never writes one anew that is there; so a digest
holds whatever the time of the file.
"""

import hashlib
import time
from collections.abc import Mapping

from jaxcache.cache.ledger.record import PAYLOAD, Event
from jaxcache.cache.ledger.segments import Ledger, append
from jaxcache.layouts.torch.inventory import take_inventory
from jaxcache.layouts.torch.names import TorchKind
from jaxcache.store.base import Store, StoreError

_CODE = (TorchKind.KERNEL, TorchKind.KERNEL_SOURCE, TorchKind.PROBE)
_MAX_BYTES = 64 << 20


def remember_code(store: Store, since_ns: int) -> None:
    """Record the digests of kernels, their sources and probes that were written since then."""
    events = []
    for kind, info in take_inventory(store).files():
        if kind in _CODE and info.mtime_ns >= since_ns and 0 < info.size_bytes <= _MAX_BYTES:
            try:
                digest = digest_of_code(store.read(info.name, limit=_MAX_BYTES))
            except StoreError:
                continue
            facts = {"payload_sha256": digest, "file_mtime_ns": info.mtime_ns}
            events.append(Event(info.name, PAYLOAD, time.time_ns(), facts))
    if events:
        append(store, events)


def known_digests(store: Store) -> Mapping[str, str]:
    """The digests that the ledger has, by the path of the file."""
    ledger = Ledger.load(store)
    records = (ledger.record(name) for name in ledger if "/" in name)
    return {r.key: r.payload_sha256 for r in records if r and r.payload_sha256}


def digest_of_code(data: bytes) -> str:
    """The digest of one file as the ledger has it."""
    return hashlib.sha256(data).hexdigest()
