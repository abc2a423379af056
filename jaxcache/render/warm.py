"""A run's report as the document of the contract and as a page for people."""

import os
from collections import Counter
from collections.abc import Iterator, Sequence

from jaxcache.entry.names import printable
from jaxcache.render.document import Document, envelope
from jaxcache.render.table import Column, render_table
from jaxcache.units import format_count, format_duration, format_size
from jaxcache.warm.report import OUTCOMES, Function, Module, Report

#: What an outcome's colour says: served, as hoped for; lost, and why matters.
_STYLES = {"hit": "green", "skipped": "yellow", "uncacheable": "yellow", "error": "red"}


def report_document(report: Report) -> Document:
    """The document of ``warm --json`` and ``run --json``."""
    return {
        **envelope(report.cache_dir),
        "modules": [module_document(m) for m in report.modules],
        "functions": [_function_document(f) for f in report.functions],
        "processes": [
            {
                "process": p.process,
                "pid": p.pid,
                "process_id": p.process_id,
                "python": p.executable,
                "jax": p.jax,
                "jaxlib": p.jaxlib,
                "cache_dir": p.cache_dir,
                "settings": dict(p.settings),
                "counters": dict(p.counters),
            }
            for p in report.processes
        ],
        "summary": summary_document(report),
        "notes": list(report.notes),
        "unobserved": list(report.unobserved),
        "timed_out": report.timed_out,
        "interrupted": report.interrupted,
        "script_exit_code": report.script_exit_code,
    }


def summary_document(report: Report) -> Document:
    """The ``summary`` of the contract."""
    return {
        "compile_requests": report.compile_requests,
        "hits": report.count("hit"),
        "written": report.count("written"),
        "skipped": report.count("skipped"),
        "uncacheable": report.count("uncacheable"),
        "errors": report.count("error"),
        "compile_seconds": report.compile_seconds,
        "saved_seconds": report.saved_seconds,
        "wall_seconds": report.wall_seconds,
    }


def module_document(module: Module) -> Document:
    """One of ``modules[]``."""
    return {
        "module": module.module,
        "key": module.key,
        "outcome": module.outcome,
        "reason": module.reason,
        "detail": module.detail,
        "compile_seconds": module.compile_seconds,
        "retrieval_seconds": module.retrieval_seconds,
        "saved_seconds": module.saved_seconds,
        "trace_seconds": module.trace_seconds,
        "lower_seconds": module.lower_seconds,
        "size_bytes": module.size_bytes,
        "function": module.function,
        "file": module.file,
        "line": module.line,
        "arguments": [
            {"name": a.name, "dtype": a.dtype, "shape": list(a.shape)} for a in module.arguments
        ],
        "occurrences": module.occurrences,
        "process": module.process,
        "counted": module.counted,
        "cache_dir": module.cache_dir,
        "tuning": module.tuning,
        "cause": module.cause,
    }


def _function_document(function: Function) -> Document:
    return {
        "function": function.function,
        "kind": function.kind,
        "file": function.file,
        "line": function.line,
        "signatures": function.signatures,
        "compiles": function.compiles,
        "compile_seconds": function.compile_seconds,
        "varies": list(function.varies),
    }


def report_page(report: Report, *, width: int, color: bool, unfolded: bool = False) -> str:
    """The report for people, ``width`` columns wide at the most in its table.

    Args:
        unfolded: list JAX's own operations one by one, too.
    """
    folded = () if unfolded else [m for m in report.modules if _folds(m)]
    shown = [m for m in report.modules if m not in folded]
    parts = [headline(report)]
    if shown:
        parts.append(_modules_table(report, shown, width=width, color=color))
    if folded:
        parts.append(_folded_line(folded))
    parts.extend(_remarks(report))
    return "\n".join(parts)


def headline(report: Report) -> str:
    """The line that people paste: ``4 of 6 hits · 0.7 s compiling · 1.6 s saved``."""
    if not report.compile_requests:
        return "no compiles"
    return (
        f"{report.count('hit')} of {report.compile_requests} hits · "
        f"{format_duration(report.compile_seconds)} compiling · "
        f"{format_duration(max(0.0, report.saved_seconds))} saved"
    )


def _folds(module: Module) -> bool:
    return module.is_helper and module.outcome in ("hit", "written", "skipped")


def _folded_line(modules: Sequence[Module]) -> str:
    counts = Counter[str]()
    for m in modules:
        counts[m.outcome] += m.occurrences
    each = ", ".join(
        format_count(counts[o], o) if o == "hit" else f"{counts[o]} {o}"
        for o in OUTCOMES
        if counts[o]
    )
    some = format_count(counts.total(), "helper")
    return f"and {some} of JAX, such as {printable(modules[0].module)}: {each} (--all lists them)"


def _modules_table(report: Report, modules: Sequence[Module], *, width: int, color: bool) -> str:
    columns = [
        Column("MODULE", elastic=True),
        Column("SOURCE", elastic=True),
        Column("OUTCOME", styles=_STYLES),
        Column("COMPILE", right=True),
        Column("SIZE", right=True),
        Column("WHY", elastic=True, cut="end"),
    ]
    several = len({m.process for m in report.modules}) > 1
    if several:
        columns.insert(0, Column("PROCESS", right=True))
    pids = {p.process: str(p.pid) for p in report.processes}
    order = {outcome: rank for rank, outcome in enumerate(reversed(OUTCOMES))}
    rows = [
        [
            *([pids.get(m.process, "")] if several else []),
            printable(m.module) + (f" ×{m.occurrences}" if m.occurrences > 1 else ""),
            _source(m),
            "interrupted" if m.reason == "interrupted" else m.outcome,
            "" if m.compile_seconds is None else format_duration(m.compile_seconds),
            "" if m.size_bytes is None else format_size(m.size_bytes),
            _why(m),
        ]
        for m in sorted(modules, key=lambda m: (order[m.outcome], -(m.compile_seconds or 0.0)))
    ]
    return render_table(columns, rows, width=width, color=color)


def _source(module: Module) -> str:
    if module.file is None or module.is_helper:
        return ""
    name = printable(os.path.basename(module.file))
    return name if module.line is None else f"{name}:{module.line}"


def _why(module: Module) -> str:
    if module.outcome == "hit" and module.retrieval_seconds is None:
        return "there already"
    if module.outcome == "hit":
        return f"retrieved in {1000 * (module.retrieval_seconds or 0):.0f} ms"
    if module.outcome == "written":
        why = "untuned" if module.tuning == "untuned" else module.cause or ""
    else:
        why = f"{module.reason}: {module.detail}" if module.detail else module.reason
    return printable(" ".join(why.split()))


def _remarks(report: Report) -> Iterator[str]:
    for note in report.notes:
        yield f"note: {printable(note)}"
    if report.timed_out:
        yield "note: stopped because the time was up"
    if report.interrupted:
        yield "note: interrupted; the report holds what was known by then"
    if report.script_exit_code < 0:
        yield f"note: the program was ended by signal {-report.script_exit_code}"
    elif report.script_exit_code:
        yield f"note: the program ended with exit code {report.script_exit_code}"
