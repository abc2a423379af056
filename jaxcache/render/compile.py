"""What ``compile`` did, as the document of the contract, as lines, and as a page for people."""

from collections.abc import Iterator

from jaxcache.entry.names import printable
from jaxcache.render.document import Document, envelope
from jaxcache.render.table import Column, render_table
from jaxcache.units import format_duration, format_size
from jaxcache.warm.replay.report import OUTCOMES, Compiled, CompileReport


def compile_document(report: CompileReport) -> Document:
    """What ``compile --json`` prints."""
    return {
        **envelope(report.cache_dir),
        "recipe": printable(report.recipe),
        "check": report.check,
        "modules": [compiled_document(m) for m in report.modules],
        "summary": {
            "requested": len(report.modules) + report.unreached,
            "written": report.count("written"),
            "already_cached": report.count("already-cached"),
            "missing": report.count("missing"),
            "failed": report.count("failed"),
            "refused": report.count("refused"),
            "unreached": report.unreached,
            "wall_seconds": report.wall_seconds,
            "compile_seconds": report.compile_seconds,
        },
        "notes": list(report.notes),
        "interrupted": report.interrupted,
    }


def compiled_document(module: Compiled) -> Document:
    """One of ``modules[]``."""
    return {
        "module": printable(module.module),
        "key": module.key,
        "outcome": module.outcome,
        "compile_seconds": module.compile_seconds,
        "recorded_key": module.recorded_key,
        "differs": list(module.differs),
        "moved": module.moved,
        "reason": module.reason,
        "detail": module.detail,
        "size_bytes": module.size_bytes,
        "function": module.function,
        "attempts": module.attempts,
        "doubts": list(module.doubts),
        "tuning": module.tuning,
    }


def compiled_tsv(report: CompileReport) -> Iterator[str]:
    """One line per module: key, outcome, compile seconds, size in bytes, why."""
    for m in report.modules:
        seconds = "" if m.compile_seconds is None else f"{m.compile_seconds:g}"
        size = "" if m.size_bytes is None else m.size_bytes
        name = printable(m.key or m.module)
        yield f"{name}\t{m.outcome}\t{seconds}\t{size}\t{printable(_why(m))}"


def compile_page(report: CompileReport, *, width: int, color: bool) -> str:
    """The report for people, ``width`` columns wide at the most in its table."""
    parts = []
    if report.modules:
        parts.append(_table(report, width=width, color=color))
    parts += [f"note: {printable(note)}" for note in report.notes]
    if report.interrupted:
        parts.append("note: interrupted; the same command goes on where this one stopped")
    parts.append(summary_line(report))
    return "\n".join(parts)


def _table(report: CompileReport, *, width: int, color: bool) -> str:
    columns = [
        Column("MODULE", elastic=True),
        Column("OUTCOME"),
        Column("COMPILE", right=True),
        Column("SIZE", right=True),
        Column("WHY", elastic=True),
    ]
    rank = {outcome: number for number, outcome in enumerate(reversed(OUTCOMES))}
    rows = [
        [
            printable(m.module),
            m.outcome,
            "" if m.compile_seconds is None else format_duration(m.compile_seconds),
            "" if m.size_bytes is None else format_size(m.size_bytes),
            printable(_why(m)),
        ]
        for m in sorted(
            report.modules, key=lambda m: (rank[m.outcome], -(m.compile_seconds or 0.0))
        )
    ]
    return render_table(columns, rows, width=width, color=color)


def _why(module: Compiled) -> str:
    said = [f"{module.reason}: {module.detail}"] if module.reason else []
    if module.moved:
        said.append("for this directory")
    elif module.differs:
        said.append(f"another key than recorded: {', '.join(module.differs)}")
    if module.doubts:
        said.append(f"collected with doubts: {', '.join(module.doubts)}")
    return "; ".join(said)


def summary_line(report: CompileReport) -> str:
    """The line that people paste: ``18 modules: 12 written, 6 already cached; 8 s compiling``."""
    shown = [o for o in OUTCOMES if report.count(o) or o == "already-cached"]
    counts = [f"{report.count(o)} {o.replace('-', ' ')}" for o in shown]
    if report.unreached:
        counts.append(f"{report.unreached} not reached")
    return (
        f"{len(report.modules) + report.unreached} modules: {', '.join(counts)}; "
        f"{format_duration(report.compile_seconds)} compiling, "
        f"{format_duration(report.wall_seconds)} in all"
    )
