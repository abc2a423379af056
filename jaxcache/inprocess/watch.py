"""``with jaxcache.watch() as report:``, and what the last such block missed."""

import contextlib
import json
import os
import shutil
import sys
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from jaxcache.core.runs import MAX_ROWS
from jaxcache.injected import hook
from jaxcache.injected.channel import introduction

if TYPE_CHECKING:
    from jaxcache.cache.explain.sides import CachedFacts, Comparison, Compile
    from jaxcache.core.compile_event import CompileFinished
    from jaxcache.injected.listener import Listener
    from jaxcache.render.view import Block
    from jaxcache.warm.report.builder import ReportBuilder
    from jaxcache.warm.report.events import ProcessStarted
    from jaxcache.warm.report.report import Module, Report

_last: "Observation | None" = None
#: Numbers of the requests that the ledger has: blocks may nest.
_remembered: "set[int]" = set()
#: Each compile that blocks have seen, by the number of its request, for the record of this run.
_compiles: "dict[int, CompileFinished]" = {}
_BEGAN_AT = time.time()
#: What this process has written, by key, under a parent, which writes the ledger every few seconds.
_written: "dict[str | None, Compile]" = {}


class Printable:
    """A result that prints as its command prints it, and is HTML in a notebook."""

    def _blocks(self) -> "Iterable[Block]":
        raise NotImplementedError

    def __str__(self) -> str:
        from jaxcache.render.typeset import set_blocks

        width = shutil.get_terminal_size((100, 24)).columns
        return "\n".join(set_blocks(self._blocks(), width=width, color=False))

    __repr__ = __str__

    def _repr_html_(self) -> str:
        from jaxcache.render.typeset import set_html

        return set_html(self._blocks())


