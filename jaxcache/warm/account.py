"""The account of a run: what is made of its events, during the program and after its end."""

import contextlib
import os
import threading
import time
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from jaxcache.core.compile_event import RunEvent
from jaxcache.core.machine import hashes_path
from jaxcache.entry.names import key_of
from jaxcache.errors import NoJaxError, UsageError
from jaxcache.options.run import RunOptions
from jaxcache.store import is_remote
from jaxcache.warm.child.child import missing_module
from jaxcache.warm.child.launch import RunResult
from jaxcache.warm.programs import PORTABLE_NOTE, effective_thresholds
from jaxcache.warm.report import recording
from jaxcache.warm.report.builder import ReportBuilder, trace_document
from jaxcache.warm.report.causes import find_causes, is_new, path_note
from jaxcache.warm.report.notes import bucket_notes, find_overridden, varying_notes
from jaxcache.warm.report.report import EVICTED, LOST, Report
from jaxcache.warm.report.run_records import record_runs

if TYPE_CHECKING:
    from jaxcache.warm.child.launch import RunCallbacks
    from jaxcache.warm.crosshost.cross_target import TargetOutput
    from jaxcache.warm.report.recording import RecordingDirectory

#: How often hits are written to the ledger while a program runs.
_LEARN_SECONDS = 2.0


