"""Ask, remove and print, for ``prune`` and ``rm``."""

import sys
import time
from typing import TYPE_CHECKING

from jaxcache.cli.options import Format, require_writable
from jaxcache.errors import ExitCode, JaxcacheError, UsageError

if TYPE_CHECKING:
    from jaxcache.cache.prune.plan import PrunePlan
    from jaxcache.cache.prune.removal import Execution, Removal
    from jaxcache.cli.opening import Opened
    from jaxcache.store.base import Store

#: Rows of a plan that a terminal shows.
_SHOWN_ROWS = 40


def require_consent(*, dry_run: bool, yes: bool) -> None:
    """Refuse before any work where nobody can be asked.

    Raises:
        UsageError: ``needs-yes``.
    """
    if not (dry_run or yes or (sys.stdin.isatty() and sys.stderr.isatty())):
        raise UsageError(
            "there is no terminal to ask on",
            code="needs-yes",
            hint="add --yes to remove, or --dry-run to see what would go",
        )


def confirm(question: str, otherwise: str) -> None:
    """Ask on the terminal.

    Args:
        otherwise: the message if declined.

    Raises:
        JaxcacheError: ``declined``.
    """
    sys.stderr.write(f"{question} [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise JaxcacheError(otherwise, code="declined")


def carry_out(
    opened: "Opened", plan: "PrunePlan", form: Format, *, dry_run: bool, yes: bool
) -> int:
    """Show a plan, or ask, execute and show what happened; return the exit code.

    Raises:
        JaxcacheError: ``would-empty`` where nothing would stay and ``--yes`` was not given;
            ``read-only`` where nothing can be removed.
        LockedError
    """
    from jaxcache.cache.prune.evict import remove
    from jaxcache.cli.terminal.progress import progress_bar

    if dry_run:
        _print(plan, form, None)
        return ExitCode.PARTIAL if plan.unmet else ExitCode.DONE
    if plan.removals:
        _ask(opened.store, plan, yes=yes)
    with progress_bar("removing") as progress:
        done = remove(opened.store, plan.removals, guard=opened.layout.guard, progress=progress)
    _print(plan, form, done)
    return ExitCode.PARTIAL if done.failed or plan.unmet else ExitCode.DONE


def _ask(store: "Store", plan: "PrunePlan", *, yes: bool) -> None:
    from jaxcache.cli.output import note
    from jaxcache.render.prune import plan_notes, plan_summary

    require_writable(store)
    if yes:
        return
    if not plan.kept:
        raise UsageError(
            "this would empty the cache", code="would-empty", hint="add --yes if that is meant"
        )
    note(removals_shown(plan.removals))
    for line in (*plan_notes(plan), plan_summary(plan, plan.removals, happened=False)):
        note(line)
    confirm("Go ahead?", "nothing was removed")


def _print(plan: "PrunePlan", form: Format, done: "Execution | None") -> None:
    from jaxcache.cli.output import note, print_json, print_json_lines, print_lines
    from jaxcache.entry.names import printable
    from jaxcache.render import prune as render

    removed = plan.removals if done is None else done.removed
    if form is Format.JSON:
        print_json(render.prune_document(plan, done))
    elif form is Format.JSONL:
        print_json_lines(map(render.removal_document, removed))
    elif form is Format.KEYS:
        print_lines(printable(r.key) for r in removed if r.key)
    elif form is Format.TSV:
        print_lines(render.removals_tsv(removed))
    elif removed and done is None:
        print(removals_shown(removed))
    if form not in (Format.TSV, Format.TABLE):
        return
    for line in render.plan_notes(plan):
        note(line)
    for spared in done.spared if done else ():
        if spared.why == "failed":
            note(f"{printable(spared.removal.file.name)}: {printable(spared.detail)}")
    note(render.plan_summary(plan, removed, happened=done is not None))


def removals_shown(removals: "tuple[Removal, ...]") -> str:
    """Render planned removals as a table."""
    from jaxcache.cli.output import terminal_width, wants_color
    from jaxcache.render.prune import removals_table

    return removals_table(
        removals,
        now_ns=time.time_ns(),
        width=terminal_width(),
        color=wants_color(),
        limit=_SHOWN_ROWS,
    )
