"""The removals of ``prune`` and ``rm`` as a view."""

from collections.abc import Iterator, Sequence

from jaxcache.cache.prune.plan import PrunePlan, plan_notes
from jaxcache.cache.prune.removal import (
    Execution,
    Removal,
    count_entries,
    freed_bytes,
    lost_compile_seconds,
)
from jaxcache.render.columns import removal_name, size_column, used_column
from jaxcache.render.view import Block, Column, Table, View
from jaxcache.units import NS_PER_SECOND, format_compile

#: Rows of a plan that a terminal shows.
_SHOWN_ROWS = 40
_LIVE_SECONDS = 60
#: What a terminal shows of a reason that names an option; JSON and pipes get the reason itself.
_WHY = {
    "max-size": "over --max-size",
    "max-entries": "over --max-entries",
    "keep-last": "beyond --keep-last",
    **{rule: f"by --{rule}" for rule in ("unused-for", "older-than", "used-since")},
}


def prune_view(
    plan: PrunePlan,
    done: Execution | None,
    *,
    now_ns: int,
    lasting: bool = False,
    listed: bool = True,
) -> View:
    """Return the view of ``prune`` and ``rm``.

    Args:
        done: what became of the plan; None for a dry run.
        lasting: explain how to keep a limit of the size from now on.
        listed: list the removals on a terminal; not if the confirmation has listed them.
    """
    removed = plan.removals if done is None else done.removed
    freed = freed_bytes(removed)
    document = {
        "cache_dir": plan.cache_dir,
        "dry_run": done is None,
        "policy": plan.policy,
        "removed": removed,
        "kept": plan.kept + count_entries(plan.removals) - count_entries(removed),
        "freed_bytes": freed,
        "size_bytes_before": plan.size_bytes_before,
        "size_bytes_after": plan.size_bytes_before - freed,
        "lost_compile_seconds": lost_compile_seconds(removed),
        "protected": plan.protected,
        "held": plan.held,
        "evidence": plan.evidence,
        "unmet": plan.unmet,
        "spared": done.spared if done else (),
        "longest_lock_seconds": done.longest_hold_seconds if done else None,
    }
    page: list[Block] = [removals_table(removed, now_ns)] if removed and listed else []
    if done is None and plan.later:
        page += ["too young now; when they are old enough, this command will remove:"]
        page += [removals_table(plan.later, now_ns)._replace(more="")]
    return View(
        document,
        removed,
        _columns(now_ns),
        keys=(r.key for r in removed),
        page=page,
        notes=[*_notes(plan, done, removed), *(keep_bound_note(plan) if lasting else ())],
    )


def _columns(now_ns: int) -> Sequence[Column]:
    return [
        Column("KEY", lambda r: r.key or r.file.name, removal_name, elastic=True, least=16),
        size_column(lambda r: r.size_bytes),
        Column("COMPILE", lambda r: r.compile_seconds, _compile, right=True),
        used_column(now_ns),
        Column("WHY", lambda r: r.reason, lambda r: _WHY.get(r.reason, r.reason)),
    ]


def _compile(removal: Removal) -> str:
    unknown = removal.compile_seconds is None and removal.kind != "entry"
    return "" if unknown else format_compile(removal.compile_seconds)


def removals_table(removals: Sequence[Removal], now_ns: int) -> Table:
    """Return a table of what is removed and why."""
    return Table(_columns(now_ns), removals, limit=_SHOWN_ROWS, more="; --json lists all")


def _notes(plan: PrunePlan, done: Execution | None, removed: Sequence[Removal]) -> Iterator[str]:
    yield from plan_notes(plan)
    for spared in done.spared if done else ():
        if spared.why == "failed":
            yield f"{spared.removal.file.name}: {spared.detail}"
    yield plan.summary(removed, "would remove" if done is None else "removed")


def keep_bound_note(plan: PrunePlan) -> Iterator[str]:
    """Yield how to keep a bound of the size, which ``prune`` meets only once."""
    if plan.options and (most := plan.options.max_size_bytes):
        yield (
            "the cache can grow again; to keep the limit, run this command with --yes every "
            f"night, or run JAX with JAXCACHE_LIVE=1 JAXCACHE_LIVE_MAX_SIZE={most}, or with "
            f"JAX_COMPILATION_CACHE_MAX_SIZE={most} (JAX needs the package filelock for it)"
        )


def warn_of_young(plan: PrunePlan, now_ns: int) -> Iterator[str]:
    """Warn of files so young that whoever wrote them may still need them."""
    young = sum(now_ns - r.file.mtime_ns < _LIVE_SECONDS * NS_PER_SECOND for r in plan.removals)
    if young:
        yield (
            f"warning: {young} of these were written less than {_LIVE_SECONDS} s ago; a program "
            "that is compiling now can fail without them (the default --grace 60s keeps them)"
        )
