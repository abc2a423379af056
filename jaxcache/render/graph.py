"""``show`` for the graphs of torch's compilers."""

from typing import Any

from jaxcache.layouts.torch.show import GraphDetails
from jaxcache.render.columns import short_name
from jaxcache.render.document import Document
from jaxcache.render.show import USED_FROM, Sections, cut
from jaxcache.units import format_duration, format_since, format_size, rfc3339

#: Characters of a part of a key.
_SHOWN = 100


def graph_document(shown: GraphDetails) -> Document:
    """Return the fields of ``show --json`` for one graph."""
    graph = shown.graph
    nearest = shown.nearest

    def of_graph(name: str, missing: Any = None) -> Any:
        return getattr(graph, name) if graph else missing

    return {
        "cache_dir": shown.cache_dir,
        "entry": shown.entry,
        "nearest": nearest
        and {"key": nearest.left and nearest.left.key, "differences": nearest.differences},
        "tier": shown.entry.module,
        "root": of_graph("root"),
        "seconds": {
            "total": of_graph("seconds"),
            "forward": of_graph("forward_seconds"),
            "backward": of_graph("backward_seconds"),
        },
        "source_key": of_graph("source_key"),
        "bundled": of_graph("bundled", False),
        "files": [
            {"file": i.name, "size_bytes": i.size_bytes, "created_at": rfc3339(i.mtime_ns)}
            for i in shown.files
        ],
        "missing": shown.missing,
        "environment": of_graph("environment", ()),
        "globals": of_graph("globals", ()),
        "key_components": [
            {"component": c.name, "hash": c.hash, "text": c.text}
            for c in of_graph("components", ())
        ],
        "problems": shown.problems,
    }


def graph_sections(shown: GraphDetails, now_ns: int, verbose: bool) -> Sections:
    """Yield the labels of a graph's page with their lines."""
    entry = shown.entry
    graph = shown.graph
    if shown.problems:
        yield "Problems", [f"{p.kind}: {p.detail}" for p in shown.problems]
    if shown.nearest:
        differing = [
            f"{d.component}: {(d.left or 'nothing')[:_SHOWN]} → {(d.right or 'nothing')[:_SHOWN]}"
            for d in shown.nearest.differences
        ]
        key = shown.nearest.left.key if shown.nearest.left else None
        lead = f"from the nearest, {short_name(key or 'unknown')}, in"
        yield "Differs", [lead, *cut(differing, verbose)]
    yield "Size", [format_size(entry.size_bytes)]
    written = format_since(entry.created_ns, now_ns)
    yield "Compiled", [f"{_seconds(shown)}{written}, by torch {entry.torch_version or '?'}"]
    used = format_since(entry.last_used_ns, now_ns)
    yield "Used", [USED_FROM[entry.last_used_from].format(used)]
    yield "Target", [", ".join(entry.devices) or "unknown"]
    if entry.source:
        yield "Source", [entry.source + (f" in {entry.function}" if entry.function else "")]
    if entry.signature:
        yield "Takes", [entry.signature]
    yield "Guards", [entry.guards or "none: it serves every call with its key"]
    yield "File", [entry.file]
    if shown.files:
        files = [f"{i.name} ({format_size(i.size_bytes)})" for i in shown.files]
        yield "Needs", cut(files, verbose)
    if shown.missing:
        yield "Missing", shown.missing
    if graph and graph.environment:
        yield "Embeds", [f"values of {', '.join(graph.environment)}, source lines and paths"]
    if graph:
        count = f"{len(graph.globals)} names, when torch unpickles it"
        odd = graph.unexpected_globals
        names = odd or graph.globals if verbose else odd
        yield "Imports", [count, *cut(names, verbose)]


def _seconds(shown: GraphDetails) -> str:
    graph = shown.graph
    if graph is None or graph.seconds is None:
        return ""
    text = format_duration(graph.seconds)
    if graph.tier == "aotautograd":
        parts = [("forward", graph.forward_seconds), ("backward", graph.backward_seconds)]
        shares = [f"{n} {format_duration(s)}" for n, s in parts if s]
        text += f" ({', '.join(shares)}), Inductor's part included" if shares else ""
    return f"{text}, "
