"""The records of programs' runs (:mod:`jaxcache.core.runs`), as they go from cache to cache.

Like a ledger they prove nothing, so that whatever fails here is left.
"""

import contextlib
from collections.abc import Collection, Mapping

from jaxcache.cache.ledger.segments import is_own
from jaxcache.core import runs
from jaxcache.core.runs import RUNS_DIR, is_record
from jaxcache.errors import JaxcacheError
from jaxcache.store.base import Store, StoreError

#: Programs whose records travel, those that ran last; and the bytes of all of them.
_MAX_PROGRAMS = 64
_MAX_BYTES = 16 << 20


def read_records(
    store: Store, names: Collection[str] | None = None, keys: Collection[str] | None = None
) -> dict[str, bytes]:
    """Return the records of a cache by name, from a directory those of this user and of root.

    Args:
        names: of the records; None for all.
        keys: only the records in which one of these keys occurs.
    """
    try:
        files = [i for i in store.list(RUNS_DIR) if i.type == "file" and is_record(i.name)]
    except JaxcacheError:  # no directory
        return {}
    files = [i for i in files if store.remote or is_own(store, i)]
    files.sort(key=lambda i: -i.mtime_ns)
    records: dict[str, bytes] = {}
    left_bytes = _MAX_BYTES
    wanted = [i.name for i in files if names is None or _base(i.name) in names][:_MAX_PROGRAMS]
    for name, data in zip(
        wanted, store.read_many(wanted, limit=runs.MAX_RECORD_BYTES + 1), strict=True
    ):
        if isinstance(data, StoreError) or len(data) > left_bytes:
            continue
        if keys is None or _names_any(data, keys):
            records[_base(name)] = data
            left_bytes -= len(data)
    return records


def portable_records(store: Store, keys: Collection[str]) -> dict[str, bytes]:
    """Return the records in which one of these keys occurs, as they may leave the cache."""
    records = read_records(store, keys=keys)
    taken = {name: runs.take_over(data) for name, data in records.items()}
    return {name: data for name, data in taken.items() if data}


def receive_records(store: Store, brought: Mapping[str, bytes]) -> int:
    """Add the runs of another cache's records to those of a cache; return how many changed."""
    records = [*brought.items()][:_MAX_PROGRAMS]
    own = read_records(store, [name for name, _ in records]) if records else {}
    changed = 0
    for name, data in records:
        if is_record(name) and (merged := runs.take_over(data, own.get(name, b""))):
            with contextlib.suppress(JaxcacheError):
                store.write(f"{RUNS_DIR}/{name}", [merged])
                changed += 1
    return changed


def _base(name: str) -> str:
    return name.rpartition("/")[2]


def _names_any(data: bytes, keys: Collection[str]) -> bool:
    record = runs.decode(data)
    return record is not None and any(row.key in keys for run in record.runs for row in run.rows)
