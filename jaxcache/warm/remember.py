"""Facts that a run adds to the ledger, and that the ledger adds to the report of a run.

JAX keeps the compile time of an entry as whole seconds, nothing of who made it, and no count of
hits. A run knows all three; the ledger of the directory that was really used keeps them.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from jaxcache.cache.ledger.record import COMPILE, HIT
from jaxcache.cache.ledger.record import Event as Fact
from jaxcache.cache.ledger.segments import Ledger, append
from jaxcache.errors import JaxcacheError
from jaxcache.store import open_store
from jaxcache.warm.inbox import Event

#: Outcomes after which an entry with that key holds what was compiled here.
_LEARNT = {"written": COMPILE, "hit": HIT}


def remember(
    modules: Iterable[Event], processes: Mapping[int, Event], backends: Mapping[Any, Event]
) -> bool:
    """Write what the events of a run tell of each key into the ledgers of their directories.

    A directory that is not local, is gone, or cannot be written learns nothing.

    Returns:
        Whether everything was kept.
    """
    facts: defaultdict[str, list[Fact]] = defaultdict(list)
    for event in modules:
        kind, directory, key = _LEARNT.get(event["outcome"]), event.get("directory"), event["key"]
        if kind and key and directory and "://" not in directory:
            known = _facts(event, processes[event["process"]], backends)
            facts[directory].append(Fact(key, kind, int(event["at"] * 1e9), known))
    kept = [_append(directory, found) for directory, found in facts.items()]
    return all(kept)


def _append(directory: str, facts: list[Fact]) -> bool:
    try:
        return append(open_store(directory), facts)
    except JaxcacheError:
        return False


def _facts(event: Event, process: Event, backends: Mapping[Any, Event]) -> dict[str, Any]:
    backend = backends.get((event["process"], event.get("backend"))) or {}
    argv = process.get("argv") or [None]
    facts = {
        "jax_version": process.get("jax"),
        "jaxlib_version": process.get("jaxlib"),
        "jaxlib_digest": process.get("jaxlib_digest"),
        "xla_flags": process.get("xla_flags"),
        "script": argv[0] or None,
        "function": event.get("function"),
        "platform": backend.get("platform"),
        "platform_version": backend.get("platform_version"),
        "device_kind": backend.get("device_kind"),
        "topology_fingerprint": backend.get("topology_fingerprint"),
        "components": event.get("components"),
        "tuning": event.get("tuning"),
        "tuning_mtime_ns": event.get("mtime_ns") if event.get("tuning") else None,
        "tuning_size_bytes": event.get("size_bytes") if event.get("tuning") else None,
    }
    if event["outcome"] == "written" and event.get("compile"):
        facts["compile_seconds"] = round(event["compile"][1], 6)
    return {name: value for name, value in facts.items() if value is not None}


def known_seconds(directory: str) -> dict[str, float]:
    """Exact compile seconds by key, as earlier runs have measured them; empty if unknown."""
    if "://" in directory:
        return {}
    try:
        ledger = Ledger.load(open_store(directory))
    except JaxcacheError:
        return {}
    records = (ledger.record(key) for key in ledger)
    return {r.key: r.compile_seconds for r in records if r and r.compile_seconds is not None}
