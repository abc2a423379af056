"""``verify`` as a view."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from operator import itemgetter

from jaxcache.cache.verify.examine import Verification
from jaxcache.cache.verify.quarantine import Restoration
from jaxcache.cache.verify.repair import Repair, plan_repair
from jaxcache.model import Problem
from jaxcache.render.columns import key_column, short_name, text_column
from jaxcache.render.document import fields_of
from jaxcache.render.view import Block, Column, Table, View
from jaxcache.units import format_command, format_count


def verification_view(found: Verification, repair: Repair | None) -> View:
    """Return the view of ``verify``; to people, one line for each kind of problem."""
    actions = [repair.action(p) if repair else None for p in found.problems]
    rows = [fields_of(p) | {"action": a} for p, a in zip(found.problems, actions, strict=True)]
    document = {
        "cache_dir": found.cache_dir,
        "level": found.level,
        "dry_run": repair.dry_run if repair else None,
        "checked": found.checked,
        "ok": found.ok,
        "proven": found.proven,
        "not_provable": found.ok - found.proven,
        "problems": rows,
    }
    columns = [Column(n, itemgetter(n)) for n in ("kind", "file", "action", "detail")]
    failed = dict.fromkeys(p.key or p.file for p in found.failures)
    return View(
        document,
        # One line for each file of a sound cache would hide what matters; the notes have the sum.
        [r for r in rows if r["kind"] != "unsealed"],
        columns,
        records=rows,
        keys=failed,
        page=problems_page(found, repair),
        notes=_summary(found, repair),
    )


def problems_page(found: Verification, repair: Repair | None) -> Iterator[Block]:
    """Yield a table with one row for each kind of problem, if there is any."""
    kinds: defaultdict[str, list[Problem]] = defaultdict(list)
    for problem in found.failures:
        kinds[problem.kind].append(problem)
    columns = [
        Column("PROBLEM", text=lambda row: row[0], style="red"),
        Column("FILES", text=lambda row: f"{len(row[1]):,}", right=True),
        Column("SUCH AS", text=lambda row: short_name(row[1][0].file), elastic=True, least=16),
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


def _summary(found: Verification, repair: Repair | None) -> Iterator[str]:
    """Yield the sums, and what to do next."""
    yield str(found)
    kinds = Counter(p.kind for p in found.problems)
    if count := kinds["not-loadable-here"]:
        yield f"{count:,} cannot be loaded here (other devices, or another jaxlib), and are kept"
    if count := kinds["legacy-name"]:
        remove = format_command("prune --legacy", found.cache_dir)
        yield f"{count:,} that only JAX up to 0.4.30 reads; to remove them: {remove}"
    if count := kinds["changed-since-recorded"]:
        yield (
            f"{count:,} changed since recorded, and without a checksum: written anew by JAX, or "
            "damaged (jaxcache verify --jsonl names them; JAX compiles again what rm KEY removes)"
        )
    if count := kinds["unsealed"]:
        seal = format_command("seal", found.cache_dir)
        yield f"{count:,} without a checksum; to let JAX itself detect damage: {seal}"
    if repair is None:
        if len(found.failures) > len({p.kind for p in found.failures}):  # the table names one each
            yield f"to name every file: {format_command('verify -q', found.cache_dir)}"
        steps = plan_repair(found, now_ns=0, delete=False).steps
        young = sum(step.action == "leave-young" for step in steps)
        if found.failures and not (young and young == len(steps)):
            yield f"to repair them: {format_command('verify --fix', found.cache_dir)}"
        if young:
            yield _say_young(found, young, "--fix --grace 0s")
        return
    taken = {p.file: a for p in found.failures if (a := repair.action(p))}
    done = Counter(taken.values())
    if not done:
        yield "nothing to repair"
    if young := sum(a == "leave-young" and f in found.young for f, a in taken.items()):
        yield _say_young(found, young, "--grace 0s")
        done["leave-young"] -= young
    for action, number in sorted((+done).items()):
        would = "would be " if repair.dry_run and not action.startswith("leave") else ""
        yield f"{format_count(number, 'file')} {would}{_OUTCOMES[action]}"
    if "quarantine" in done and not repair.dry_run:
        back = format_command("verify --restore", found.cache_dir)
        yield f"JAX compiles them again when it needs them; to bring the files back: {back}"


def _say_young(found: Verification, number: int, option: str) -> str:
    are, them = ("is", "it") if number == 1 else ("are", "them")
    return (
        f"{format_count(number, 'file')} {are} younger than {found.grace_seconds:g} s and may "
        f"still be being written ({option} takes {them} now)"
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
    restored = [
        {"key": q.key, "file": q.file, "size_bytes": q.info.size_bytes} for q in result.restored
    ]
    left = [{"key": q.key, "file": q.info.name, "reason": why} for q, why in result.left]
    rows = [{"outcome": "restored", **row} for row in restored]
    rows += [{"outcome": "left", **row} for row in left]
    return View(
        {
            "cache_dir": result.cache_dir,
            "dry_run": result.dry_run,
            "restored": restored,
            "left": left,
        },
        rows,
        [
            text_column("OUTCOME", lambda row: row["outcome"]),
            key_column(lambda row: row["key"]),
            text_column("REASON", lambda row: row.get("reason")),
        ],
        keys=[q.key for q in result.restored],
        notes=[f"{len(restored):,} restored, {len(left):,} left in quarantine"],
    )
