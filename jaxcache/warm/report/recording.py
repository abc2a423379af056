"""What is kept of a run: the recipe of ``--record``, and the facts that the ledger learns.

JAX keeps the compile time of an entry as whole seconds, nothing of who made it, and no count of
hits. A run knows all three; the ledger of the directory that was really used keeps them.
"""

import contextlib
import os
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from jaxcache.cache.archive import write_file
from jaxcache.cache.files import scratch_directory
from jaxcache.cache.ledger.record import COMPILE, HIT, MISS, SKETCH, TOO_QUICK, Event, digest_facts
from jaxcache.cache.ledger.segments import Ledger, is_miss
from jaxcache.cache.ledger.write import append
from jaxcache.cache.recipe import (
    KEY_SETTINGS,
    Environment,
    Recipe,
    Request,
    encode_recipe,
    is_recipe,
)
from jaxcache.cache.verify.check import read_content
from jaxcache.core.compile_event import CompileFinished
from jaxcache.core.names import CACHE_SUFFIX, OWN_DIR, is_key, live_directory, spool_name
from jaxcache.core.system import is_full
from jaxcache.entry.codec import CodecError
from jaxcache.errors import JaxcacheError, UsageError
from jaxcache.store import open_store
from jaxcache.store.base import Store, StoreError, same_file
from jaxcache.units import NS_PER_SECOND, format_count
from jaxcache.warm.child.launch import RunResult
from jaxcache.warm.report.builder import COMPILED_AHEAD, ReportBuilder
from jaxcache.warm.report.events import CompileStarted

#: JAX measures to less than that; more digits would only make the file larger.
_SECONDS_DIGITS = 3
#: The facts of an environment that other events have.
_TOLD = (
    *("jaxlib_digest", "platform_version", "device_kind"),
    *("topology_fingerprint", "key_settings"),
)


@dataclass(frozen=True, slots=True)
class RecordingDirectory:
    """The directory into which the listener puts modules and options, and its instructions.

    Args:
        collect: answer modules of more operations with zeros; None to run everything.
    """

    directory: Path
    path: str
    """The recipe to write."""
    collect: int | None = None

    @property
    def environment(self) -> dict[str, str]:
        """Variables that make the listener record."""
        env = {"JAXCACHE_RECORD": str(self.directory)}
        return env if self.collect is None else {**env, "JAXCACHE_COLLECT": str(self.collect)}

    def save(
        self, recorder: ReportBuilder, recorded_seconds: Mapping[str, float], ended: RunResult
    ) -> tuple[int, list[str]]:
        """Write a recipe of what a run has recorded, atomically; no file if it recorded nothing.

        Args:
            recorded_seconds: exact compile seconds by key, for what was not compiled in this run.
            ended: how the run ended, for the notes.

        Returns:
            The number of modules in it, and the notes about it.

        Raises:
            JaxcacheError: ``io-error``.
        """
        recipe = self._recipe(recorder, recorded_seconds, ended)
        if not recipe.requests:
            return 0, [*recipe.notes, f"nothing was recorded, so {self.path} was not written"]
        write_file(
            self.path, encode_recipe(recipe, lambda digest: (self.directory / digest).read_bytes())
        )
        stubbed = sum(r.stubbed for r in recipe.requests)
        stubs = f", {stubbed} of them only collected" if stubbed else ""
        count = format_count(len(recipe.requests), "module")
        return len(recipe.requests), [*recipe.notes, f"recorded {count} in {self.path}{stubs}"]

    def _recipe(
        self, recorder: ReportBuilder, recorded_seconds: Mapping[str, float], ended: RunResult
    ) -> Recipe:
        done = {(e.process, e.number): e for e in recorder.modules}
        environments: list[Environment] = []
        groups: defaultdict[tuple[object, ...], list[Request]] = defaultdict(list)
        for place, begun in recorder.recorded.items():
            recorded = begun.recorded
            if (
                recorded
                and begun.environment
                and (self.directory / recorded.bytecode).is_file()
                and (self.directory / recorded.options).is_file()
            ):
                environment = _environment(recorder, begun, begun.environment)
                if environment not in environments:
                    environments.append(environment)
                request = replace(recorded, environment=environments.index(environment))
                if place in done:
                    request = _complete(request, done[place], recorded_seconds)
                groups[_identity(request)].append(request)
        requests = tuple(_fold(same) for same in groups.values())
        notes = dict.fromkeys([s.detail for s in recorder.heard("remark")] + [*_ends(ended)])
        return Recipe(tuple(environments), requests, tuple(notes))


