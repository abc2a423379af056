"""Recipes as views of `ls` and `show`, and `compile` as a view."""

import math
from collections.abc import Iterator, Sequence

from jaxcache.cache.recipe import Environment, RecipeFile, RecipeRow
from jaxcache.render import columns as render_columns
from jaxcache.render.view import Column, Document, Line, Table, View
from jaxcache.units import format_count, format_duration, format_size
from jaxcache.warm.compiling.worker import COMPILE_OUTCOMES, CompileReport, CompileResult


def listing_view(file: RecipeFile, listed: Sequence[RecipeRow]) -> View:
    """Return the view of ``ls`` and ``show`` for a recipe."""
    columns = [
        render_columns.key_column(lambda x: x.key),
        render_columns.size_column(lambda x: x.bytecode_bytes, "BYTECODE"),
        render_columns.seconds_column(lambda x: x.request.compile_seconds, _seconds),
        Column("DEVICES", text=lambda x: str(len(x.request.device_ids)), right=True),
        render_columns.text_column("PLATFORM", lambda x: x.environment.platform),
        Column("SOURCE", text=_source, elastic=True, cut="end"),
        Column(
            "TROUBLE",
            _trouble,
            _trouble if any(map(_trouble, listed)) else None,
            elastic=True,
            style="red",
        ),
    ]
    return View(
        _document(file, listed),
        listed,
        columns,
        [x.key for x in listed],
        records=listed,
        page=[
            *([Table(columns, listed)] if listed else []),
            *_environments(file),
            _footer(file, listed),
        ],
        notes=[f"note: {line}" for line in file.recipe.notes],
    )


def _seconds(seconds: float | None) -> str:
    return "?" if seconds is None else format_duration(seconds)


def _document(file: RecipeFile, listed: Sequence[RecipeRow]) -> Document:
    return {
        "cache_dir": file.path,
        "recipe": {
            "size_bytes": file.size_bytes,
            "digest": file.digest,
            "environments": file.recipe.environments,
            "notes": file.recipe.notes,
        },
        "modules": listed,
        "summary": {
            "modules": len(file.recipe.requests),
            "bytecode_bytes": sum(x.bytecode_bytes for x in listed),
            "compile_seconds": math.fsum(x.request.compile_seconds or 0.0 for x in listed),
        },
    }


def _source(listed: RecipeRow) -> str:
    request = listed.request
    return f"{request.function} ({request.file}:{request.line})" if request.function else ""


def _trouble(listed: RecipeRow) -> str:
    return ", ".join([*([listed.refusal] if listed.refusal else []), *listed.request.doubts])


def _footer(file: RecipeFile, listed: Sequence[RecipeRow]) -> str:
    """Return one line: ``18 modules, 14 s of compiling, 19.8 kB``."""
    recipe = file.recipe
    hidden = len(recipe.requests) - len(listed)
    return (
        f"{format_count(len(recipe.requests), 'module')}, "
        f"{format_duration(recipe.compile_seconds)} of compiling, {format_size(file.size_bytes)}"
        + (f" ({hidden} not shown)" if hidden else "")
    )


def _environments(file: RecipeFile) -> Iterator[Line]:
    for number, environment in enumerate(file.recipe.environments):
        count = sum(r.environment == number for r in file.recipe.requests)
        yield from _environment_lines(environment, count)


def _environment_lines(e: Environment, count: int) -> Iterator[Line]:
    devices = format_count(e.device_count, f"{e.platform} device")
    process = f", process {e.process_id} of {e.process_count}" if e.process_count > 1 else ""
    made_by = f"jax {e.jax_version}, jaxlib {e.jaxlib_version}"
    yield Line(f"{format_count(count, 'module')} of {made_by}: {devices}{process}", "  ")
    flags = (*e.xla_flags, *e.libtpu_init_args, *e.argv_flags)
    for title, text in (
        ("recorded in", e.cache_dir),
        ("flags", " ".join(flags)),
        ("settings", " ".join(f"{n}={v}" for n, v in e.settings.items())),
        ("device", e.device_kind),
        ("platform", e.platform_version),
    ):
        if text and (title, text) != ("platform", e.platform):
            yield Line(" ".join(text.split()), f"    {title}: ")


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
        render_columns.text_column("OUTCOME", lambda m: m.outcome),
        render_columns.duration_column(lambda m: m.compile_seconds),
        render_columns.size_column(lambda m: m.size_bytes),
        render_columns.text_column("WHY", _why, elastic=True, cut="end"),
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
