"""`verify`, `seal`, `prune` and `rm` as views."""

import shlex
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from operator import itemgetter
from typing import Any

from jaxcache.cache.prune import removable
from jaxcache.cache.prune.plan import PrunePlan
from jaxcache.cache.seal import SealedEntry, SealPlan, SealResult
from jaxcache.cache.verify.repair import Repair, Restoration, plan_repair
from jaxcache.cache.verify.run_checks import Verification
from jaxcache.layouts import JAX
from jaxcache.layouts.base import Words
from jaxcache.model import Problem
from jaxcache.render import columns as render_columns
from jaxcache.render.move import unknown_format_lines
from jaxcache.render.view import Block, Column, Document, Table, View, fields_of
from jaxcache.units import NS_PER_SECOND, format_command, format_compile, format_count, format_size


def verification_view(
    verification: Verification, repair: Repair | None, words: Words = JAX.words
) -> View:
    """Return the view of ``verify``; to people, one line for each kind of problem."""
    actions = [repair.action(p) if repair else None for p in verification.problems]
    rows = [
        fields_of(p) | {"action": a} for p, a in zip(verification.problems, actions, strict=True)
    ]
    document = {
        "cache_dir": verification.cache_dir,
        "level": verification.level,
        "dry_run": repair.dry_run if repair else None,
        "checked": verification.checked,
        "ok": verification.ok,
        "proven": verification.proven,
        "not_provable": verification.ok - verification.proven,
        "problems": rows,
    }
    columns = [Column(n, itemgetter(n)) for n in ("kind", "file", "action", "detail")]
    failed = dict.fromkeys(p.key or p.file for p in verification.failures)
    return View(
        document,
        # One line for each file of a sound cache would hide what matters; the notes have the sum.
        [r for r in rows if r["kind"] != "unsealed"],
        columns,
        records=rows,
        keys=failed,
        page=problems_page(verification, repair),
        notes=_verification_notes(verification, repair, words),
    )


def problems_page(verification: Verification, repair: Repair | None) -> Iterator[Block]:
    """Yield a table with one row for each kind of problem, if there is any."""
    kinds: defaultdict[str, list[Problem]] = defaultdict(list)
    unknown = (p for p in verification.problems if p.kind == "unknown-format")
    for problem in (*verification.failures, *unknown):
        kinds[problem.kind].append(problem)
    columns = [
        Column("PROBLEM", text=lambda row: row[0], style="red"),
        Column("FILES", text=lambda row: f"{len(row[1]):,}", right=True),
        render_columns.key_column(lambda row: row[1][0].file, "EXAMPLE"),
        Column("DETAIL", text=lambda row: row[1][0].detail, elastic=True, cut="end"),
    ]
    if repair:
        columns.insert(3, Column("ACTION", text=lambda row: _actions(row[1], repair)))
    if kinds:
        yield Table(columns, sorted(kinds.items()))


def _actions(problems: Sequence[Problem], repair: Repair) -> str:
    actions = dict.fromkeys(repair.action(p) or "none" for p in problems)
    return ", ".join(_ACTIONS.get(action, action) for action in actions)


_ACTIONS = {
    "back-fill": "new -atime",
    "leave-young": "left: being written?",
    "leave-changed": "left: changed",
    "leave-failed": "left: refused",
}


_LEFT = {
    "module-mismatch": "another module than the file name has, by which {} loads it",
    "changed-since-recorded": "another digest than recorded, and no checksum: rewritten by {}, or "
    "damaged",
}


