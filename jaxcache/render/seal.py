"""``seal`` as a document, TSV, and text for people."""

from collections import Counter
from collections.abc import Iterator

from jaxcache.cache.seal import SealPlan, SealResult
from jaxcache.entry.names import printable
from jaxcache.render.document import Document, envelope, problem_document
from jaxcache.units import format_size


def seal_document(plan: SealPlan, result: SealResult | None) -> Document:
    """Build the document of ``seal --json``; of a plan alone, with what will be rewritten."""
    skipped = plan.skipped if result is None else result.skipped
    before = sum(s.entry.size_bytes for s in result.sealed) if result else None
    return {
        **envelope(plan.cache_dir),
        "dry_run": result is None,
        "level": plan.level,
        "sealed": [
            {
                "key": printable(e.key),
                "codec": e.codec,
                "size_bytes": e.size_bytes,
                "size_bytes_after": after,
            }
            for e, after in (
                [(s.entry, s.size_bytes_after) for s in result.sealed]
                if result
                else [(e, None) for e in plan.todo]
            )
        ],
        "skipped": [
            {"key": printable(e.key), "size_bytes": e.size_bytes, "reason": reason}
            for e, reason in skipped
        ],
        "failed": [
            {"key": printable(e.key), "size_bytes": e.size_bytes, "reason": reason}
            for e, reason in (result.failed if result else ())
        ],
        "problems": [problem_document(p) for p in result.problems] if result else [],
        "summary": {
            "sealed": len(result.sealed) if result else len(plan.todo),
            "skipped": len(skipped),
            "size_bytes_before": before,
            "size_bytes_after": before - result.saved_bytes if result and before else before,
            "saved_bytes": result.saved_bytes if result else None,
        },
    }


def seal_records(plan: SealPlan, result: SealResult | None) -> Iterator[Document]:
    """Build the lines of ``seal --jsonl``: the document's rows, each with its ``outcome``."""
    document = seal_document(plan, result)
    for outcome, rows in (
        ("sealed", "sealed"),
        ("skipped", "skipped"),
        ("failed", "failed"),
        ("problem", "problems"),
    ):
        for row in document[rows]:
            yield {"outcome": outcome, **row}


def seal_tsv(plan: SealPlan, result: SealResult | None) -> Iterator[str]:
    """One line per entry: what became of it, key, bytes before, bytes after or the problem."""
    for e in plan.todo if result is None else ():
        yield f"todo\t{printable(e.key)}\t{e.size_bytes}\t"
    for s in result.sealed if result else ():
        yield f"sealed\t{printable(s.entry.key)}\t{s.entry.size_bytes}\t{s.size_bytes_after}"
    for e, reason in result.failed if result else ():
        yield f"failed\t{printable(e.key)}\t{e.size_bytes}\t{reason}"
    for p in result.problems if result else ():
        yield f"{p.kind}\t{printable(p.key or p.file)}\t\t{printable(p.detail)}"


def seal_summary(plan: SealPlan, result: SealResult | None) -> Iterator[str]:
    """Summarize the result."""
    skipped = plan.skipped if result is None else result.skipped
    reasons = Counter(reason for _, reason in skipped)
    kept = ", ".join(f"{n:,} {reason}" for reason, n in sorted(reasons.items()))
    if result is None:
        size = format_size(sum(e.size_bytes for e in plan.todo))
        line = f"would rewrite {len(plan.todo):,} entries of {size} at level {plan.level}"
    else:
        before = sum(s.entry.size_bytes for s in result.sealed)
        line = f"sealed {len(result.sealed):,} entries"
        if before:
            saved = result.saved_bytes
            word = "saved" if saved >= 0 else "for their checksums"
            line += f"; {format_size(abs(saved))} {word} of {format_size(before)}"
    yield line + (f"; left as they are: {kept}" if kept else "")
    if result and result.failed:
        why = ", ".join(sorted({reason for _, reason in result.failed}))
        yield f"{len(result.failed):,} not sealed, because they could not be written: {why}"
    unreadable = sum(p.kind == "unreadable" for p in result.problems) if result else 0
    if unreadable:
        yield f"{unreadable:,} not sealed, because they could not be read"
    if result and (unsound := len(result.problems) - unreadable):
        yield f"{unsound:,} not sound and not sealed; see jaxcache verify --fix"
