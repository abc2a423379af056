"""``jaxcache prune`` and ``jaxcache rm``."""

import sys
import time
from typing import TYPE_CHECKING, Any

from jaxcache.cli.opening import open_cache
from jaxcache.cli.options import Format, Output, require_writable
from jaxcache.cli.root import Root, find_root
from jaxcache.errors import ExitCode, UsageError
from jaxcache.options import CacheLocation, ConfirmOptions, PruneOptions, RemovalOptions
from jaxcache.store.location import index_directory
from jaxcache.units import available_cores

if TYPE_CHECKING:
    from jaxcache.cache.prune.plan import PrunePlan
    from jaxcache.cli.opening import Opened

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
    from jaxcache.cache.prune.plan_cache import plan_cache_prune
    from jaxcache.cli.terminal.progress import progress_bar

    form = output.form
    options.check()
    if root := find_root(place):
        return _prune_root(root, options, place, consent, form)
    opened = open_cache(place.cache_dir, place.layout)
    with progress_bar("reading entries") as progress:
        plan = plan_cache_prune(*opened, options, progress=progress, **_planning())
    return _carry_out(opened, plan, form, consent)


def rm(
    options: RemovalOptions, place: CacheLocation, consent: ConfirmOptions, output: Output
) -> int:
    """Remove entries."""
    from jaxcache.cache.prune.plan_cache import plan_cache_removal
    from jaxcache.cli.terminal.progress import progress_bar

    form = output.form
    opened = open_cache(place.cache_dir, place.layout)
    with progress_bar("reading entries") as progress:
        chosen = (options.keys, options.filters)
        plan = plan_cache_removal(*opened, *chosen, progress=progress, **_planning())
    return _carry_out(opened, plan, form, consent)


def _planning() -> dict[str, Any]:
    workers = available_cores()
    return {"index_directory": index_directory(), "now_ns": time.time_ns(), "workers": workers}


def _carry_out(opened: "Opened", plan: "PrunePlan", form: Format, consent: ConfirmOptions) -> int:
    """Show a plan, or ask, execute and show what happened; return the exit code.

    Raises:
        JaxcacheError: ``would-empty`` where nothing would stay and ``--yes`` was not given;
            ``read-only`` where nothing can be removed.
        LockedError
    """
    from jaxcache.cache.prune.execute import remove
    from jaxcache.cli.output import emit, note
    from jaxcache.cli.terminal.progress import progress_bar
    from jaxcache.render.prune import prune_view, warn_of_young

    if form.is_text and not opened.layout.single_file_entries:
        note(*warn_of_young(plan, time.time_ns()))
    if consent.dry_run:
        emit(form, prune_view(plan, None, now_ns=time.time_ns()))
        if plan.removals:
            require_writable(opened.store)
        return ExitCode.PARTIAL if plan.unmet else ExitCode.DONE
    if plan.removals:
        consent.check()
        require_writable(opened.store)
        if not consent.yes:
            _ask(plan)
    with progress_bar("removing") as progress:
        done = remove(
            opened.store, plan.removals, file_lock=opened.layout.file_lock, progress=progress
        )
    lasting = sys.stderr.isatty() and opened.layout.single_file_entries and not opened.store.remote
    view = prune_view(plan, done, now_ns=time.time_ns(), lasting=lasting, listed=consent.yes)
    emit(form, view)
    return ExitCode.PARTIAL if done.failed or plan.unmet else ExitCode.DONE


def _prune_root(
    root: Root, options: PruneOptions, place: CacheLocation, consent: ConfirmOptions, form: Format
) -> int:
    """Prune all caches with one limit over their sum; return the exit code.

    Raises:
        JaxcacheError: as for one cache.
    """
    from jaxcache.cache.prune.removal import Execution
    from jaxcache.cache.prune.several_caches import (
        Member,
        plan_prune_of_several,
        remove_emptied,
        remove_from_several,
    )
    from jaxcache.cli.output import emit
    from jaxcache.cli.terminal.progress import progress_bar
    from jaxcache.render.root import prune_of_root_view

    members = {name: Member(*root.open(name, place.layout)) for name in root.names}
    now_ns = time.time_ns()
    with progress_bar("reading entries"):
        plan = plan_prune_of_several(
            root.path,
            members,
            options,
            index_directory=index_directory(),
            now_ns=now_ns,
            workers=available_cores(),
        )
    done: Execution | None = None
    gone: tuple[str, ...] = ()
    if plan.removals:
        for name in {removal.file.name.rpartition("/")[0] for removal in plan.removals}:
            if name in members:
                require_writable(members[name].store)
    if not consent.dry_run:
        if plan.removals:
            consent.check()
            if not consent.yes:
                _ask(plan)
        with progress_bar("removing"):
            done = remove_from_several(members, plan.removals)
        if options.by_age:
            gone = remove_emptied(members, done.removed)
    emit(form, prune_of_root_view(plan, done, gone, now_ns=now_ns, listed=consent.yes))
    return ExitCode.PARTIAL if plan.unmet or (done and done.failed) else ExitCode.DONE


def _ask(plan: "PrunePlan") -> None:
    """Show what a plan removes, and ask whether to go ahead."""
    from jaxcache.cache.prune.plan import plan_notes
    from jaxcache.cli.output import note
    from jaxcache.cli.terminal import confirm
    from jaxcache.render.prune import removals_table

    if not plan.kept:
        raise UsageError(
            "this would empty the cache", code="would-empty", hint="add --yes if that is meant"
        )
    table = removals_table(plan.removals, time.time_ns())
    note(table, *plan_notes(plan), plan.summary(plan.removals, "would remove"))
    confirm("Go ahead?", "nothing was removed")
