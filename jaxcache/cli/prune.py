"""``jaxcache prune`` and ``jaxcache rm``."""

import sys
import time
from typing import TYPE_CHECKING

from jaxcache.api import Cache
from jaxcache.cli.opening import open_handle
from jaxcache.cli.options import Format, Output
from jaxcache.cli.terminal import confirm
from jaxcache.errors import ExitCode, UsageError
from jaxcache.options import CacheLocation, ConfirmOptions, PruneOptions, RemovalOptions

if TYPE_CHECKING:
    from jaxcache.cache.prune.plan import PrunePlan

EXAMPLES = {
    "prune": "jaxcache prune --max-size 10GB --unused-for 30d --dry-run",
    "rm": "jaxcache rm 'jit_step*' --dry-run",
}
MOST_USED = {
    "prune": (
        "--max-size",
        "--unused-for",
        "--dry-run",
        "--yes",
        "--cache-dir",
        "--policy",
        "--keep-last",
        "--keep",
        "--filter",
        "--json",
    )
}
EXIT_CODES = dict.fromkeys(EXAMPLES, (0, 1, 2, 3, 10, 11))


def prune(
    place: CacheLocation, options: PruneOptions, consent: ConfirmOptions, output: Output
) -> int:
    """Remove the least valuable entries until the given limits hold.

    The last use of an entry is what jaxcache has recorded or its files' dates, whichever is later;
    jaxcache ls shows it.
    """
    form = output.form
    options.check()
    cache = open_handle(place)
    return _carry_out(cache, cache.plan_prune(options=options), form, consent)


def rm(
    options: RemovalOptions, place: CacheLocation, consent: ConfirmOptions, output: Output
) -> int:
    """Remove entries."""
    form = output.form
    cache = open_handle(place)
    return _carry_out(cache, cache.plan_removal(options=options), form, consent)


def _carry_out(cache: Cache, plan: "PrunePlan", form: Format, consent: ConfirmOptions) -> int:
    """Show a plan, or ask, execute and show what happened; return the exit code.

    Raises:
        JaxcacheError: ``would-empty`` where nothing would stay and ``--yes`` was not given;
            ``read-only`` where nothing can be removed.
        LockedError
    """
    from jaxcache.cli.output import emit, note
    from jaxcache.render.prune import prune_view, warn_of_young

    files_alone = cache.layout.single_file_entries
    if form.is_text and not files_alone:
        note(*warn_of_young(plan, cache.clock()))
    if consent.dry_run:
        emit(form, prune_view(plan, None, now_ns=cache.clock()))
        if plan.removals or plan.later:
            cache.require_writable()
        return ExitCode.PARTIAL if plan.unmet else ExitCode.DONE
    if plan.removals or plan.later:
        cache.require_writable()
    if plan.removals:
        consent.check()
        if not consent.yes:
            _ask(plan)
    done = cache.execute(plan)
    lasting = sys.stderr.isatty() and files_alone and not (cache.store.remote or plan.unmet)
    view = prune_view(plan, done, now_ns=cache.clock(), lasting=lasting, listed=consent.yes)
    emit(form, view)
    return ExitCode.PARTIAL if done.failed or plan.unmet else ExitCode.DONE


def _ask(plan: "PrunePlan") -> None:
    """Show what a plan removes, and ask whether to go ahead."""
    from jaxcache.cache.prune.plan import plan_notes
    from jaxcache.cli.output import note
    from jaxcache.render.prune import removals_table

    if not plan.kept:
        raise UsageError(
            "this would empty the cache", code="would-empty", hint="add --yes if that is meant"
        )
    table = removals_table(plan.removals, time.time_ns())
    note(table, *plan_notes(plan), plan.summary(plan.removals, "would remove"))
    confirm("Go ahead?", "nothing was removed")
