"""Facts that a run adds to the ledger, and that the ledger adds to the report of a run.

JAX keeps the compile time of an entry as whole seconds, nothing of who made it, and no count of
hits. A run knows all three; the ledger of the directory that was really used keeps them.
"""

import contextlib
import os
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from jaxcache.cache.admission import read_content
from jaxcache.cache.ledger.record import COMPILE, HIT, MISS, SKETCH, TOO_QUICK, Event, digest_facts
from jaxcache.cache.ledger.segments import Ledger
from jaxcache.cache.ledger.uses import is_miss
from jaxcache.cache.ledger.write import append
from jaxcache.core.compile_event import CompileFinished
from jaxcache.core.names import CACHE_SUFFIX, OWN_DIR, is_key, live_directory, spool_name
from jaxcache.core.system import is_full
from jaxcache.entry.codec import CodecError
from jaxcache.errors import JaxcacheError
from jaxcache.store import open_store
from jaxcache.store.base import Store, StoreError, same_file
from jaxcache.units import NS_PER_SECOND
from jaxcache.warm.report.builder import COMPILED_AHEAD, ReportBuilder

#: Outcomes after which an entry with that key holds what was compiled here.
_LEARNT = {"written": COMPILE, "hit": HIT}


def record_in_ledger(modules: Collection[CompileFinished], recorder: ReportBuilder) -> None:
    """Write what a run has seen of each key into the ledgers of their directories.

    Of an entry that was written, that is the digest of its payload, too: JAX adds no checksum, and
    ``verify`` can prove it from now on.

    A directory that is not local, is gone, or cannot be written learns nothing.
    """
    known = recorder.modules[: recorder.learnt]
    sketches = _sketches([*known, *modules], recorder)  # a sketch may arrive later
    _append([*_outcomes(modules, recorder), *sketches], recorder)


def record_sketches(modules: Iterable[CompileFinished], recorder: ReportBuilder) -> None:
    """Write only the sketches into the ledgers, for entries whose compile is recorded elsewhere."""
    _append(_sketches(modules, recorder), recorder)


def record_savings(recorder: ReportBuilder, recorded_seconds: Mapping[str, float]) -> None:
    """Write what the hits of a run have saved, which is known when it has ended."""
    saved = (
        (event, HIT, {"count": 0, "timed": 1, "saved_seconds": seconds})
        for event, seconds in recorder.saved_by_hit(recorded_seconds)
    )
    _append(saved, recorder)


#: A compile, and what the ledger learns of it: the kind of an event, and its facts.
_Learnt = tuple[CompileFinished, str, Mapping[str, Any]]


def _append(learnt: Iterable[_Learnt], recorder: ReportBuilder) -> None:
    """Write events into the ledgers of their directories, as far as these can be written."""
    events_by_directory: defaultdict[str, list[Event]] = defaultdict(list)
    for done, kind, facts in learnt:
        if done.key and (directory := done.local_directory):
            event = Event(done.key, kind, int(done.at * NS_PER_SECOND), facts)
            events_by_directory[directory].append(event)
    for directory, events in events_by_directory.items():
        with contextlib.suppress(JaxcacheError):
            store = open_store(directory)
            with_digests = [replace(e, facts={**e.facts, **_digest(store, e)}) for e in events]
            with contextlib.suppress(OSError):
                if not append(store, with_digests) and is_full(directory):
                    recorder.full.add(directory)


def _outcomes(modules: Iterable[CompileFinished], recorder: ReportBuilder) -> Iterator[_Learnt]:
    for event in modules:
        if event.reason == COMPILED_AHEAD:
            continue  # the worker has written it down
        if kind := _LEARNT.get(event.outcome):
            yield event, kind, _facts(event, recorder)
        elif event.reason == "compile-time":
            yield event, TOO_QUICK, {}
        elif is_miss(event.outcome, event.reason, event.key):
            yield event, MISS, {}


def _sketches(modules: Iterable[CompileFinished], recorder: ReportBuilder) -> Iterator[_Learnt]:
    """Yield the sketch of each entry that was written, once."""
    for event in modules:
        request = (event.process, event.number)
        if event.outcome != "written" or request in recorder.learnt_sketches:
            continue
        if (blob := recorder.sketch_of(event)) and event.key and event.local_directory:
            recorder.learnt_sketches.add(request)
            yield event, SKETCH, {"sketch": blob}


def _digest(store: Store, fact: Event) -> dict[str, Any]:
    """Hash the payload of an entry that was written; nothing if it is being replaced or damaged."""
    if fact.kind != COMPILE:
        return {}
    for name in (fact.key + CACHE_SUFFIX, fact.key):  # JAX 0.4.30 names it by the key alone
        with contextlib.suppress(StoreError, CodecError):
            before = store.info(name)
            with store.open(name) as file:
                content = read_content(file, before.size_bytes, allow_large=False)
            if same_file(store.info(name), before):
                return digest_facts(content.payload_sha256, before)
    return {}


def _facts(event: CompileFinished, recorder: ReportBuilder) -> dict[str, Any]:
    process = recorder.processes[event.process]
    facts: dict[str, Any] = {
        **recorder.origin(event.process, event.backend),
        "xla_flags": process.loaded.xla_flags,
        "script": process.script,
        "function": event.function,
        "file": event.file,
        "run": recorder.run_of(event.process),
        "components": event.components,
        "tuning": event.tuning,
        "tuning_mtime_ns": event.mtime_ns if event.tuning else None,
        "tuning_size_bytes": event.size_bytes if event.tuning else None,
    }
    if event.outcome == "written" and "compile" in event.spans:
        facts["compile_seconds"] = round(event.spans["compile"][1], 6)
    return {name: value for name, value in facts.items() if value is not None}


def recorded_seconds(directory: str) -> dict[str, float]:
    """Exact compile seconds by key, as earlier runs have measured them; empty if unknown."""
    if not directory:
        return {}
    try:
        local = live_directory(directory) if "://" in directory else directory
        ledger = Ledger.load(open_store(local))
    except (JaxcacheError, FileNotFoundError):
        return {}
    records = (ledger.record(key) for key in ledger)
    return {r.key: r.compile_seconds for r in records if r and r.compile_seconds is not None}


def count_pending_uploads(url: str, modules: Iterable[CompileFinished]) -> dict[str, int]:
    """Count the entries that wait for their upload to a bucket, by local directory."""
    waiting: dict[str, int] = {}
    for directory in {done.local_directory for done in modules if done.local_directory}:
        with contextlib.suppress(OSError):
            names = os.listdir(os.path.join(directory, OWN_DIR, "live", "spool", spool_name(url)))
            if count := sum(map(is_key, names)):
                waiting[directory] = count
    return waiting
