"""The events of a run as Chrome trace events, which Perfetto and chrome://tracing open.

Format: "Trace Event Format", complete events (``ph`` ``X``) with microseconds, one process per
Python, one thread per thread that compiled.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from jaxcache.warm.report.builder import ReportBuilder
from jaxcache.warm.report.report import Process

#: The fields of an event that a span shows.
_ARGS = ("key", "outcome", "reason", "function", "file", "line", "retrace")


def trace_document(recorded: ReportBuilder) -> dict[str, Any]:
    """Make the document; times count from the first thing that happened.

    The phases of a process are thread 0 of it.
    """
    events = [*_phases(recorded), *_steps(recorded)]
    origin = min((event["ts"] for event in events), default=0.0)
    return {
        "displayTimeUnit": "ms",
        "traceEvents": [
            *_names(recorded.processes.values()),
            *({**event, "ts": round(event["ts"] - origin, 3)} for event in events),
        ],
    }


def _names(processes: Iterable[Process]) -> Iterator[dict[str, Any]]:
    for process in processes:
        if process.jax:
            argv = " ".join(process.started.argv)
            yield {
                "ph": "M",
                "name": "process_name",
                "pid": process.process,
                "args": {"name": f"{argv or 'python'} (pid {process.pid})"},
            }


def _phases(recorded: ReportBuilder) -> Iterator[dict[str, Any]]:
    for number in recorded.processes:
        timeline = recorded.draw_timeline(e for e in recorded.phases if e.process == number)
        for start, end, phase in timeline.spans:
            yield {**_complete(phase, phase, start, end - start), "pid": number, "tid": 0}


def _steps(recorded: ReportBuilder) -> Iterator[dict[str, Any]]:
    for event in recorded.modules:
        for step, span in event.spans.items():
            if step != "key":
                yield {
                    **_complete(f"{step} {event.module}", step, *span),
                    "pid": event.process,
                    "tid": event.thread,
                    "args": {n: getattr(event, n) for n in _ARGS},
                }


def _complete(name: str, category: str, start: float, seconds: float) -> dict[str, Any]:
    microseconds = {"ts": start * 1e6, "dur": round(max(0.0, seconds) * 1e6, 3)}
    return {"ph": "X", "name": name, "cat": category, **microseconds}
