"""``verify`` as a document, TSV, and text for people."""

from collections import Counter
from collections.abc import Iterator

from jaxcache.cache.verify.examine import Verification
from jaxcache.cache.verify.quarantine import Restoration
from jaxcache.cache.verify.repair import Repair
from jaxcache.entry.names import parse_key, printable
from jaxcache.model import Problem
from jaxcache.render.document import Document, envelope, problem_document
from jaxcache.render.table import Column, render_table, short_key
from jaxcache.units import format_count

#: Findings that a terminal shows; the document holds them all.
_SHOWN_ROWS = 200


def verification_document(found: Verification, repair: Repair | None) -> Document:
    """Build the document of ``verify --json``."""
    return {
        **envelope(found.cache_dir),
        "level": found.level,
        "dry_run": repair.dry_run if repair else None,
        "checked": found.checked,
        "ok": found.ok,
        "proven": found.proven,
        "not_provable": found.ok - found.proven,
        "problems": [finding_document(p, repair) for p in found.problems],
    }


def finding_document(problem: Problem, repair: Repair | None) -> Document:
    """One finding, with what is done about it; null without ``--fix``, or where nothing can be."""
    return {**problem_document(problem), "action": repair.action(problem) if repair else None}


def verification_tsv(found: Verification, repair: Repair | None) -> Iterator[str]:
    """One line per finding: kind, file, action, detail, tab-separated."""
    for p in found.problems:
        action = (repair.action(p) if repair else None) or ""
        yield f"{p.kind}\t{printable(p.file)}\t{action}\t{printable(p.detail)}"


def verification_table(
    found: Verification, repair: Repair | None, *, width: int, color: bool
) -> str | None:
    """A table of what is wrong; None if nothing is."""
    failures = found.failures
    if not failures:
        return None
    columns = [Column("PROBLEM", style="red"), Column("FILE", elastic=True)]
    columns += [Column("ACTION")] if repair else []
    columns += [Column("DETAIL", elastic=True, cut="end")]
    rows = []
    for p in failures[:_SHOWN_ROWS]:
        action = [(repair.action(p) or "none")] if repair else []
        rows.append([p.kind, _short(p), *action, printable(p.detail)])
    table = render_table(columns, rows, width=width, color=color)
    hidden = len(failures) - len(rows)
    return f"{table}\n({hidden:,} more)" if hidden else table


def verification_summary(found: Verification, repair: Repair | None) -> Iterator[str]:
    """Summarize below the table; what cannot be proven is never called intact."""
    bad = found.checked - found.ok
    parts = [f"{format_count(found.checked, 'entry')} checked"]
    if found.level == "quick":
        parts.append(f"{found.ok:,} look right from outside (contents not read)")
    else:
        if found.proven:
            parts.append(f"{found.proven:,} intact")
        if unproven := found.ok - found.proven:
            parts.append(f"{unproven:,} no corruption found, not provable")
    if bad:
        parts.append(f"{bad:,} with problems")
    yield "; ".join(parts)
    kinds = Counter(p.kind for p in found.failures)
    if kinds:
        yield "problems: " + ", ".join(f"{n} {kind}" for kind, n in sorted(kinds.items()))
    if elsewhere := sum(p.kind == "not-loadable-here" for p in found.problems):
        yield f"{elsewhere:,} not loadable here, and left: for other devices, or another jaxlib"
    if legacy := sum(p.kind == "legacy-name" for p in found.problems):
        yield f"{legacy:,} that only JAX up to 0.4.30 reads: jaxcache prune --legacy removes them"
    if unsealed := sum(p.kind == "unsealed" for p in found.problems):
        yield f"{unsealed:,} unsealed: jaxcache seal lets JAX itself detect corruption"
    if repair is None:
        if any(kinds.values()):
            yield "put right what can be with: jaxcache verify --fix"
        return
    done = Counter(a for p in found.failures if (a := repair.action(p)))
    shown = ", ".join(f"{n} {action}" for action, n in sorted(done.items())) or "nothing to do"
    yield f"{'would: ' if repair.dry_run else 'done: '}{shown}"
    if "quarantine" in done and not repair.dry_run:
        yield "bring files back from quarantine with: jaxcache verify --restore"


def restoration_document(result: Restoration) -> Document:
    """Build the document of ``verify --restore --json``."""
    return {
        **envelope(result.cache_dir),
        "dry_run": result.dry_run,
        "restored": [
            {"key": printable(q.key), "file": printable(q.file), "size_bytes": q.info.size_bytes}
            for q in result.restored
        ],
        "left": [
            {"key": printable(q.key), "file": printable(q.info.name), "reason": reason}
            for q, reason in result.left
        ],
    }


def restoration_records(result: Restoration) -> Iterator[Document]:
    """Build the lines of ``verify --restore --jsonl``: the lists of the document, each row with its
    ``outcome``."""
    document = restoration_document(result)
    for outcome in ("restored", "left"):
        for row in document[outcome]:
            yield {"outcome": outcome, **row}


def restoration_tsv(result: Restoration) -> Iterator[str]:
    """One line per entry: restored or left, key, reason."""
    for q in result.restored:
        yield f"restored\t{printable(q.key)}\t"
    for q, reason in result.left:
        yield f"left\t{printable(q.key)}\t{reason}"


def _short(problem: Problem) -> str:
    """The file's name with the hash cut to what a KEY argument needs."""
    if problem.key is None:
        return printable(problem.file)
    key = parse_key(problem.key)
    return short_key(*key) if key else printable(problem.file)
