"""Fold the events of a run into a report: one outcome and one reason for every compile."""

import bisect
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from jaxcache.warm.inbox import Event
from jaxcache.warm.launch import Ended
from jaxcache.warm.remarks import divided_keys, settings_notes, storms, target_notes
from jaxcache.warm.report import Argument, Function, Module, Process, Report
from jaxcache.warm.trace import trace_document


@dataclass(slots=True)
class Recorder:
    """Takes events one by one; :meth:`report` can be made of whatever has arrived."""

    cache_dir: str
    asked: Mapping[str, float] = field(default_factory=dict)
    """Thresholds that the environment of the program asks for, by JAX's name of the setting."""
    modules: list[Event] = field(default_factory=list)
    processes: dict[int, Event] = field(default_factory=dict)
    _trouble: list[str] = field(default_factory=list)
    _remarks: list[str] = field(default_factory=list)
    _begun: dict[tuple[int, Any], Event] = field(default_factory=dict)
    backends: dict[tuple[int, Any], Event] = field(default_factory=dict)
    colocated: list[Event] = field(default_factory=list)
    no_jax: Event | None = None
    """The event of a Python without jax, where the run needed one."""
    no_function: Event | None = None
    """The event of a function that is not there."""
    learnt: int = 0
    """How many of ``modules`` the ledger has been told of."""
    unreported: list[str] = field(default_factory=list)
    """Entries that were written meanwhile, and that no process reported."""
    refused: Event | None = None
    """The event of a target that nothing can be made for here."""

    def add(self, event: Event) -> None:
        """Take one event; kinds that are not known are left alone."""
        process = self.processes.setdefault(event["process"], {})
        kind = event["event"]
        if kind == "module":
            self.modules.append(event)
            self._begun.pop((event["process"], event.get("id")), None)
            process["counters"] = event.get("counters")
            process["process_id"] = event.get("process_id")
        elif kind == "backend":
            self.backends[event["process"], event.get("backend")] = event
        elif kind == "colocated":
            self.colocated.append(event)
        elif kind == "begin":
            self._begun[event["process"], event.get("id")] = event
        elif kind in ("trouble", "unheard"):
            self._trouble.append(str(event.get("detail")))
        elif kind in ("jax-failed", "remark"):
            self._remarks.append(str(event.get("detail")))
        elif kind == "no-jax":
            self.no_jax = event
        elif kind == "no-function":
            self.no_function = event
        elif kind == "refused":
            self.refused = event
        if kind in ("start", "jax", "end"):
            process.update({k: v for k, v in event.items() if k not in ("event", "at")})
        elif kind == "settings":
            process.setdefault("settings", []).append(event)

    def report(self, ended: Ended, known_seconds: Mapping[str, float]) -> Report:
        """Make the report of a run that has ended.

        Args:
            known_seconds: exact compile seconds by key, where JAX keeps whole seconds only.
        """
        processes = tuple(
            _process(number, event) for number, event in self.processes.items() if "jax" in event
        )
        functions = tuple(_fold_functions([*self.modules, *self.colocated]))
        return Report(
            cache_dir=self.cache_dir,
            modules=tuple(_fold_modules(self.modules, known_seconds)),
            functions=functions,
            processes=processes,
            notes=tuple(dict.fromkeys([*self._notes(processes, ended), *storms(functions)])),
            script_exit_code=ended.exit_code,
            timed_out=ended.timed_out,
            interrupted=ended.interrupted,
            unobserved=tuple(self._unobserved(processes, ended)),
            wall_seconds=ended.wall_seconds,
            saved_seconds=saved_in_series(self._savings(known_seconds)),
            trace=trace_document(self.modules, self.processes),
        )

    def _savings(self, known_seconds: Mapping[str, float]) -> Iterable[tuple[float, float, float]]:
        """Start, end and saved seconds of every hit; tracing belongs to it."""
        ended: dict[Any, float] = {}
        for e in self.modules:
            thread = e["process"], e.get("thread")
            began = min(span[0] for span in (e.get("trace"), e.get("lower"), [e["at"]]) if span)
            start = max(began, ended.get(thread, began))
            ended[thread] = end = e["at"] + e["seconds"]
            compiling = known_seconds.get(e["key"], e.get("stored_seconds"))
            if e["outcome"] == "hit" and compiling is not None:
                saved = compiling - (_length(e.get("retrieve")) or 0.0)
                yield start, end, saved

    def _notes(self, processes: Iterable[Process], ended: Ended) -> Iterable[str]:
        for process in processes:
            yield from settings_notes(process, self.cache_dir, self.asked, self._used(process))
        yield from divided_keys(self.modules)
        yield from target_notes(self.modules)
        yield from self._remarks
        yield from self._unobserved(processes, ended)

    def _used(self, process: Process) -> Counter[str]:
        """Directories that a process had open, by the compiles they were open for."""
        found = (e.get("directory") for e in self.modules if e["process"] == process.process)
        return Counter(str(directory) for directory in found if directory)

    def _unobserved(self, processes: Iterable[Process], ended: Ended) -> Iterable[str]:
        """Say why there may be compiles that are not among ``modules``."""
        for event in self._begun.values():
            yield f"{event.get('module')} was still compiling when its process ended"
        yield from dict.fromkeys(self._trouble)
        for command in dict.fromkeys(ended.unheard):
            yield f"`{command}` ran jax unheard: {_UNREACHED}"
        if count := len(self.unreported):
            yield (
                f"{count} {'entry was' if count == 1 else 'entries were'} written that nobody "
                f"reported, such as {self.unreported[0]}: another program uses this cache, or "
                f"{_UNREACHED}"
            )
        if not (any(processes) or self._trouble or ended.unheard):
            yield f"nothing was heard of jax: the program does not import it, or {_UNREACHED}"


