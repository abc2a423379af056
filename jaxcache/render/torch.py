"""What is of torch alone in views: a run's report, and what is inside a graph."""

import os
from collections import Counter
from collections.abc import Iterator

from jaxcache.layouts.torch.explain import GraphDetails
from jaxcache.render.columns import duration_column, short_name, size_column, text_column
from jaxcache.render.show import USED_FROM, Sections, cut
from jaxcache.render.view import Block, Column, Line, Table, View, fields_of
from jaxcache.render.warm import end_notes
from jaxcache.units import format_count, format_duration, format_since, format_size
from jaxcache.warm.torch.run import Lookup, TorchReport

_STYLES = {"hit": "green", "bypassed": "yellow", "off": "yellow"}
_NAMES = {"aotautograd": "AOTAutograd", "fxgraph": "FX graph"}
_ORDER = ("off", "bypassed", "miss", "hit")


def report_view(report: TorchReport, *, unfolded: bool = False) -> View:
    """Return the view of ``run`` and ``warm`` for torch.

    Args:
        unfolded: show all of each graph break, and every guard of a recompile.
    """
    document = fields_of(report) | {"cache_dir": report.cache_dir or None}
    return View(document, records=report.modules, page=_page(report, unfolded))


def _page(report: TorchReport, unfolded: bool) -> Iterator[Block]:
    looks = Counter((g.tier, g.outcome == "hit") for g in report.modules)
    counts = [
        f"{name}: {hits} of {format_count(total, 'hit')}"
        for tier, name in _NAMES.items()
        if (total := (hits := looks[tier, True]) + looks[tier, False])  # type: ignore[index]
    ]
    if not counts:
        yield "no compiles"
    else:
        # A hit is traced all the same, and its code is loaded.
        hits_only = all(g.outcome == "hit" for g in report.modules)
        work = "tracing and loading" if hits_only else "compiling"
        counts.append(f"{format_duration(report.compile_seconds)} {work}")
        yield " · ".join([*counts, f"{format_duration(max(0.0, report.saved_seconds))} saved"])
        yield Table(
            _columns(report),
            sorted(
                report.modules, key=lambda g: (_ORDER.index(g.outcome), -(g.compile_seconds or 0.0))
            ),
        )
    breaks = Counter(
        (_place(b.file, b.line), b.detail if unfolded else b.reason) for b in report.graph_breaks
    )
    for (place, reason), count in breaks.items():
        times = f" ({count} times)" if count > 1 else ""
        yield Line(f"{reason}{times}", f"graph break at {place}: ")
    for c in report.compiles:
        for guard in c.guards if unfolded else c.guards[:1]:
            yield Line(guard, f"recompiled {c.function} ({_place(c.file, c.line)}): ")
    for c in report.compiles:
        if c.failure:
            yield Line(c.failure.partition("\n")[0], f"{c.function} was not compiled: ")
    yield from end_notes(report)


def _columns(report: TorchReport) -> list[Column]:
    ranked = any(p.rank is not None for p in report.processes)
    numbers = {p.process: str(p.rank if ranked else p.pid) for p in report.processes}
    heading = "RANK" if ranked else "PROCESS"
    first = text_column(heading, lambda g: numbers.get(g.process), right=True)
    return [
        *([first] if len(numbers) > 1 else []),
        text_column("FUNCTION", lambda g: g.function, elastic=True),
        text_column("SOURCE", lambda g: _place(g.file, g.line), elastic=True),
        text_column("CACHE", lambda g: _NAMES[g.tier]),
        text_column("OUTCOME", lambda g: g.outcome, styles=_STYLES),
        duration_column(lambda g: g.compile_seconds),
        size_column(lambda g: g.size_bytes),
        text_column("WHY", _why, elastic=True, cut="end"),
    ]


def _place(file: str | None, line: int | None) -> str | None:
    return f"{os.path.basename(file)}:{line}" if file and line is not None else file


def _why(graph: Lookup) -> str:
    if graph.outcome == "hit":
        seconds = graph.retrieval_seconds
        return "" if seconds is None else f"retrieved in {format_duration(seconds)}"
    if graph.outcome == "miss":
        reason = "its guards do not hold" if graph.reason == "guard_miss" else "not there"
        return f"{reason}; {'saved' if graph.saved else 'not saved'}"
    return graph.reason or ""


#: Characters of a part of a key.
_CUT = 100


def sections(shown: GraphDetails, now_ns: int, verbose: bool) -> Sections:
    """Yield the labels of a graph's page with their lines."""
    entry = shown.entry
    graph = shown.graph
    if shown.problems:
        yield "Problems", [f"{p.kind}: {p.detail}" for p in shown.problems]
    if shown.nearest:
        differing = [
            f"{d.component}: {(d.left or 'nothing')[:_CUT]} → {(d.right or 'nothing')[:_CUT]}"
            for d in shown.nearest.differences
        ]
        key = shown.nearest.left.key if shown.nearest.left else None
        lead = f"from the nearest, {short_name(key or 'unknown')}, in"
        yield "Differs", [lead, *cut(differing, verbose)]
    yield "Size", [format_size(entry.size_bytes)]
    written = format_since(entry.created_ns, now_ns)
    yield "Compiled", [f"{_seconds(shown)}written {written} by torch {entry.torch_version or '?'}"]
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
    return f"in {text}, "