def _verification_notes(
    verification: Verification, repair: Repair | None, words: Words
) -> Iterator[str]:
    """Yield the sums, and what to do next."""
    yield str(verification)
    kinds = Counter(p.kind for p in verification.problems)
    compiler = words.compiler
    if count := kinds["not-loadable-here"]:
        yield f"{count:,} cannot be loaded here (other devices, or another jaxlib), and are kept"
    if count := kinds["legacy-name"]:
        remove = format_command("prune --legacy", verification.cache_dir)
        yield f"{count:,} that only JAX up to 0.4.30 reads; to remove them: {remove}"
    yield from unknown_format_lines(kinds["unknown-format"])
    for kind, text in _LEFT.items():
        if keys := [p.key or "" for p in verification.problems if p.kind == kind]:
            rm = format_command(f"rm {shlex.quote(keys[0])}", verification.cache_dir)
            yield f"{len(keys):,} with {text.format(compiler)}; to have one compiled again: {rm}"
    if (count := kinds["unsealed"]) and not verification.failures:  # repaired before
        seal = format_command("seal", verification.cache_dir)
        yield f"{count:,} without a checksum; to let JAX itself detect later damage: {seal}"
    if repair is None:
        if len(verification.failures) > len(
            {p.kind for p in verification.failures}
        ):  # the table names one each
            yield f"to name every file: {_command(verification, '-q')}"
        steps = plan_repair(verification, now_ns=0, delete=False).steps
        young = sum(step.action == "leave-young" for step in steps)
        if steps and young < len(steps):
            yield f"to repair them: {_command(verification, '--fix')}"
        if young:
            yield _say_young(verification, young, compiler)
        return
    taken = {p.file: a for p in verification.failures if (a := repair.action(p))}
    done = Counter(taken.values())
    if not done:
        yield "nothing to repair"
    if young := sum(a == "leave-young" and f in verification.young for f, a in taken.items()):
        yield _say_young(verification, young, compiler)
        done["leave-young"] -= young
    for action, number in sorted((+done).items()):
        would = "would be " if repair.dry_run and not action.startswith("leave") else ""
        yield f"{format_count(number, 'file')} {would}{_OUTCOMES[action]}"
    if "quarantine" in done and not repair.dry_run:
        yield f"{compiler} compiles quarantined entries again when it needs them"


def _command(verification: Verification, option: str) -> str:
    """Return the command that finds the same problems again, with one more option."""
    words = ["verify"]
    if any(p.kind in ("load-failed", "load-crashed") for p in verification.failures):
        words += ["--level load"]
        words += [f"--python {shlex.quote(verification.python)}"] if verification.python else []
    return format_command(" ".join((*words, option)), verification.cache_dir)


def _say_young(verification: Verification, number: int, compiler: str) -> str:
    files = format_count(number, "file")
    grace = f"{verification.grace_seconds:g} s"
    return (
        f"{files} younger than {grace}, left because {compiler} may still be writing; if no "
        f"program is: {_command(verification, '--fix --grace 0s')}"
    )


_OUTCOMES = {
    "quarantine": "moved to quarantine",
    "delete": "deleted",
    "back-fill": "given a new -atime",
    "leave-young": "left: another process is writing it",
    "leave-changed": "left: it changed meanwhile; run the command again",
    "leave-failed": "left: the file system refused the change; check its permissions",
}


def restoration_view(result: Restoration) -> View:
    """Return the view of ``verify --restore``."""
    document = fields_of(result)
    lists: dict[str, list[Document]] = {n: document[n] for n in ("restored", "left")}
    return View(
        document,
        [{"outcome": name, **row} for name, rows in lists.items() for row in rows],
        [
            render_columns.text_column("OUTCOME", lambda row: row["outcome"]),
            render_columns.key_column(lambda row: row["key"]),
            render_columns.text_column("REASON", lambda row: row.get("reason")),
        ],
        keys=[q.key for q in result.restored],
        notes=[f"{len(result.restored):,} restored, {len(result.left):,} left in quarantine"],
    )


