"""Seal the entries that a run has written, so that JAX itself detects rot in them from now on."""

import time
from collections import defaultdict
from collections.abc import Iterable

from jaxcache.cache.seal import execute_seal, plan_seal
from jaxcache.errors import JaxcacheError
from jaxcache.options import SealOptions
from jaxcache.store import open_store
from jaxcache.warm.events import Done


def seal_written(modules: Iterable[Done]) -> list[str]:
    """Seal what was written, in the directories really used; a sentence about each.

    What cannot be sealed is a sentence too: the entries are as good as JAX wrote them.
    """
    keys: defaultdict[str, set[str]] = defaultdict(set)
    for event in modules:
        directory = event.directory
        if event.outcome == "written" and event.key and directory and "://" not in directory:
            keys[directory].add(event.key)
    notes = []
    for directory, written in keys.items():
        try:
            store = open_store(directory)
            plan = plan_seal(store, SealOptions(keys=tuple(sorted(written))))
            result = execute_seal(store, plan, jobs=1, now_ns=time.time_ns())
            notes.append(f"sealed {len(result.sealed)} of {len(written)} written entries")
        except JaxcacheError as error:
            notes.append(f"nothing sealed in {directory}: {error.message}")
    return notes