class Observation(Printable):
    """The compiles of a block of this process, in all of its threads; also while it runs.

    It has the attributes of :class:`jaxcache.warm.report.report.Report`; :func:`watch` lists them.
    """

    def __init__(self) -> None:
        self._lines: deque[bytes] = deque()
        self._listener: Listener | None = None
        self._stopped = False
        self._waiting: Any = None
        self._started = time.monotonic()
        self._began_at = time.time()
        self._seconds: float | None = None
        self._lock = threading.RLock()
        self._recorder: ReportBuilder | None = None
        self._read = 0
        self._report: Report | None = None
        self._causes: tuple[int, dict[str, str]] = 0, {}

    # Events of the listener -------------------------------------------------------------------

    def start(self) -> "Observation":
        """Start watching as soon as jax is imported."""
        self._waiting = hook.when_imported(self._listen)
        return self

    __enter__ = start

    def stop(self, *_: object) -> None:
        """Stop watching; the report keeps the events until now."""
        self._stopped = True
        if self._waiting in sys.meta_path:
            sys.meta_path.remove(self._waiting)
        self._seconds = time.monotonic() - self._started
        if self._listener is not None:
            self.record()
            self._listener.remove(self.take)

    __exit__ = stop

    def record(self) -> None:
        """Wait for the sketches, and record what was compiled: in the ledger, and of this run.

        A parent writes it itself. The live layer records each compile itself, but not its sketch.
        Whatever fails here only costs a miss its explanation.
        """
        if self._listener is None:
            return
        with contextlib.suppress(Exception), self._lock:
            self._listener.finish_sketches()
            self._listener.tell_changed()
            if "JAXCACHE_EVENTS" in os.environ:
                _written.update((c.key, c) for c in self.compared() if c.outcome == "written")
                return
            from jaxcache.warm.report.recording import record_in_ledger, record_sketches

            recorded = self.keep()
            live = recorded.processes[0].configured.live
            written = [d for d in recorded.modules if d.outcome == "written"]
            fresh = [d for d in written if d.number not in _remembered]
            _remembered.update(d.number for d in fresh)
            if live is None:
                record_in_ledger(fresh, recorded)
            elif "ledger" not in live or live["ledger"].value is not False:
                record_sketches(fresh, recorded)
            if not self._listener.no_write:
                from jaxcache.warm.report.run_records import record_runs

                whole = replace(recorded, modules=[*_compiles.values()])
                record_runs(whole, {}, own=_own_process())

    def keep(self) -> "ReportBuilder":
        """Remember the compiles of this block for the record of this run, and return them."""
        with self._lock:
            recorded = self._fold()
            for done in recorded.modules if len(_compiles) < MAX_ROWS else ():
                _compiles.setdefault(done.number, done)
            return recorded

    def take(self, event: "dict[str, Any]") -> None:
        """Take one event of the listener; failures here are reported as events, never raised."""
        try:
            line = json.dumps({"at": time.time(), **event}, default=str)
        except Exception as error:
            line = json.dumps({"event": "trouble", "detail": f"{type(error).__name__}: {error}"})
        self._lines.append(line.encode())

    def _listen(self, jax: Any) -> None:
        if self._stopped:
            return
        if self._waiting is not None and hook.imported is not None:
            self.take(hook.imported)
        try:
            self._listener = find_listener(jax, self.take)
        except Exception as error:
            self.take({"event": "unobserved", "detail": str(error)})

    # The report -------------------------------------------------------------------------------

    @property
    def listener(self) -> "Listener | None":
        """The listener of this process; None before jax is imported, or for an unknown jax."""
        return self._listener

    @property
    def report(self) -> "Report":
        """The report of all events until now."""
        from jaxcache.warm.child.launch import RunResult
        from jaxcache.warm.report.recording import recorded_seconds

        with self._lock:
            recorder = self._fold()
            running = [f"{b.module} is still compiling" for b in recorder.running.values()]
            if self._report is None or self._seconds is None or running:
                seconds = self._seconds or time.monotonic() - self._started
                seconds_by_key = recorded_seconds(recorder.cache_dir) if recorder.cache_dir else {}
                folded = replace(recorder, running={}).report(
                    RunResult(0, False, False, seconds), seconds_by_key
                )
                heard = any(p.jax for p in recorder.processes.values()) or recorder.notices
                self._report = replace(
                    folded,
                    notes=(*(folded.notes if heard else ()), *running),
                    unobserved=folded.unobserved if heard else (),
                )
            return self._report

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.report, name)

    def __dir__(self) -> list[str]:
        from jaxcache.warm.report.report import Report

        return [*super().__dir__(), *(name for name in dir(Report) if not name.startswith("_"))]

    @property
    def modules(self) -> "tuple[Module, ...]":
        """Every module, those that were written with the cause."""
        with self._lock:
            modules = self.report.modules
            if self._recorder is not None and self._causes[0] != self._read:
                self._causes = self._read, self._find_causes(self._recorder)
            causes = self._causes[1]
        return tuple(
            replace(m, cause=causes.get(m.key or "")) if m.outcome == "written" else m
            for m in modules
        )

    def _find_causes(self, recorder: "ReportBuilder") -> "dict[str, str]":
        from jaxcache.warm.report.causes import find_causes

        self.keep()
        whole = replace(recorder, modules=[*_compiles.values()])
        own = _own_process()
        return find_causes(whole, (), earlier=_written, own=own)

    def _blocks(self) -> "Iterable[Block]":
        return _page(replace(self.report, modules=self.modules))

    def compiles(self) -> "list[CompileFinished]":
        """Return each compile for itself."""
        with self._lock:
            return [*self._fold().modules]

    def compared(self) -> "list[Compile]":
        """Return each compile as ``explain`` compares it."""
        from jaxcache.warm.report.causes import as_compile

        with self._lock:
            recorded = self._fold()
            return [as_compile(done, recorded) for done in recorded.modules]

    def explain(self, key: str, cache: "CachedFacts | None") -> "list[Comparison]":
        """Compare a key of this block with the earlier runs of this program."""
        from jaxcache.warm.report.causes import explain_misses
        from jaxcache.warm.report.run_records import describe_runs

        own = _own_process()
        recorded = self._fold()
        missed = {key: next(done for done in recorded.modules if done.key == key)}
        directory = recorded.cache_dir
        described = describe_runs(recorded, {}, own, directory=directory) if directory else ()
        return explain_misses(recorded, described, directory, missed, cache)

    def misses(self) -> "Misses":
        """The modules that were compiled: neither retrieved nor refused by a guard."""
        compiled = tuple(m for m in self.modules if m.outcome not in ("hit", "refused"))
        return Misses(compiled, self.report)

    def _fold(self) -> "ReportBuilder":
        """Fold the events received since the last call."""
        from jaxcache.warm.report.builder import ReportBuilder
        from jaxcache.warm.report.events import parse_event

        recorder = self._recorder = self._recorder or ReportBuilder(began_at=self._began_at)
        if self._listener is not None and not self._stopped:
            self._listener.send_phases()
        while self._lines:
            if event := parse_event(self._lines.popleft(), 0):
                recorder.add(event)
            self._read += 1
            self._report = None
        if process := recorder.processes.get(0):
            directory = process.settings.get("jax_compilation_cache_dir")
            recorder.cache_dir = str(process.configured.opened_directory or directory or "")
        return recorder


