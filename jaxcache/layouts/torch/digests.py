"""Digests of compiled code, which torch records nowhere: the name of a kernel says nothing of it.

A run that is observed, an import, and the first ``verify`` write them into the ledger, by the path
of the file. Under the name of a source torch never writes another text. A kernel that is compiled
again, where a newer compiler or another path may change its bytes, comes with its source; so a
record holds for as long as one of the two has the time that was recorded.
"""

import hashlib
import time
from collections.abc import Iterable, Mapping

from jaxcache.cache.ledger.record import PAYLOAD, Event
from jaxcache.cache.ledger.segments import Ledger
from jaxcache.cache.ledger.write import append
from jaxcache.cache.verify.check import RecordedDigest
from jaxcache.layouts.torch.inventory import take_inventory
from jaxcache.layouts.torch.names import TorchKind, paired_file
from jaxcache.model import FileInfo
from jaxcache.store.base import Store, StoreError

_CODE = (TorchKind.KERNEL, TorchKind.KERNEL_SOURCE, TorchKind.PROBE)
_MAX_BYTES = 64 << 20


def record_new_code(store: Store, since_ns: int, *, unrecorded: bool) -> None:
    """Record the digests of kernels, their sources and probes that were written since then.

    Args:
        unrecorded: also of older ones that have no record.
    """
    files = [info for kind, info in take_inventory(store).files() if kind in _CODE]
    recorded = recorded_digests(store, files) if unrecorded else {i.name for i in files}
    record_code(store, (i for i in files if i.mtime_ns >= since_ns or i.name not in recorded))


def record_code(store: Store, files: Iterable[FileInfo]) -> None:
    """Record the digests of some files."""
    events = []
    for info in files:
        if 0 < info.size_bytes <= _MAX_BYTES:
            try:
                digest = digest_of_code(store.read(info.name, limit=_MAX_BYTES))
            except StoreError:
                continue
            facts = {"payload_sha256": digest, "file_mtime_ns": info.mtime_ns}
            events.append(Event(info.name, PAYLOAD, time.time_ns(), facts))
    append(store, events)


def recorded_digests(store: Store, files: Iterable[FileInfo]) -> Mapping[str, RecordedDigest]:
    """The digests that the ledger has of files, by their paths.

    One that is not binding is of a file that may have been compiled anew.
    """
    ledger = Ledger.load(store)
    digests = {
        i.name: (r, i) for i in files if (r := ledger.record(i.name)) and r.digest_of(i.mtime_ns)
    }
    same = {name for name, (record, i) in digests.items() if record.file_mtime_ns == i.mtime_ns}
    return {
        name: RecordedDigest(
            record.payload_sha256 or "",
            name.endswith(".cpp") or not same.isdisjoint((name, paired_file(name))),
        )
        for name, (record, _) in digests.items()
    }


def digest_of_code(data: bytes) -> str:
    """The digest of one file as the ledger has it."""
    return hashlib.sha256(data).hexdigest()
