"""``doctor`` and ``bug-report`` as views."""

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from jaxcache.cache.doctor.inputs import Finding
from jaxcache.cache.doctor.run_checks import BugReport, Diagnosis
from jaxcache.layouts.torch.doctor import TorchDiagnosis
from jaxcache.render.columns import short_name
from jaxcache.render.view import Block, Line, View, fields_of, to_document, versioned
from jaxcache.render.warm import phases_line
from jaxcache.units import format_count, format_size, join_some
from jaxcache.warm.report.report import Report

#: Files that the page for people names per finding.
_SHOWN_FILES = 3
_STYLES = {"problem": "red", "note": "bold"}


def doctor_view(
    diagnosis: Diagnosis | TorchDiagnosis, *, verbose: bool, run: Report | None = None
) -> View:
    """Return the view of ``doctor``, also of torch's caches; a pipe gets the findings alone.

    Args:
        run: the report of the command that was run for it.
    """
    findings = diagnosis.findings
    rows = [(f.severity, f.trap, f.seen, f.cost, f.fix) for f in findings]
    if isinstance(diagnosis, TorchDiagnosis):
        return View(diagnosis, rows, records=findings, page=_torch_page(diagnosis))
    skipped = f"{diagnosis.no_jax}; checks that need jax were skipped"
    notes = [skipped] if diagnosis.no_jax else []
    page = _page(diagnosis, verbose, run)
    return View(diagnosis, rows, records=findings, page=page, notes=notes)


def _torch_page(diagnosis: TorchDiagnosis) -> Iterator[Block]:
    yield count_findings(diagnosis.findings)
    line = format_count(diagnosis.entries, "entry") if diagnosis.exists else "does not exist yet"
    yield Line(f"{diagnosis.cache_dir}: {line}", "  cache   ")
    for finding in diagnosis.findings:
        yield ""
        yield from finding_lines(finding, name_files=False)
    if set_ones := [s for s in diagnosis.settings if s.origin != "default"]:
        yield ""
        yield "settings that differ from their defaults"
        yield from (Line(f"{s.name} = {s.value}  ({s.origin})", "  ") for s in set_ones)


def count_findings(findings: Sequence[Finding], no_jax: str | None = None) -> str:
    """Return how many problems and notes there are, and whether jax was missing for some checks."""
    problems = sum(f.severity == "problem" for f in findings)
    notes = len(findings) - problems
    count = format_count(problems, "problem") if problems else "no problem"
    count += f", {format_count(notes, 'note')}" if notes else ""
    return f"{'checked without jax: ' if no_jax else ''}{count} found"


def _page(diagnosis: Diagnosis, verbose: bool, run: Report | None) -> Iterator[Block]:
    """Yield findings, problems before notes; then the settings that are not defaults."""
    exists = diagnosis.exists
    if exists or any(f.severity == "problem" for f in diagnosis.findings):
        without_cache = "" if exists else " in the settings"
        yield count_findings(diagnosis.findings, diagnosis.no_jax) + without_cache
    yield from _heading(diagnosis)
    if run and run.phase_seconds:
        yield Line(phases_line(run), "  start   ")
    several = len(diagnosis.facts.cache.entries) > 1
    for finding in diagnosis.findings:
        yield ""
        yield from finding_lines(finding, name_files=several)
    for sentence in diagnosis.mended:
        yield ""
        yield f"mended: {sentence}"
    yield ""
    yield from _settings(diagnosis, verbose)


def _heading(diagnosis: Diagnosis) -> Iterator[Line]:
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
    yield Line(f"{cache.path}: {line}", "  cache   ")
    if mine:
        versions = f"jax {mine.jax_version}, jaxlib {mine.jaxlib_version}, {mine.written_codec}"
        yield Line(f"{mine.executable}: Python {mine.python_version}, {versions}", "  python  ")


def finding_lines(finding: Finding, *, name_files: bool) -> Iterator[Line]:
    """Yield the lines of one finding."""
    yield Line(f"{finding.severity}: {finding.trap}", style=_STYLES[finding.severity])
    yield Line(finding.seen, "  seen    ")
    yield Line(finding.cost, "  cost    ")
    yield Line(finding.fix, "  fix     ")
    if finding.upstream:
        yield Line(finding.upstream, "  reports ")
    if finding.files and name_files:
        yield Line(join_some([*map(short_name, finding.files)], _SHOWN_FILES), "  files   ")


def _settings(diagnosis: Diagnosis, verbose: bool) -> Iterator[Block]:
    settings = diagnosis.facts.settings
    shown = [s for s in settings if verbose or s.origin != "default"]
    hint = "" if verbose else "; --verbose lists all settings"
    if not shown:
        yield f"every setting of JAX's cache has its default{hint}"
        return
    yield "settings" if verbose else "settings that differ from their defaults"
    for s in shown:
        value = "not set" if s.value is None else s.value
        yield Line(f"{s.name} = {value}  ({s.origin})", "  ")
    if len(shown) < len(settings):
        yield f"other settings have their default{hint}"


def bug_report_view(report: BugReport) -> View:
    """Return the view of ``bug-report``; a terminal and a pipe get the same Markdown."""
    document = fields_of(report)
    lines = list(_markdown(report))
    return View(
        document,
        ([line] for line in lines),
        records=[versioned(document)],
        page=[Line(line, whole=True) for line in lines],
    )


def _markdown(report: BugReport) -> Iterator[str]:
    versions = to_document(report.versions)
    packages = versions.pop("packages")
    yield from _table("Versions", versions | packages)
    yield from _table("The Python that runs JAX", to_document(report.interpreter))
    changed = [s for s in report.settings if s.origin != "default"]
    values = {s.name: f"{s.value} ({s.origin})" for s in changed}
    yield from _table("Settings that differ from their defaults", values)
    cache = to_document(report.cache) or {"error": report.error}
    yield from _table("Cache", cache | cache.pop("problems", {}))
    counts = Counter((f.trap, f.severity) for f in report.findings)
    findings = {trap: f"{count} × {severity}" for (trap, severity), count in counts.items()}
    yield from _table("Findings of doctor", findings)
    yield from _table("Last run that the ledger records", to_document(report.last_run))


def _table(heading: str, rows: Mapping[str, object] | None) -> Iterator[str]:
    yield f"#### {heading}"
    yield ""
    yield from ("| | |", "|---|---|") if rows else ("none",)
    yield from (f"| {name} | {value} |" for name, value in (rows or {}).items())
    yield ""