_UNREACHED = (
    "its Python loses PYTHONPATH (-E, -I, env -i, a launcher that sets its own); one that keeps "
    "JAXCACHE_EVENTS is heard where jaxcache is installed beside its jax"
)


def saved_in_series(hits: Iterable[tuple[float, float, float]]) -> float:
    """The most that a series of hits, one after another, has saved.

    Threads that hit at the same time would have compiled at the same time, too.

    Args:
        hits: start, end and saved seconds of each.
    """
    ends, best = [-math.inf], [0.0]
    for start, end, saved in sorted(hits, key=lambda hit: hit[1]):
        before = best[bisect.bisect_right(ends, start) - 1]
        ends.append(end)
        best.append(max(best[-1], before + saved))
    return best[-1]


def _process(number: int, event: Event) -> Process:
    settings = (event.get("settings") or [{}])[-1]
    return Process(
        process=number,
        pid=int(event.get("pid") or 0),
        executable=str(event.get("executable") or ""),
        jax=event.get("jax"),
        jaxlib=event.get("jaxlib"),
        process_id=int(event.get("process_id") or 0),
        cache_dir=settings.get("opened_directory") or settings.get("jax_compilation_cache_dir"),
        settings={k: v for k, v in settings.items() if k.startswith("jax_")},
        counters=event.get("counters") or {},
    )


def _fold_modules(events: Iterable[Event], known_seconds: Mapping[str, float]) -> Iterable[Module]:
    groups: defaultdict[tuple[Any, ...], list[Event]] = defaultdict(list)
    for e in events:
        groups[
            e["process"],
            e.get("module"),
            e.get("key"),
            e["outcome"],
            e.get("reason"),
            _counted(e),
            e.get("directory"),
        ].append(e)
    for same in groups.values():
        first = same[0]
        hit = first["outcome"] == "hit"
        yield Module(
            module=str(first.get("module") or ""),
            key=first.get("key"),
            outcome=first["outcome"],
            reason=str(first.get("reason")),
            detail=first.get("detail"),
            function=first.get("function"),
            file=first.get("file"),
            line=first.get("line"),
            arguments=_arguments(first),
            occurrences=len(same),
            compile_seconds=known_seconds.get(first["key"], first.get("stored_seconds"))
            if hit
            else _mean(_length(e.get("compile")) for e in same),
            retrieval_seconds=_mean(_length(e.get("retrieve")) for e in same),
            trace_seconds=_mean(_length(e.get("trace")) for e in same),
            lower_seconds=_mean(_length(e.get("lower")) for e in same),
            size_bytes=first.get("size_bytes"),
            process=first["process"],
            counted=_counted(first),
            cache_dir=first.get("directory"),
            tuning=first.get("tuning"),
        )


def _fold_functions(events: Iterable[Event]) -> Iterable[Function]:
    groups: defaultdict[tuple[Any, ...], list[Event]] = defaultdict(list)
    for e in events:
        if e.get("function"):
            groups[e["function"], e.get("file"), e.get("line")].append(e)
    for (function, file, line), same in groups.items():
        signatures = list(dict.fromkeys(_arguments(e) for e in same))
        yield Function(
            function=function,
            kind=str(same[0].get("kind") or "jit"),
            file=file,
            line=line,
            signatures=len(signatures),
            compiles=max(Counter(e["process"] for e in same).values()),
            compile_seconds=sum(_length(e.get("compile")) or 0.0 for e in same),
            varies=tuple(describe_variation(signatures)),
        )


def describe_variation(signatures: list[tuple[Argument, ...]]) -> Iterable[str]:
    """Say which arguments, axes or dtypes differ between the signatures of one function."""
    if len(signatures) < 2:
        return
    if len({len(s) for s in signatures}) > 1:
        yield f"the number of arguments ({_values(len(s) for s in signatures)})"
        return
    for position, arguments in enumerate(zip(*signatures, strict=True)):
        name = arguments[0].name or f"argument {position}"
        if len({a.dtype for a in arguments}) > 1:
            yield f"dtype of {name} ({_values(a.dtype for a in arguments)})"
        if len({len(a.shape) for a in arguments}) > 1:
            yield f"rank of {name} ({_values(len(a.shape) for a in arguments)})"
            continue
        for axis, lengths in enumerate(zip(*(a.shape for a in arguments), strict=True)):
            if len(set(lengths)) > 1:
                yield f"axis {axis} of {name} ({_values(lengths)})"


def _values(values: Iterable[Any]) -> str:
    seen = list(dict.fromkeys(str(v) for v in values))
    return ", ".join(seen[:_SHOWN_VALUES]) + (", …" if len(seen) > _SHOWN_VALUES else "")


_SHOWN_VALUES = 6


def _arguments(event: Event) -> tuple[Argument, ...]:
    found = event.get("arguments") or ()
    return tuple(Argument(a["name"], a["dtype"], tuple(a["shape"])) for a in found)


def _counted(event: Event) -> str | None:
    counted = event.get("counted") or ()
    for name, said in (("hits", "hit"), ("misses", "miss"), ("requests", "request")):
        if name in counted:
            return said
    return None


def _length(span: Any) -> float | None:
    return float(span[1]) if span else None


def _mean(values: Iterable[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return sum(known) / len(known) if known else None
