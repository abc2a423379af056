"""``bug-report`` as a view: Markdown for an issue."""

from collections import Counter
from collections.abc import Iterator, Mapping

from jaxcache.cache.doctor.bug_report import BugReport
from jaxcache.render.document import fields_of, to_document, versioned
from jaxcache.render.view import Line, View


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
