"""``doctor``, ``bug-report`` and ``diff`` as views."""

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from jaxcache.cache.diff import Diff, DiffEntry, DiffSide, sum_sizes
from jaxcache.cache.doctor.inputs import Finding
from jaxcache.cache.doctor.run_checks import BugReport, Diagnosis
from jaxcache.render import view
from jaxcache.render.columns import key_column, short_name
from jaxcache.render.warm import phases_line
from jaxcache.units import format_compile, format_count, format_size, join_some
from jaxcache.warm.report.report import Report

#: Files that the page for people names per finding.
_SHOWN_FILES = 3
_PHASES_PAGE = "https://github.com/jaxcache/jaxcache/blob/main/docs/phases.md"
_STYLES = {"problem": "red", "note": "bold"}


def doctor_view(diagnosis: Diagnosis, *, verbose: bool, run: Report | None = None) -> view.View:
    """Return the view of ``doctor``; a pipe gets the findings alone.

    Args:
        run: the report of the command that was run for it.
    """
    findings = diagnosis.findings
    rows = [(f.severity, f.trap, f.seen, f.cost, f.fix) for f in findings]
    notes = [f"{diagnosis.no_jax}; checks that need jax were skipped"] if diagnosis.no_jax else []
    headline = ""
    if diagnosis.exists or diagnosis.wrong:
        headline = count_findings(findings, diagnosis.no_jax)
        headline += "" if diagnosis.exists else " in the settings"
    if run and run.phase_seconds:
        parts = f"what each part is, and what shortens it: {_PHASES_PAGE}"
        notes = [f"{phases_line(run)}; {parts}", *notes]
    page = _page(diagnosis, verbose)
    return view.View(diagnosis, rows, records=findings, page=page, headline=headline, notes=notes)


def count_findings(findings: Sequence[Finding], no_jax: str | None = None) -> str:
    """Return how many problems and notes there are, and whether jax was missing for some checks."""
    problems = sum(f.severity == "problem" for f in findings)
    notes = len(findings) - problems
    count = format_count(problems, "problem") if problems else "no problem"
    count += f", {format_count(notes, 'note')}" if notes else ""
    return f"{'checked without jax: ' if no_jax else ''}{count} found"


def _page(diagnosis: Diagnosis, verbose: bool) -> Iterator[view.Block]:
    """Yield findings, problems before notes; then the settings that are not defaults."""
    yield from _heading(diagnosis)
    several = len(diagnosis.facts.cache.entries) > 1
    yield from _finding_lines(diagnosis.findings, name_files=several)
    yield ""
    yield from _settings(diagnosis, verbose)


def _heading(diagnosis: Diagnosis) -> Iterator[view.Line]:
    cache = diagnosis.facts.cache
    mine = diagnosis.facts.interpreter
    entries = len(cache.entries)
    decoded = len(cache.contents)
    line = format_count(entries, "entry")
    if not cache.exists:
        line = "not examined" if os.path.lexists(cache.path) else "does not exist yet"
    cut = decoded < entries - sum("empty" in e.problems for e in cache.entries)
    line += f", of which {decoded:,} were decoded" if cut else ""
    if cache.ledger_bytes:
        line += f", ledger {format_size(cache.ledger_bytes)}"
    yield view.Line(f"{cache.path}: {line}", "  cache   ")
    if mine:
        versions = f"jax {mine.jax_version}, jaxlib {mine.jaxlib_version}, {mine.written_codec}"
        line = f"{mine.executable}: Python {mine.python_version}, {versions}"
        yield view.Line(line, "  python  ")


def _finding_lines(findings: Sequence[Finding], *, name_files: bool) -> Iterator[view.Block]:
    for finding in findings:
        yield ""
        yield view.Line(f"{finding.severity}: {finding.trap}", style=_STYLES[finding.severity])
        yield view.Line(finding.seen, "  seen    ")
        yield view.Line(finding.cost, "  cost    ")
        yield view.Line(finding.fix, "  fix     ")
        if finding.upstream:
            yield view.Line(finding.upstream, "  reports ")
        if finding.files and name_files:
            names = join_some([*map(short_name, finding.files)], _SHOWN_FILES)
            yield view.Line(names, "  files   ")


def _settings(diagnosis: Diagnosis, verbose: bool) -> Iterator[view.Block]:
    settings = diagnosis.facts.settings
    shown = [s for s in settings if verbose or s.origin != "default"]
    hint = "" if verbose else "; --verbose lists all settings"
    if not shown:
        yield f"every setting of the cache has its default{hint}"
        return
    yield "settings" if verbose else "settings that differ from their defaults"
    for s in shown:
        value = "not set" if s.value is None else s.value
        yield view.Line(f"{s.name} = {value}  ({s.origin})", "  ")
    if len(shown) < len(settings):
        yield f"other settings have their default{hint}"


def bug_report_view(report: BugReport) -> view.View:
    """Return the view of ``bug-report``; a terminal and a pipe get the same Markdown."""
    document = view.fields_of(report)
    lines = list(_markdown(report))
    return view.View(
        document,
        ([line] for line in lines),
        records=[view.versioned(document)],
        page=[view.Line(line, whole=True) for line in lines],
    )


