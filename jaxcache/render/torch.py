"""A run's report of torch's caches as a view."""

import os
from collections import Counter
from collections.abc import Iterator

from jaxcache.render.columns import duration_column, size_column, text_column
from jaxcache.render.view import Block, Column, Line, Table, View, fields_of
from jaxcache.render.warm import end_notes
from jaxcache.units import format_count, format_duration
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
    counts = [
        f"{name}: {report.count('hit', tier)} of {format_count(total, 'hit')}"  # type: ignore[arg-type]
        for tier, name in _NAMES.items()
        if (total := sum(g.tier == tier for g in report.modules))
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
