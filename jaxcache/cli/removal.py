"""Ask, remove and print, for ``prune`` and ``rm``."""

import sys
import time
from typing import TYPE_CHECKING

from jaxcache.cli.options import Format, require_writable
from jaxcache.errors import ExitCode, JaxcacheError, UsageError

if TYPE_CHECKING:
    from jaxcache.cache.prune.plan import PrunePlan
    from jaxcache.cli.opening import Opened
    from jaxcache.store.base import Store


def require_consent(*, dry_run: bool, yes: bool) -> None:
    """Refuse before any work where nobody can be asked.

    Raises:
        UsageError: ``needs-yes``.
    """
    if not (dry_run or yes or (sys.stdin.isatty() and sys.stderr.isatty())):
        raise UsageError(
            "cannot ask for confirmation without a terminal",
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
    from jaxcache.cli.output import emit
    from jaxcache.cli.terminal.progress import progress_bar
    from jaxcache.render.prune import prune_view

    if dry_run:
        emit(form, prune_view(plan, None, now_ns=time.time_ns()))
        if plan.removals:
            require_writable(opened.store)
        return ExitCode.PARTIAL if plan.unmet else ExitCode.DONE
    if plan.removals:
        _ask(opened.store, plan, yes=yes)
    with progress_bar("removing") as progress:
        done = remove(opened.store, plan.removals, guard=opened.layout.guard, progress=progress)
    emit(form, prune_view(plan, done, now_ns=time.time_ns()))
    return ExitCode.PARTIAL if done.failed or plan.unmet else ExitCode.DONE


def _ask(store: "Store", plan: "PrunePlan", *, yes: bool) -> None:
    from jaxcache.cli.output import note
    from jaxcache.render.prune import plan_notes, plan_summary, removals_table

    require_writable(store)
    if yes:
        return
    if not plan.kept:
        raise UsageError(
            "this would empty the cache", code="would-empty", hint="add --yes if that is meant"
        )
    table = removals_table(plan.removals, time.time_ns())
    note(table, *plan_notes(plan), plan_summary(plan, plan.removals, happened=False))
    confirm("Go ahead?", "nothing was removed")
