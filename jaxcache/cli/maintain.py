"""``jaxcache verify``, ``seal``, ``prune``, ``rm`` and ``pin``."""

import sys
import time
from typing import TYPE_CHECKING

from jaxcache.api import Cache
from jaxcache.cli.opening import open_handle
from jaxcache.cli.output import Format, JsonOutput, Output, emit, note
from jaxcache.cli.terminal import confirm
from jaxcache.errors import ExitCode, UsageError
from jaxcache.options import (
    CacheDir,
    CacheLocation,
    ConfirmOptions,
    DryRun,
    KeyArguments,
    PruneOptions,
    RemovalOptions,
    SealOptions,
    VerifyOptions,
    flag,
)

if TYPE_CHECKING:
    from jaxcache.api import PrunePlan, Repair, Verification


def verify(
    *,
    place: CacheLocation,
    options: VerifyOptions,
    fix: bool = flag("--fix", "Move damaged entries to quarantine and repair -atime files."),
    delete: bool = flag("--delete", "With --fix: delete damaged entries instead."),
    restore: bool = flag("--restore", "Bring undamaged entries back from quarantine."),
    consent: ConfirmOptions,
    output: Output,
) -> int:
    """Find damaged entries and misplaced files; --fix repairs them.

    The exit code is 1 while something damaged remains: also after --fix --dry-run, which only
    shows the plan.
    """
    from jaxcache.render.maintain import restoration_view, verification_view

    if restore and (fix or delete or options.filters):
        other = "--filter" if options.filters else "--fix"
        raise UsageError(f"--restore and {other} cannot be combined")
    if delete and not fix:
        raise UsageError("--delete needs --fix")
    if delete:
        consent.check()
    cache = open_handle(place)
    if restore:
        cache.require_writable()
        result = cache.restore(*options.keys, dry_run=consent.dry_run)
        emit(output.form, restoration_view(result))
        return ExitCode.PARTIAL if result.left else ExitCode.DONE
    verification, repair = _verify_cache(cache, options, consent, fix=fix, delete=delete)
    emit(output.form, verification_view(verification, repair, cache.layout.words))
    failures = verification.failures
    remain = failures if repair is None or repair.dry_run else repair.unsolved(failures)
    return ExitCode.PROBLEMS if remain else ExitCode.DONE


def _verify_cache(
    cache: Cache,
    options: VerifyOptions,
    consent: ConfirmOptions,
    *,
    fix: bool,
    delete: bool = False,
) -> "tuple[Verification, Repair | None]":
    """Verify one cache, and repair it, or show what would be done, where that was requested."""
    from jaxcache.render.maintain import problems_page

    verification = cache.verify(options=options)
    dry_run = consent.dry_run
    if not (fix or dry_run):
        return verification, None
    plan = cache.plan_repair(verification, delete=delete)
    if dry_run or not plan.steps:
        return verification, plan.as_outcome(dry_run=dry_run)
    cache.require_writable()
    if delete and not consent.yes:
        note(*problems_page(verification, plan.as_outcome(dry_run=True)))
        confirm("Delete these for good?", "nothing was deleted")
    return verification, cache.execute(plan)


def seal(
    place: CacheDir,
    options: SealOptions,
    consent: DryRun,
    output: Output,
) -> int:
    """Add the checksum that lets JAX itself detect corruption.

    A zstd entry grows by 4 bytes and is otherwise unchanged; a zlib entry has a checksum already.
    --recompress also makes entries smaller.
    """
    from jaxcache.render.maintain import seal_view

    cache = open_handle(place)
    plan = cache.plan_seal(options=options)
    result = None
    if not consent.dry_run:
        cache.require_writable()
        result = cache.execute(plan, jobs=options.jobs)
    emit(output.form, seal_view(plan, result))
    if consent.dry_run:
        cache.require_writable()
    if result and result.problems:
        return ExitCode.PROBLEMS
    return ExitCode.PARTIAL if result and result.failed else ExitCode.DONE


def prune(
    place: CacheLocation,
    options: PruneOptions,
    consent: ConfirmOptions,
    output: Output,
) -> int:
    """Remove the least valuable entries until the given limits hold.

    The last use of an entry is what jaxcache has recorded or its files' dates, whichever is later;
    jaxcache ls shows it.
    """
    form = output.form
    cache = open_handle(place)
    options.check()
    return _carry_out(cache, cache.plan_prune(options=options), form, consent)


def rm(
    options: RemovalOptions,
    place: CacheLocation,
    consent: ConfirmOptions,
    output: Output,
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
    from jaxcache.render.maintain import prune_view, warn_of_young

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
    from jaxcache.render.maintain import removals_table

    if not plan.kept:
        raise UsageError(
            "this would empty the cache", code="would-empty", hint="add --yes if that is meant"
        )
    table = removals_table(plan.removals, time.time_ns())
    note(table, *plan.notes(), plan.summary(plan.removals, "would remove"))
    confirm("Go ahead?", "nothing was removed")


def pin(
    *,
    chosen: KeyArguments,
    place: CacheLocation,
    remove: bool = flag("--remove", "Unpin the entries."),
    output: JsonOutput,
) -> None:
    """Protect entries from prune and rm; without KEY, list the pins."""
    from jaxcache.render.view import Column, View
    from jaxcache.units import format_count

    keys = chosen.keys
    cache = open_handle(place)
    if remove and not keys:
        raise UsageError("--remove needs a KEY", hint="jaxcache pin lists the pins")
    change = cache.unpin if remove else cache.pin
    shown = change(*keys) if keys else cache.pins()
    what = "unpinned" if remove else "pinned"
    document = {"cache_dir": cache.store.url, what: shown}
    notes = [f"{format_count(len(shown), 'entry')} {what}"] if keys else []
    records = ({"key": k} for k in shown)
    view = View(document, shown, [Column("", str)], records=records, page=shown, notes=notes)
    emit(output.form, view)
