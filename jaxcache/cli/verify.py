"""``jaxcache verify``."""

import os
import time
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from jaxcache.cli.opening import LayoutName, Opened, open_cache
from jaxcache.cli.options import (
    CacheDir,
    DryRun,
    Jobs,
    Json,
    Jsonl,
    Keys,
    Quiet,
    Yes,
    available_cores,
    choose_format,
    require_writable,
)  # fmt: skip
from jaxcache.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from jaxcache.cache.verify.examine import Verification
    from jaxcache.cache.verify.repair import Repair

EXAMPLE = "jaxcache verify --fix"
EXIT_CODES = (0, 1, 2, 3, 10, 11, 13)


class Level(StrEnum):
    """How hard to look."""

    QUICK = "quick"
    FULL = "full"
    LOAD = "load"


def command(
    keys: Keys = None,
    cache_dir: CacheDir = None,
    layout: LayoutName = None,
    level: Annotated[
        Level,
        typer.Option(
            help="quick: names, dates and frames. full: everything inside. load: also have JAX "
            "load each entry, in processes that may die of it."
        ),
    ] = Level.FULL,
    payload: Annotated[
        bool, typer.Option("--payload/--no-payload", help="Decode what full has decompressed.")
    ] = True,
    fix: Annotated[
        bool, typer.Option("--fix", help="Move bad entries to quarantine; put -atime files right.")
    ] = False,
    delete: Annotated[
        bool, typer.Option("--delete", help="With --fix: delete bad entries for good.")
    ] = False,
    restore: Annotated[
        bool, typer.Option("--restore", help="Bring entries back from quarantine.")
    ] = False,
    atimes: Annotated[
        bool,
        typer.Option(
            "--atimes", help="Every entry needs its -atime file, as before a size cap is set."
        ),
    ] = False,
    grace: Annotated[
        str, typer.Option(metavar="DURATION", help="Leave younger files as they are.")
    ] = "60s",
    jobs: Jobs = None,
    python: Annotated[
        str | None,
        typer.Option(metavar="PATH", help="With --level load: the Python that has your jax."),
    ] = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    json: Json = False,
    jsonl: Jsonl = False,
    quiet: Quiet = False,
) -> int:
    """Find damaged entries and misplaced files; --fix repairs them."""
    from jaxcache.cache.verify.examine import VerifyOptions
    from jaxcache.cli.output import note
    from jaxcache.cli.output.verify import print_restoration, print_verification
    from jaxcache.cli.terminal.progress import progress_bar
    from jaxcache.units import parse_duration_seconds

    form = choose_format(json=json, jsonl=jsonl, quiet=quiet)
    if restore and (fix or delete):
        raise UsageError("--restore and --fix exclude each other")
    if delete and not fix:
        raise UsageError("--delete goes with --fix")
    if delete:
        from jaxcache.cli.removal import require_consent

        require_consent(dry_run=dry_run, yes=yes)
    options = VerifyOptions(
        level=level.value, keys=tuple(keys or ()), decode=payload,
        jobs=jobs or available_cores(), grace_seconds=parse_duration_seconds(grace),
        user=os.geteuid(), want_atimes=True if atimes else None,
    )  # fmt: skip
    opened = open_cache(cache_dir, layout)
    if restore:
        if not dry_run:
            require_writable(opened.store)
        result = opened.layout.restore(opened.store, keys=options.keys, dry_run=dry_run)
        print_restoration(result, form)
        return ExitCode.PARTIAL if result.left else ExitCode.DONE
    loader = None
    if level is Level.LOAD and opened.layout.is_jax:
        from jaxcache.warm.loading import SacrificialLoader

        loader = SacrificialLoader(python)
    with progress_bar("verifying") as progress:
        found = opened.layout.verify(
            opened.store, options, now_ns=time.time_ns(), loader=loader, progress=progress
        )
    repair = _repair(opened, found, delete, dry_run, yes) if fix or dry_run else None
    print_verification(found, repair, form)
    if loader and loader.skipped:
        note(f"{len(loader.skipped):,} for another platform than this jax has were not loaded")
    if repair and not repair.dry_run:
        return ExitCode.PROBLEMS if repair.unsolved(found.failures) else ExitCode.DONE
    return ExitCode.PROBLEMS if found.failures else ExitCode.DONE


def _repair(
    opened: Opened, found: "Verification", delete: bool, dry_run: bool, yes: bool
) -> "Repair":
    """Show what is going to be done, or do it."""
    from jaxcache.cache.verify.repair import plan_repair, show_repair
    from jaxcache.cli.output.verify import ask_to_delete
    from jaxcache.cli.terminal.progress import progress_bar

    plan = plan_repair(found, now_ns=time.time_ns(), delete=delete)
    if dry_run or not plan.steps:
        return show_repair(plan, dry_run=dry_run)
    require_writable(opened.store)
    if delete and not yes:
        ask_to_delete(found, show_repair(plan, dry_run=True))
    with progress_bar("repairing") as progress:
        return opened.layout.execute_repair(
            opened.store, plan, young=found.young, progress=progress
        )
