"""``seal`` as a view."""

from collections import Counter
from collections.abc import Iterator
from operator import itemgetter
from typing import Any

from jaxcache.cache.seal import SealPlan, SealResult
from jaxcache.render.document import fields_of
from jaxcache.render.view import Column, View
from jaxcache.units import format_command, format_count, format_size


def seal_view(plan: SealPlan, result: SealResult | None) -> View:
    """Return the view of ``seal``; without a result, of what would be rewritten."""
    skipped = plan.skipped if result is None else result.skipped
    before = sum(s.entry.size_bytes for s in result.sealed) if result else None
    todo = (
        [(s.entry, s.size_bytes_after) for s in result.sealed]
        if result
        else [(e, None) for e in plan.todo]
    )
    sealed = [
        {"key": e.key, "codec": e.codec, "size_bytes": e.size_bytes, "size_bytes_after": after}
        for e, after in todo
    ]
    failed = result.failed if result else ()
    lists: dict[str, list[dict[str, Any]]] = {
        "sealed": sealed,
        "skipped": [{"key": e.key, "size_bytes": e.size_bytes, "reason": r} for e, r in skipped],
        "failed": [{"key": e.key, "size_bytes": e.size_bytes, "reason": r} for e, r in failed],
        "problems": [fields_of(p) for p in (result.problems if result else ())],
    }
    outcomes = {name: name.removesuffix("s") if name == "problems" else name for name in lists}
    word = "sealed" if result else "todo"
    rows: list[tuple[Any, ...]] = [
        (word, r["key"], r["size_bytes"], r["size_bytes_after"]) for r in sealed
    ]
    rows += [("failed", r["key"], r["size_bytes"], r["reason"]) for r in lists["failed"]]
    rows += [(p["kind"], p["key"] or p["file"], None, p["detail"]) for p in lists["problems"]]
    summary = {
        "sealed": len(sealed),
        "skipped": len(skipped),
        "size_bytes_before": before,
        "size_bytes_after": before - result.saved_bytes if result and before else before,
        "saved_bytes": result.saved_bytes if result else None,
    }
    return View(
        {
            "cache_dir": plan.cache_dir,
            "dry_run": result is None,
            "level": plan.level,
            **lists,
            "summary": summary,
        },
        rows,
        [Column("", itemgetter(n)) for n in range(4)],
        keys=[e.key for e, _ in todo],
        records=({"outcome": outcomes[n], **row} for n, some in lists.items() for row in some),
        page=(),
        notes=_summary(plan, result),
    )


def _summary(plan: SealPlan, result: SealResult | None) -> Iterator[str]:
    skipped = plan.skipped if result is None else result.skipped
    reasons = Counter(reason for _, reason in skipped)
    kept = ", ".join(f"{n:,} {reason}" for reason, n in sorted(reasons.items()))
    if result is None:
        line = plan.summary
    else:
        before = sum(s.entry.size_bytes for s in result.sealed)
        line = f"sealed {format_count(len(result.sealed), 'entry')}"
        if not result.sealed:
            line = "nothing was sealed" if result.failed or result.problems else "nothing to seal"
        if before:
            saved = result.saved_bytes
            word = "saved of" if saved >= 0 else "of checksums added to"
            line += f" ({format_size(abs(saved))} {word} {format_size(before)})"
    yield line + (f"; unchanged: {kept}" if kept else "")
    if result and result.sealed:
        load = format_command("verify --level load", plan.cache_dir)
        yield f"JAX will notice later damage to them; to look for earlier damage: {load}"
    if result and result.failed:
        why = ", ".join(sorted({reason for _, reason in result.failed}))
        yield f"{len(result.failed):,} not sealed, because they could not be written: {why}"
    unreadable = sum(p.kind == "unreadable" for p in result.problems) if result else 0
    if unreadable:
        yield f"{unreadable:,} not sealed, because they could not be read"
    if result and (damaged := len(result.problems) - unreadable):
        fix = format_command("verify --fix", plan.cache_dir)
        yield f"{damaged:,} damaged and not sealed; to repair them: {fix}"
