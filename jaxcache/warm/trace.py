"""The events of a run as Chrome trace events, which Perfetto and chrome://tracing open.

Format: "Trace Event Format", complete events (``ph`` ``X``) with microseconds, one process per
Python, one thread per thread that compiled.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from jaxcache.cache.untrusted_json import Span
from jaxcache.warm.events import CompileFinished
from jaxcache.warm.report_builder import ProcessFacts

#: What a span of the listener is called in the trace.
_ARGS = ("key", "outcome", "reason", "function", "file", "line")
_SPANS = ("trace", "lower", "retrieve", "compile", "write")


def trace_document(
    modules: Iterable[CompileFinished], processes: Mapping[int, ProcessFacts]
) -> dict[str, Any]:
    """Make the document; times count from the first thing that happened."""
    spans = [
        (event, name, span)
        for event in modules
        for name in _SPANS
        if (span := getattr(event, name)) and (name != "retrieve" or event.outcome == "hit")
    ]
    origin = min((start for _, _, (start, _) in spans), default=0.0)
    return {
        "displayTimeUnit": "ms",
        "traceEvents": [
            *_names(processes),
            *(_complete(event, name, span, origin) for event, name, span in spans),
        ],
    }


def _names(processes: Mapping[int, ProcessFacts]) -> Iterator[dict[str, Any]]:
    for number, process in processes.items():
        if process.loaded:
            argv = " ".join(process.started.argv) if process.started else ""
            yield {
                "ph": "M",
                "name": "process_name",
                "pid": number,
                "args": {"name": f"{argv or 'python'} (pid {process.pid})"},
            }


def _complete(event: CompileFinished, name: str, span: Span, origin: float) -> dict[str, Any]:
    start, seconds = span
    return {
        "ph": "X",
        "name": f"{name} {event.module}",
        "cat": name,
        "ts": round((start - origin) * 1e6, 3),
        "dur": round(max(0.0, seconds) * 1e6, 3),
        "pid": event.process,
        "tid": event.thread,
        "args": {n: getattr(event, n) for n in _ARGS},
    }
