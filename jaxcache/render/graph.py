"""``show`` for the graphs of torch's compilers: a document, TSV, and a page for people."""

from collections.abc import Iterator

from jaxcache.entry.names import printable
from jaxcache.layouts.torch.show import ShownGraph
from jaxcache.render.document import Document, entry_document, envelope, problem_document
from jaxcache.render.show import labelled_lines
from jaxcache.units import format_duration, format_since, format_size, rfc3339

#: What the page shows of a long list; the document holds it all.
_SHOWN = 12


def show_document(shown: ShownGraph) -> Document:
    """Return the document of ``show --json`` for one graph."""
    return {**envelope(shown.cache_dir), **entry_contents(shown)}


def entry_contents(shown: ShownGraph) -> Document:
    """One graph and everything in it, without the envelope."""
    graph = shown.graph
    return {
        "entry": entry_document(shown.entry),
        "tier": shown.entry.module,
        "root": graph and printable(graph.root),
        "seconds": {
            "total": graph and graph.seconds,
            "forward": graph and graph.forward_seconds,
            "backward": graph and graph.backward_seconds,
        },
        "source_key": graph and graph.source_key and printable(graph.source_key),
        "bundled": bool(graph and graph.bundled),
        "files": [
            {
                "file": printable(i.name),
                "size_bytes": i.size_bytes,
                "created_at": rfc3339(i.mtime_ns),
            }
            for i in shown.files
        ],
        "missing": list(map(printable, shown.missing)),
        "environment": list(map(printable, graph.environment)) if graph else [],
        "globals": list(map(printable, graph.globals)) if graph else [],
        "key_components": [
            {"component": printable(c.name), "hash": c.hash, "text": printable(c.text)}
            for c in (graph.components if graph else ())
        ],
        "problems": [problem_document(p) for p in shown.problems],
    }


def show_page(shown: ShownGraph, *, now_ns: int, width: int, color: bool) -> str:
    """A page for people."""
    bold, plain = ("\x1b[1m", "\x1b[0m") if color else ("", "")
    lines = [f"{bold}{printable(shown.entry.key)}{plain}", ""]
    for label, texts in _sections(shown, now_ns):
        for text in texts:
            lines += labelled_lines(printable(text), label, width)
            label = ""
    return "\n".join(lines)


def _sections(shown: ShownGraph, now_ns: int) -> Iterator[tuple[str, list[str]]]:
    entry, graph = shown.entry, shown.graph
    if entry.signature:
        yield "Inputs", [entry.signature]
    if entry.source:
        yield "Source", [entry.source + (f" in {entry.function}" if entry.function else "")]
    if graph and graph.seconds is not None:
        yield "Compiled", [_seconds(shown)]
    if entry.devices or entry.torch_version:
        devices = ", ".join(entry.devices) or "device unknown"
        yield "Target", [f"{devices}; torch {entry.torch_version or 'of unknown version'}"]
    yield "Guards", [entry.guards or "none: it serves for every call with its key"]
    used = f", last used {format_since(entry.last_used_ns, now_ns)}"
    used = used if entry.last_used_from != "mtime" else ", no use recorded"
    written = format_since(entry.created_ns, now_ns)
    yield (
        "File",
        [printable(entry.file), f"{format_size(entry.size_bytes)}, written {written}{used}"],
    )
    if shown.files:
        yield "Needs", _cut([f"{i.name} ({format_size(i.size_bytes)})" for i in shown.files])
    if shown.missing:
        yield "Missing", list(shown.missing)
    if graph:
        if graph.environment:
            yield "Embeds", [f"values of {', '.join(graph.environment)}, source lines and paths"]
        yield "Imports", [f"{len(graph.globals)} names, when torch unpickles it"]
        odd = graph.unexpected_globals
        yield "", _cut(list(odd or graph.globals))
    if shown.problems:
        yield "Problems", [f"{p.kind}: {p.detail}" for p in shown.problems]


def _seconds(shown: ShownGraph) -> str:
    graph = shown.graph
    if graph is None or graph.seconds is None:
        return ""
    text = format_duration(graph.seconds)
    if graph.tier == "aotautograd":
        parts = [("forward", graph.forward_seconds), ("backward", graph.backward_seconds)]
        shares = [f"{n} {format_duration(s)}" for n, s in parts if s]
        text += f" ({', '.join(shares)}), Inductor's part included" if shares else ""
    return text


def _cut(lines: list[str]) -> list[str]:
    more = len(lines) - _SHOWN
    return [*lines[:_SHOWN], f"and {more:,} more"] if more > 0 else lines