def _markdown(report: BugReport) -> Iterator[str]:
    versions = view.to_document(report.versions)
    packages = {n: v or "not installed" for n, v in versions.pop("packages").items()}
    yield from _table("jaxcache and its own packages", versions | packages)
    yield from _table("The Python that runs JAX", view.to_document(report.interpreter))
    changed = [s for s in report.settings if s.origin != "default"]
    values = {s.name: f"{s.value} ({s.origin})" for s in changed}
    yield from _table("Settings that differ from their defaults", values)
    cache = view.to_document(report.cache) or {"error": report.error}
    yield from _table("Cache", cache | cache.pop("problems", {}))
    counts = Counter((f.trap, f.severity) for f in report.findings)
    findings = {trap: f"{count} × {severity}" for (trap, severity), count in counts.items()}
    yield from _table("Findings of doctor", findings)


def _table(heading: str, rows: Mapping[str, object] | None) -> Iterator[str]:
    yield f"#### {heading}"
    yield ""
    yield from ("| | |", "|---|---|") if rows else ("none",)
    yield from (f"| {name} | {value} |" for name, value in (rows or {}).items())
    yield ""


#: A difference: the mark and the words for where it is, the key or file, what to show of both.
_Row = tuple[str, str, str, tuple[object, object], tuple[str, str]]


def diff_view(diff: Diff) -> view.View:
    """Return the view of ``diff``; ``cache_dir`` is the left side.

    Marks: ``<`` only left, ``>`` only right, ``!`` another executable, ``~`` other seconds only,
    ``x`` damaged.
    """
    sides = (("left", diff.left, diff.only_left), ("right", diff.right, diff.only_right))
    document = view.fields_of(diff) | {name: _side(side, only) for name, side, only in sides}
    records = [{"where": name, **view.fields_of(h)} for name, _, only in sides for h in only]
    records += [{"where": "both", **view.fields_of(p)} for p in diff.differing]
    keys = [h.key for h in (*diff.only_left, *diff.only_right)]
    rows = list(_rows(diff))
    columns = [
        view.Column("WHERE", lambda row: row[0], lambda row: row[1]),
        key_column(lambda row: row[2]),
        view.Column("SIZE", lambda row: row[3][0], lambda row: row[4][0], right=True),
        view.Column("COMPILE", lambda row: row[3][1], lambda row: row[4][1], right=True),
    ]
    return view.View(
        document,
        rows,
        columns,
        sorted(view.to_document(keys + [p.left.key for p in diff.differing])),
        records=records,
        page=() if diff.equal else [view.Table(columns, rows)],
        notes=[_summary(diff)],
    )


def _side(side: DiffSide, only: Sequence[DiffEntry]) -> view.Document:
    size_bytes, seconds = sum_sizes(only)
    return {
        "location": side.location,
        "entries": len(side.entries),
        "only_size_bytes": size_bytes,
        "only_compile_seconds": seconds,
        "damaged": side.damaged,
    }


def _rows(diff: Diff) -> Iterator[_Row]:
    for mark, where, side in (("x<", "left", diff.left), ("x>", "right", diff.right)):
        for p in side.damaged:
            yield mark, f"{where}: {p.kind}", p.file, (p.kind, p.detail), ("", "")
    for mark, where, entries in (("<", "left", diff.only_left), (">", "right", diff.only_right)):
        for h in entries:
            yield mark, where, h.key, (h.size_bytes, h.compile_seconds), _shown(h)
    for pair in diff.differing:
        left = pair.left
        right = pair.right
        values = (
            (left.size_bytes, right.size_bytes),
            (left.compile_seconds, right.compile_seconds),
        )
        shown = [", ".join(both) for both in zip(_shown(left), _shown(right), strict=True)]
        mark = "!" if pair.payload_differs else "~"
        yield mark, "both: differing", left.key, values, (shown[0], shown[1])


def _shown(held: DiffEntry) -> tuple[str, str]:
    return format_size(held.size_bytes), format_compile(held.compile_seconds)


def _summary(diff: Diff) -> str:
    """Return one line on how the sides differ, with what is at stake."""
    if diff.equal:
        return f"equal: {format_count(diff.same, 'entry')} on both sides"
    words = [f"{diff.same} the same"]
    for what, entries in (("left", diff.only_left), ("right", diff.only_right)):
        size_bytes, seconds = sum_sizes(entries)
        if entries:
            at_stake = f"{format_size(size_bytes)}, {format_compile(seconds)}"
            words.append(f"{len(entries)} only {what} ({at_stake})")
    alike = {e.program for e in diff.only_left} & {e.program for e in diff.only_right}
    if many := len(alike - {frozenset()}):
        words.append(
            f"{many} of each the same program with other compile options, as before JAX 0.11 in "
            "another directory: neither hits for the other"
        )
    if diff.differing:
        payloads = sum(p.payload_differs for p in diff.differing)
        hit = " with keys that hit in both" if diff.left.layout == "jax" else ""
        words.append(f"{len(diff.differing)}{hit} differ ({payloads} in their executables)")
    if damaged := len(diff.left.damaged) + len(diff.right.damaged):
        words.append(f"{damaged} damaged")
    return ", ".join(words)
