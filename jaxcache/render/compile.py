"""``compile`` as a view."""

from collections.abc import Iterator

from jaxcache.render.columns import duration_column, size_column, text_column
from jaxcache.render.view import Column, Table, View
from jaxcache.units import format_count, format_duration
from jaxcache.warm.compiling.plan import COMPILE_OUTCOMES, CompileReport, CompileResult

_RANK = {outcome: number for number, outcome in enumerate(reversed(COMPILE_OUTCOMES))}


def compile_view(report: CompileReport) -> View:
    """Return the view of ``compile``."""
    modules = report.modules
    document = {
        "cache_dir": report.cache_dir,
        "recipe": report.recipe,
        "check": report.check,
        "modules": modules,
        "summary": {
            "requested": len(modules) + report.unreached,
            **{outcome.replace("-", "_"): report.count(outcome) for outcome in COMPILE_OUTCOMES},
            "unreached": report.unreached,
            "wall_seconds": report.wall_seconds,
            "compile_seconds": report.compile_seconds,
        },
        "notes": report.notes,
        "interrupted": report.interrupted,
    }
    columns = [
        Column("KEY", lambda m: m.key or m.module, lambda m: m.module, elastic=True),
        text_column("OUTCOME", lambda m: m.outcome),
        duration_column(lambda m: m.compile_seconds),
        size_column(lambda m: m.size_bytes),
        text_column("WHY", _why, elastic=True, cut="end"),
    ]
    by_outcome = sorted(modules, key=lambda m: (_RANK[m.outcome], -(m.compile_seconds or 0.0)))
    return View(
        document,
        modules,
        columns,
        [m.key or m.module for m in modules],
        page=[Table(columns, by_outcome)] if by_outcome else (),
        notes=_notes(report),
    )


def _notes(report: CompileReport) -> Iterator[str]:
    yield from (f"note: {note}" for note in report.notes)
    if report.interrupted:
        yield "note: interrupted; run the same command again for the rest"
    yield _summary_line(report)


def _why(module: CompileResult) -> str:
    reasons = [f"{module.reason}: {module.detail}"] if module.reason else []
    if module.moved:
        reasons.append("for this directory")
    elif module.differs:
        reasons.append(f"another key than recorded: {', '.join(module.differs)}")
    if module.doubts:
        reasons.append(f"collected with doubts: {', '.join(module.doubts)}")
    return "; ".join(reasons)


def _summary_line(report: CompileReport) -> str:
    """Return the line that people paste: ``18 modules: 12 written, 6 already cached; 8 s …``."""
    shown = [o for o in COMPILE_OUTCOMES if report.count(o) or o == "already-cached"]
    counts = [f"{report.count(o)} {o.replace('-', ' ')}" for o in shown]
    if report.unreached:
        counts.append(f"{report.unreached} not reached")
    return (
        f"{format_count(len(report.modules) + report.unreached, 'module')}: {', '.join(counts)}; "
        f"{format_duration(report.compile_seconds)} compiling, "
        f"{format_duration(report.wall_seconds)} in all"
    )
