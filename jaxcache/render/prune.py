"""The removals of ``prune`` and ``rm`` as JSON, TSV and a table."""

from collections.abc import Iterable, Iterator, Sequence

from jaxcache.cache.prune.plan import PrunePlan
from jaxcache.cache.prune.removal import (
    Execution,
    Hold,
    Removal,
    Spared,
    freed_bytes,
    lost_compile_seconds,
)
from jaxcache.entry.names import printable
from jaxcache.render.document import Document, envelope
from jaxcache.render.table import Column, render_table, short_key
from jaxcache.units import (
    format_ago,
    format_compile,
    format_count,
    format_duration,
    format_size,
    rfc3339,
)


def prune_document(plan: PrunePlan, done: Execution | None) -> Document:
    """Build the document of ``prune --json`` and ``rm --json``.

    Args:
        done: what became of the plan; None for a dry run.
    """
    removed = plan.removals if done is None else done.removed
    freed = freed_bytes(removed)
    return {
        **envelope(plan.cache_dir),
        "dry_run": done is None,
        "policy": plan.policy,
        "removed": [removal_document(r) for r in removed],
        "kept": plan.kept + _entries(plan.removals) - _entries(removed),
        "freed_bytes": freed,
        "size_bytes_before": plan.size_bytes_before,
        "size_bytes_after": plan.size_bytes_before - freed,
        "lost_compile_seconds": lost_compile_seconds(removed),
        "protected": plan.protected,
        "held": dict(plan.held),
        "unmet": list(plan.unmet),
        "spared": [_spared_document(s) for s in (done.spared if done else ())],
        "longest_lock_seconds": done.longest_hold_seconds if done else None,
    }


def removal_document(removal: Removal) -> Document:
    """One thing that goes; ``size_bytes`` counts the ``-atime`` file of an entry."""
    return {
        "key": removal.key and printable(removal.key),
        "file": printable(removal.file.name),
        "kind": removal.subject,
        "size_bytes": removal.size_bytes,
        "compile_seconds": removal.compile_seconds,
        "last_used_at": rfc3339(removal.last_used_ns),
        "reason": removal.reason,
    }


def _spared_document(spared: Spared) -> Document:
    return {
        "key": spared.removal.key and printable(spared.removal.key),
        "file": printable(spared.removal.file.name),
        "why": spared.why,
        "detail": spared.detail,
    }


def _entries(removals: Iterable[Removal]) -> int:
    return sum(r.subject == "entry" for r in removals)


def removals_tsv(removals: Iterable[Removal]) -> Iterator[str]:
    """One line each: key (or file), size in bytes, compile seconds, last use, reason."""
    for r in removals:
        seconds = "" if r.compile_seconds is None else f"{r.compile_seconds:g}"
        used = rfc3339(r.last_used_ns)
        yield f"{printable(_name(r))}\t{r.size_bytes}\t{seconds}\t{used}\t{r.reason}"


def removals_table(
    removals: Sequence[Removal], *, now_ns: int, width: int, color: bool, limit: int
) -> str:
    """A table of what goes and why; beyond ``limit`` rows a line says how many more."""
    columns = [
        Column("KEY", elastic=True),
        Column("SIZE", right=True),
        Column("COMPILE", right=True),
        Column("USED", right=True),
        Column("WHY"),
    ]
    rows = [
        [
            _short_name(r),
            format_size(r.size_bytes),
            _compile(r),
            format_ago(r.last_used_ns, now_ns),
            r.reason,
        ]
        for r in removals[:limit]
    ]
    table = render_table(columns, rows, width=width, color=color)
    more = len(removals) - len(rows)
    return f"{table}\n… and {more:,} more (--json names all)" if more > 0 else table


def plan_summary(plan: PrunePlan, removed: Sequence[Removal], *, happened: bool) -> str:
    """One line: how much goes, what it frees, what it costs, what stays."""
    if not removed:
        size = format_size(plan.size_bytes_before)
        return f"nothing to remove: {format_count(plan.kept, 'entry')}, {size}"
    entries = _entries(removed)
    parts = [format_count(entries, "entry")] if entries or len(removed) == entries else []
    if others := len(removed) - entries:
        parts.append(f"{others:,} other {'file' if others == 1 else 'files'}")
    freed = freed_bytes(removed)
    seconds = [r.compile_seconds for r in removed if r.subject == "entry"]
    unknown = bool(seconds) and set(seconds) == {None}
    lost = "an unknown time" if unknown else _lost(lost_compile_seconds(removed))
    kept = plan.kept + _entries(plan.removals) - entries
    verb, losing = ("removed", "losing") if happened else ("would remove", "would lose")
    return (
        f"{verb} {' and '.join(parts)}: {format_size(freed)} freed, "
        f"{losing} {lost} of compiling; "
        f"{format_count(kept, 'entry')} and {format_size(plan.size_bytes_before - freed)} stay"
    )


def _lost(seconds: float) -> str:
    """Print the sum of header seconds, which are 0 for every compile under a second."""
    return format_duration(seconds) if seconds else "under a second each"


def plan_notes(plan: PrunePlan) -> Iterator[str]:
    """Bounds that cannot be met, and what stays although a rule or bound names it, with why."""
    holds = ", ".join(_hold(plan, why, count) for why, count in plan.held.items())
    if not plan.unmet and plan.protected:
        yield f"not removed: {holds or format_count(plan.protected, 'entry')}"
    for reason in plan.unmet:
        bound = "the bound"
        if plan.options and reason == "max-size":
            bound = format_size(plan.options.max_size_bytes or 0)
        elif plan.options:
            bound = format_count(plan.options.max_entries or 0, "entry")
        yield f"cannot reach {bound}: {holds or 'nothing else may be removed'}"


def _hold(plan: PrunePlan, why: Hold, count: int) -> str:
    entries = f"{format_count(count, 'entry')} {'is' if count == 1 else 'are'}"
    if why == "kept":
        return f"{entries} kept by --keep"
    if why == "pinned":
        return f"{entries} pinned (jaxcache pin lists them)"
    seconds = plan.options.grace_seconds if plan.options else 0
    grace = f"{seconds:g} s" if seconds < 120 else format_duration(seconds)
    return f"{entries} younger than {grace} (--grace 0s lets them go)"


def _name(removal: Removal) -> str:
    return removal.key or removal.file.name


def _short_name(removal: Removal) -> str:
    if not removal.key:
        return printable(removal.file.name)
    return short_key(removal.module, removal.key.removeprefix(f"{removal.module}-"))


def _compile(removal: Removal) -> str:
    unknown = removal.compile_seconds is None and removal.subject != "entry"
    return "" if unknown else format_compile(removal.compile_seconds)