class Account:
    """What a run has reported, what the ledger knew before, and what it learns."""

    def __init__(
        self,
        options: RunOptions,
        callbacks: "RunCallbacks",
        spool: "TargetOutput | None",
        ahead: Mapping[str, float | None],
    ) -> None:
        self._options = options
        self._callbacks = callbacks
        self._spool = spool
        # Empty where only the program can name the cache that it uses.
        named = options.jax_cache_dir or options.force_cache_dir
        self._expected = options.cache_dir if named else ""
        self._seconds_by_key: dict[str, float] = {}
        self._own_notes: list[str] = []
        self._recorded: int | None = None
        self._recorder = ReportBuilder(self._expected, asked=effective_thresholds(options))
        self._recorder.ahead.update(ahead)
        self._first = self._recorder
        self._learn_at = time.monotonic() + _LEARN_SECONDS
        # Beside the program, whose imports take longer than to read a long ledger.
        self._reader = threading.Thread(target=self._look_up, daemon=True)
        self._reader.start()

    def _look_up(self) -> None:
        self._seconds_by_key.update(recording.recorded_seconds(self._expected))

    def take(self, event: RunEvent) -> None:
        """Take one event of the program."""
        if self._spool is not None:
            event = self._spool.take(event)
        self._recorder.add(event)
        if self._callbacks.on_event:
            self._callbacks.on_event(event)

    def tick(self) -> None:
        """Do what is done again and again while the program runs."""
        if self._spool is None and time.monotonic() >= self._learn_at:
            self._learn()  # jaxcache stats reads it meanwhile
            self._learn_at = time.monotonic() + _LEARN_SECONDS

    def check_start(self) -> None:
        """Refuse a run whose program could not be started as it was meant.

        Raises:
            NoJaxError: a Python has no jax, or this jax cannot be listened to.
            JaxcacheError: a Python lacks what the live layer needs there.
            UsageError: no such function.
        """
        for notice in self._recorder.heard("no-module"):
            raise missing_module(notice.executable or "", notice.detail)
        for notice in self._recorder.heard("refused"):
            raise NoJaxError(notice.detail, code=notice.code or "refused", hint=notice.hint)
        for notice in self._recorder.heard("no-function"):
            raise UsageError(notice.detail, code="no-function")

    def _learn(self) -> None:
        """Record in the ledger what is new."""
        recorder = self._recorder
        fresh = recorder.modules[recorder.learnt :]
        recorder.learnt = len(recorder.modules)
        if self._writes:
            recording.record_in_ledger(fresh, recorder)

    @property
    def _writes(self) -> bool:
        return self._options.scratch is None and not self._options.no_write

    def save_recipe(self, recipe: "RecordingDirectory | None", ended: RunResult) -> None:
        """Write what was recorded for a recipe, if one is wanted."""
        self._reader.join()
        if recipe:
            self._recorded, self._own_notes = recipe.save(
                self._recorder, self._seconds_by_key, ended
            )
        elif path := self._options.record:
            self._own_notes = [f"{path} was not written: no directory takes temporary files"]

    def begin_check(self) -> None:
        """Take what comes from now on as a second run, which checks the first."""
        self._learn()
        first = self._first
        self._recorder = ReportBuilder(
            first.cache_dir, asked=first.asked, notices=first.notices, phases=first.phases
        )

    def close(self, ended: RunResult, started_ns: int) -> Report:
        """Tell the ledger of the rest, and make the report.

        Args:
            started_ns: when the run began.
        """
        self._learn()
        options = self._options
        recorder = self._recorder
        if self._spool is None:
            self._note_unreported(started_ns)
        overridden = [f"{f.seen}: {f.cost}; {f.fix}" for f in find_overridden(options)]
        known_keys = set(self._seconds_by_key)
        for directory in recorder.directories - {self._expected}:
            self._seconds_by_key.update(recording.recorded_seconds(directory))
        report = recorder.report(ended, self._seconds_by_key)
        target_dir = self._expected if self._spool else None
        causes = (
            {}
            if options.scratch
            else find_causes(recorder, known_keys, before_in=self._expected, cache_dir=target_dir)
        )
        varying: frozenset[str] = frozenset()
        short = {s.cache_dir for s in report.shortages}
        for e in recorder.modules:
            if e.cache_dir in short and e.key and causes.get(e.key) == LOST:
                causes[e.key] = EVICTED
        if self._writes and self._spool is None and options.collect is None:
            # After it was compared with the others.
            varying = record_runs(self._first, self._seconds_by_key)
        waiting: Mapping[str, int] = {}
        if is_remote(options.cache_dir):
            waiting = recording.count_pending_uploads(options.cache_dir, recorder.modules)
        modules = tuple(
            replace(m, cause=causes.get(m.key or "")) if is_new(m.outcome, m.reason) else m
            for m in report.modules
        )
        return replace(
            report,
            modules=modules,
            notes=tuple(
                dict.fromkeys([*report.notes, *overridden, *self._notes(report, waiting, varying)])
            ),
            passing=report.passing | varying | frozenset(causes if overridden else ()),
            recorded=self._recorded,
            waiting=waiting,
            unused_tiers=self._unused_tiers(),
            guard=options.guard,
            is_guarded=bool(self._first.heard("guarded")),
            trace=trace_document(recorder),
        )

    def _unused_tiers(self) -> tuple[str, ...]:
        """Return which requested tiers a process could not open, and why."""
        is_requested = self._options.tiers or is_remote(self._options.cache_dir)
        unused = [notice.detail for notice in self._recorder.heard("no-tier")]
        return tuple(dict.fromkeys(unused)) if is_requested else ()

    def _note_unreported(self, started_ns: int) -> None:
        """Record what the hits saved; find the entries that no process has reported."""
        recorder = self._recorder
        if self._writes:
            recording.record_savings(recorder, self._seconds_by_key)
        keys = {str(e.key) for r in (self._first, recorder) for e in r.modules}
        keys |= self._first.fetched | recorder.fetched
        for directory in recorder.directories or {self._expected}:
            recorder.unreported += _unreported_entries(directory, started_ns, keys)

    def _notes(
        self, report: Report, waiting: Mapping[str, int], varying: Collection[str]
    ) -> list[str]:
        options = self._options
        recorder = self._recorder
        notes = [
            *self._own_notes,
            *varying_notes(report.modules, varying, report.cache_dir),
            *(f"this run could not be recorded in {d}: its disk is full" for d in recorder.full),
        ]
        version = next((p.jax for p in report.processes if p.jax), None)
        if options.portable and version and hashes_path(version):
            notes.append(PORTABLE_NOTE)
        elif not (
            options.portable
            or self._spool
            or options.scratch
            or options.no_write
            or any(p.ignored_directory for p in report.processes)
        ):
            notes += path_note(recorder.modules, version)
        if is_remote(options.cache_dir):
            notes += bucket_notes(options.cache_dir, recorder.modules, waiting)
        return notes


def _unreported_entries(cache_dir: str, since_ns: int, reported: Collection[str]) -> list[str]:
    """Return names of entries that were written since then under keys that no process reported."""
    written: list[str] = []
    with contextlib.suppress(OSError):  # a bucket, or no directory yet
        if os.stat(cache_dir).st_mtime_ns < since_ns:
            return []
        for name in os.listdir(cache_dir):
            if (key := key_of(name)) and key not in reported:
                with contextlib.suppress(FileNotFoundError):
                    if os.stat(os.path.join(cache_dir, name)).st_mtime_ns >= since_ns:
                        written.append(name)
    return sorted(written)
