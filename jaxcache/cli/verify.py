"""``jaxcache verify``."""

import time
from typing import TYPE_CHECKING, Annotated

import typer

from jaxcache.cli.opening import Opened, open_cache
from jaxcache.cli.options import Output, require_writable
from jaxcache.errors import ExitCode, UsageError
from jaxcache.options import Consent, Place, VerifyOptions
from jaxcache.units import available_cores

if TYPE_CHECKING:
    from jaxcache.cache.verify.examine import Verification
    from jaxcache.cache.verify.repair import Repair

EXAMPLE = "jaxcache verify --fix"
EXIT_CODES = (0, 1, 2, 3, 10, 11, 13)


def command(
    place: Place,
    options: VerifyOptions,
    fix: Annotated[
        bool,
        typer.Option(
            "--fix",
            help="Move damaged entries to quarantine and repair -atime files.",
        ),
    ] = False,
    delete: Annotated[
        bool, typer.Option("--delete", help="With --fix: delete damaged entries instead.")
    ] = False,
    restore: Annotated[
        bool, typer.Option("--restore", help="Bring entries back from quarantine.")
    ] = False,
    *,
    consent: Consent,
    output: Output,
) -> int:
    """Find damaged entries and misplaced files; --fix repairs them."""
    from jaxcache.cache.verify import quarantine
    from jaxcache.cache.verify.examine import verify
    from jaxcache.cli.output import emit
    from jaxcache.cli.terminal.progress import progress_bar
    from jaxcache.render.verify import restoration_view, verification_view
    from jaxcache.warm.loading import make_loader

    dry_run, yes = consent.dry_run, consent.yes
    if restore and (fix or delete or options.filters):
        other = "--filter" if options.filters else "--fix"
        raise UsageError(f"--restore and {other} cannot be combined")
    if delete and not fix:
        raise UsageError("--delete goes with --fix")
    if delete:
        consent.check()
    options = options.replace(jobs=options.jobs or available_cores())
    opened = open_cache(place.cache_dir, place.layout)
    if restore:
        require_writable(opened.store)
        result = quarantine.restore(*opened, keys=options.keys, dry_run=dry_run)
        emit(output.form, restoration_view(result))
        return ExitCode.PARTIAL if result.left else ExitCode.DONE
    loader = make_loader(options) if opened.layout.stands_alone else None
    with progress_bar("verifying") as progress:
        found = verify(*opened, options, now_ns=time.time_ns(), loader=loader, progress=progress)
    repair = _repair(opened, found, delete, dry_run, yes) if fix or dry_run else None
    emit(output.form, verification_view(found, repair))
    if repair and not repair.dry_run:
        return ExitCode.PROBLEMS if repair.unsolved(found.failures) else ExitCode.DONE
    return ExitCode.PROBLEMS if found.failures else ExitCode.DONE


def _repair(
    opened: Opened, found: "Verification", delete: bool, dry_run: bool, yes: bool
) -> "Repair":
    """Show what is going to be done, or do it."""
    from jaxcache.cache.verify.repair import execute_repair, plan_repair, show_repair
    from jaxcache.cli.output import note
    from jaxcache.cli.terminal import confirm
    from jaxcache.cli.terminal.progress import progress_bar
    from jaxcache.render.verify import problems_page

    plan = plan_repair(found, now_ns=time.time_ns(), delete=delete)
    if dry_run or not plan.steps:
        return show_repair(plan, dry_run=dry_run)
    require_writable(opened.store)
    if delete and not yes:
        note(*problems_page(found, show_repair(plan, dry_run=True)))
        confirm("Delete these for good?", "nothing was deleted")
    with progress_bar("repairing") as progress:
        return execute_repair(*opened, plan, young=found.young, progress=progress)
