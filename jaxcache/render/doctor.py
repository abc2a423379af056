"""``doctor`` as a document, TSV and a page for people."""

from collections.abc import Iterator
from dataclasses import asdict

from jaxcache.cache.doctor.examine import Diagnosis
from jaxcache.cache.doctor.findings import Finding
from jaxcache.entry.names import printable
from jaxcache.render.document import Document, envelope
from jaxcache.render.prose import labelled
from jaxcache.render.table import Column, render_table
from jaxcache.units import format_count

#: Files that the page for people names per finding.
_SHOWN_FILES = 3
_STYLES = {"problem": "\x1b[31m", "note": "\x1b[1m"}


def doctor_document(diagnosis: Diagnosis) -> Document:
    """What ``doctor --json`` prints."""
    facts = diagnosis.facts
    mine = facts.interpreter
    return {
        **envelope(facts.cache.path),
        "interpreter": None
        if mine is None
        else {k: v for k, v in asdict(mine).items() if k != "flags"},
        "no_jax": diagnosis.no_jax,
        "settings": [asdict(s) for s in facts.settings],
        "entries": len(facts.cache.entries),
        "decoded": len(facts.cache.contents),
        "findings": [finding_document(f) for f in diagnosis.findings],
        "mended": list(diagnosis.mended),
    }


def finding_document(finding: Finding) -> Document:
    """One finding, as in ``findings[]``."""
    return {
        "trap": finding.trap,
        "severity": finding.severity,
        "seen": printable(finding.seen),
        "cost": finding.cost,
        "fix": printable(finding.fix),
        "mendable": finding.mend is not None,
        "files": [printable(f) for f in finding.files],
    }


def doctor_tsv(diagnosis: Diagnosis) -> Iterator[str]:
    """One line per finding: severity, trap, what was seen, the cost, the fix."""
    for f in diagnosis.findings:
        yield "\t".join((f.severity, f.trap, printable(f.seen), f.cost, printable(f.fix)))


def doctor_page(diagnosis: Diagnosis, *, width: int, color: bool, verbose: bool = False) -> str:
    """A page for people, ``width`` columns wide at the most where it can be.

    Findings come first, problems before notes; then the settings that somebody has changed, or
    all of them with ``verbose``.
    """
    problems = [f for f in diagnosis.findings if f.severity == "problem"]
    notes = [f for f in diagnosis.findings if f.severity != "problem"]
    several = len(diagnosis.facts.cache.entries) > 1
    count = format_count(len(problems), "problem") if problems else "no problem"
    if notes:
        count += f", {format_count(len(notes), 'note')}"
    parts = [f"{_heading(diagnosis)}\n{count} found"]
    for finding in (*problems, *notes):
        parts.append(_finding(finding, name_files=several, width=width, color=color))
    parts.extend(f"mended: {printable(sentence)}" for sentence in diagnosis.mended)
    parts.append(_settings(diagnosis, width=width, color=color, verbose=verbose))
    return "\n\n".join(parts)


def _finding(finding: Finding, *, name_files: bool, width: int, color: bool) -> str:
    style, plain = (_STYLES[finding.severity], "\x1b[0m") if color else ("", "")
    lines = [
        f"{style}{finding.severity}{plain}: {finding.trap}",
        labelled("seen", printable(finding.seen), width=width),
        labelled("cost", finding.cost, width=width),
        f"  fix   {printable(finding.fix)}",  # unbroken: it is copied
    ]
    if finding.files and name_files:
        shown = ", ".join(map(printable, finding.files[:_SHOWN_FILES]))
        more = len(finding.files) - _SHOWN_FILES
        shown += f" and {more:,} more" if more > 0 else ""
        lines.append(labelled("files", shown, width=width))
    return "\n".join(lines)


def _heading(diagnosis: Diagnosis) -> str:
    facts, mine = diagnosis.facts, diagnosis.facts.interpreter
    cache = facts.cache
    lines = [
        f"{printable(cache.path)}: "
        + (format_count(len(cache.entries), "entry") if cache.exists else "does not exist yet")
    ]
    if len(cache.contents) < len(cache.entries):
        lines[0] += f", of which {len(cache.contents):,} were decoded"
    if mine:
        lines.append(
            f"{mine.executable}: Python {mine.python_version}, jax {mine.jax_version}, "
            f"jaxlib {mine.jaxlib_version}, {mine.written_codec}"
        )
    elif diagnosis.no_jax:
        lines.append(f"{diagnosis.no_jax}; checks that need jax were skipped")
    return "\n".join(lines)


def _settings(diagnosis: Diagnosis, *, width: int, color: bool, verbose: bool) -> str:
    told = diagnosis.facts.settings
    shown = [s for s in told if verbose or s.origin != "default"]
    rest = "" if verbose else "; --verbose lists all settings"
    if not shown:
        return f"every setting of JAX's cache has its default{rest}"
    columns = [
        Column("SETTING", elastic=True, least=32),
        Column("VALUE", elastic=True),
        Column("FROM", elastic=True),
    ]
    rows = [
        [s.name, "not set" if s.value is None else printable(str(s.value)), printable(s.origin)]
        for s in shown
    ]
    table = render_table(columns, rows, width=width, color=color)
    if len(shown) < len(told):
        table += f"\nother settings have their default{rest}"
    return table