def _environment(recorder: ReportBuilder, begun: CompileStarted, sent: Environment) -> Environment:
    """Return the environment of a process, with what other events told of it."""
    settings = {n: v for n, v in sent.settings.items() if type(v) is KEY_SETTINGS.get(n)}
    origin = recorder.origin(begun.process, begun.backend)
    return replace(sent, settings=settings, **{name: origin[name] for name in _TOLD})


def _ends(ended: RunResult) -> Iterator[str]:
    if ended.idle:
        yield "the program was stopped: it requested no new module"
    if ended.exit_code < 0 or ended.timed_out or ended.interrupted:
        yield "the program was stopped: later compiles are missing"
    elif ended.exit_code:
        yield f"the program exited with code {ended.exit_code}; earlier compiles are recorded"


def _complete(
    request: Request, done: CompileFinished, recorded_seconds: Mapping[str, float]
) -> Request:
    """Add what is known of a request when it has ended."""
    seconds = done.seconds_of("compile")
    if done.outcome == "hit":
        seconds = recorded_seconds.get(done.key or "", done.stored_seconds)
    names = ("key", "stubbed", "function", "file", "line")
    facts = {name: getattr(done, name) for name in names}
    return replace(request, components=done.components or {}, compile_seconds=seconds, **facts)


#: What is compiled, and for which devices.
_COMPILED = (
    *("bytecode", "options", "device_ids", "device_shape", "executable_device_ids"),
    "callbacks",
)


def _identity(request: Request) -> tuple[object, ...]:
    """Return the key or its substitute: requests for which this is equal are one compile."""
    if request.key:
        return request.environment, request.key, request.callbacks
    return request.environment, *(getattr(request, name) for name in _COMPILED)


def _fold(same: Sequence[Request]) -> Request:
    """One request for several of the same compile."""
    first = next((r for r in same if r.key), same[0])
    measured = [r.compile_seconds for r in same if r.compile_seconds is not None]
    return replace(
        first,
        compile_seconds=round(sum(measured) / len(measured), _SECONDS_DIGITS) if measured else None,
        doubts=tuple(dict.fromkeys(d for r in same for d in r.doubts)),
        stubbed=all(r.stubbed for r in same),
        occurrences=len(same),
    )


@contextlib.contextmanager
def open_recording(
    path: str | None, collect: int | None = None
) -> Iterator[RecordingDirectory | None]:
    """Give a directory to record into; None where no recipe is written, or no room is left.

    Args:
        collect: see :class:`RecordingDirectory`.

    Raises:
        UsageError: ``exists`` where something else than a recipe has that name: before the program
            runs, not after.
    """
    if path is None:
        yield None
        return
    if os.path.lexists(path) and not is_recipe(path):
        raise UsageError(
            f"{path} exists and is not a recipe",
            code="exists",
            hint="name another file, or remove it",
        )
    with contextlib.ExitStack() as stack:
        recording = None
        with contextlib.suppress(JaxcacheError):  # the program runs all the same
            directory = stack.enter_context(scratch_directory("record"))
            recording = RecordingDirectory(Path(directory), path, collect)
        yield recording


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
            with_digests = [e._replace(facts={**e.facts, **_digest(store, e)}) for e in events]
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
        "entry_bytes": event.size_bytes,
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