def _own_process() -> "ProcessStarted | None":
    """Return this process as the listener introduces one to a parent; None where there is one."""
    from jaxcache.warm.report.events import ProcessStarted, parse_event

    if "JAXCACHE_EVENTS" in os.environ:
        return None
    started = parse_event(json.dumps({**introduction(), "at": _BEGAN_AT}).encode(), 0)
    return started if isinstance(started, ProcessStarted) else ProcessStarted(pid=0)


class Misses(Printable):
    """The modules that a block compiled; prints as a table of them."""

    def __init__(self, modules: "tuple[Module, ...]", report: "Report") -> None:
        self.modules = modules
        self._report = report

    def __len__(self) -> int:
        return sum(m.occurrences for m in self.modules)

    def __iter__(self) -> "Iterator[Module]":
        return iter(self.modules)

    def __getitem__(self, index: int) -> "Module":
        return self.modules[index]

    def _blocks(self) -> "Iterable[Block]":
        from jaxcache.render.warm import headline

        if not self.modules:
            return [headline(self._report)]
        return _page(replace(self._report, modules=self.modules, notes=()))


def _page(report: "Report") -> "Iterable[Block]":
    from jaxcache.render.warm import report_view

    report = replace(report, modules=tuple(map(_in_cell, report.modules)))
    return report_view(report, more="").page or ()


def _in_cell(module: "Module") -> "Module":
    """Call the file of a function of a notebook by its cell."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    named = shell and module.file and shell.compile.format_code_name(module.file)
    return replace(module, file=named[1]) if named else module


def find_listener(jax: Any, sink: Any) -> "Listener":
    """Listen by the listener that this process has, or by a new one.

    Under ``jaxcache run`` there is one already, loaded by its path.

    Raises:
        UnknownJaxError: no adapter supports this jax.
    """
    loaded = sys.modules.get("_jaxcache.injected.listener")
    if loaded is not None and getattr(loaded, "LISTENER", None) is not None:
        loaded.LISTENER.add(sink)
        listener: Listener = loaded.LISTENER
        return listener
    from jaxcache.injected.listener import listen

    return listen(jax, sink)


@contextlib.contextmanager
def watch() -> "Iterator[Observation]":
    """Watch the compiles of a block, of this process and in all of its threads; blocks may nest.

    >>> with jaxcache.watch() as report:
    ...     result = step(x)
    >>> report.hits, report.written
    (0, 1)

    The report has these attributes, also while the block runs:

    * ``compile_requests``: ``hits``, ``written``, ``skipped``, ``uncacheable``, ``errors``
    * ``compile_seconds``, ``retrieval_seconds``, ``saved_seconds``, ``wall_seconds``
    * ``phases``: the parts of ``wall_seconds``, such as ``trace_seconds`` and ``load_seconds``
    * ``modules``: each with ``module``, ``outcome``, ``reason``, ``cause``, ``compile_seconds``,
      ``file``, ``line``; ``misses()``: those that were compiled
    * ``functions``: with their ``signatures`` in memory; ``notes``, ``unobserved``: sentences

    Nothing changes for the program: it compiles, hits and writes as without. Works with the live
    layer on or off, and with no cache at all. ``print(report)`` prints the table of ``jaxcache
    warm``; in a notebook it is one.
    """
    with Observation() as observation:
        remember(observation)
        yield observation


def remember(observation: Observation) -> None:
    """Make :func:`last_misses` report on this block."""
    global _last
    _last = observation


def last_misses() -> "Misses":
    """Return the modules that the last block of :func:`watch` compiled, with the reasons.

    >>> [module.module for module in jaxcache.last_misses()]
    ['jit_step']

    That block may still run. Without any there are none.
    """
    return (_last or Observation()).misses()


def last_compiles() -> "list[Compile]":
    """Return each compile that the last block of :func:`watch` has seen, as it is compared."""
    return _last.compared() if _last else []