def seal_view(plan: SealPlan, result: SealResult | None) -> View:
    """Return the view of ``seal``; without a result, of what would be rewritten."""
    before = sum(s.entry.size_bytes for s in result.sealed) if result else None
    shown = result or SealResult(tuple(SealedEntry(e, None) for e in plan.todo), plan.skipped, ())
    lists: dict[str, list[Document]] = {
        name: [*map(fields_of, some)] if name == "problems" else some
        for name, some in fields_of(shown).items()
    }
    outcomes = {name: name.removesuffix("s") if name == "problems" else name for name in lists}
    word = "sealed" if result else "todo"
    rows: list[tuple[Any, ...]] = [
        (word, r["key"], r["size_bytes"], r["size_bytes_after"]) for r in lists["sealed"]
    ]
    rows += [("failed", r["key"], r["size_bytes"], r["reason"]) for r in lists["failed"]]
    rows += [(p["kind"], p["key"] or p["file"], None, p["detail"]) for p in lists["problems"]]
    summary = {
        "sealed": len(shown.sealed),
        "skipped": len(shown.skipped),
        "size_bytes_before": before,
        "size_bytes_after": before - result.saved_bytes if result and before else before,
        "saved_bytes": result.saved_bytes if result else None,
    }
    head = {"cache_dir": plan.cache_dir, "dry_run": result is None, "level": plan.level}
    return View(
        {**head, **lists, "summary": summary},
        rows,
        keys=[s.entry.key for s in shown.sealed],
        records=({"outcome": outcomes[n], **row} for n, some in lists.items() for row in some),
        page=(),
        notes=_seal_notes(plan, result),
    )


def _seal_notes(plan: SealPlan, result: SealResult | None) -> Iterator[str]:
    reasons = Counter(reason for _, reason in (result or plan).skipped)
    kept = ", ".join(f"{n:,} {reason}" for reason, n in sorted(reasons.items()))
    unchanged = f"; unchanged: {kept}" if kept else ""
    if result is None:
        yield plan.summary + unchanged
        return
    line = f"sealed {format_count(len(result.sealed), 'entry')}"
    if not result.sealed:
        line = "nothing was sealed" if result.failed or result.problems else "nothing to seal"
    elif before := sum(s.entry.size_bytes for s in result.sealed):
        word = "saved of" if result.saved_bytes >= 0 else "of checksums added to"
        line += f" ({format_size(abs(result.saved_bytes))} {word} {format_size(before)})"
    yield line + unchanged
    if result.sealed:
        load = format_command("verify --level load", plan.cache_dir)
        yield f"JAX will notice later damage to them; to look for earlier damage: {load}"
    if result.failed:
        why = ", ".join(sorted({reason for _, reason in result.failed}))
        yield f"{len(result.failed):,} not sealed, because they could not be written: {why}"
    if unreadable := sum(p.kind == "unreadable" for p in result.problems):
        yield f"{unreadable:,} not sealed, because they could not be read"
    if damaged := len(result.problems) - unreadable:
        fix = format_command("verify --fix", plan.cache_dir)
        yield f"{damaged:,} damaged and not sealed; to repair them: {fix}"


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
    done: removable.Execution | None,
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
    freed = removable.freed_bytes(removed)
    document = {
        "cache_dir": plan.cache_dir,
        "dry_run": done is None,
        "policy": plan.policy,
        "removed": removed,
        "kept": plan.kept_after(removed),
        "freed_bytes": freed,
        "size_bytes_before": plan.size_bytes_before,
        "size_bytes_after": plan.size_bytes_before - freed,
        "lost_compile_seconds": removable.lost_compile_seconds(removed),
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
        _removal_columns(now_ns),
        keys=(r.key for r in removed),
        page=page,
        notes=[*_removal_notes(plan, done, removed), *(keep_bound_note(plan) if lasting else ())],
    )


def _removal_columns(now_ns: int) -> Sequence[Column]:
    return [
        render_columns.key_column(lambda r: r.key or r.file.name)._replace(
            text=render_columns.removal_name
        ),
        render_columns.size_column(lambda r: r.size_bytes),
        Column("COMPILE", lambda r: r.compile_seconds, _compile, right=True),
        render_columns.used_column(now_ns),
        Column("WHY", lambda r: r.reason, lambda r: _WHY.get(r.reason, r.reason)),
    ]


def _compile(removal: removable.Removal) -> str:
    unknown = removal.compile_seconds is None and removal.kind != "entry"
    return "" if unknown else format_compile(removal.compile_seconds)


def removals_table(removals: Sequence[removable.Removal], now_ns: int) -> Table:
    """Return a table of what is removed and why."""
    return Table(_removal_columns(now_ns), removals, limit=_SHOWN_ROWS, more="; --json lists all")


def _removal_notes(
    plan: PrunePlan, done: removable.Execution | None, removed: Sequence[removable.Removal]
) -> Iterator[str]:
    yield from plan.notes()
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
