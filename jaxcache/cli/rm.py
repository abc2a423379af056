"""``jaxcache rm``."""

import time
from typing import Annotated

import typer

from jaxcache.cli.opening import LayoutName, open_cache
from jaxcache.cli.options import (
    CacheDir,
    DryRun,
    Json,
    Jsonl,
    Quiet,
    Yes,
    available_cores,
    choose_format,
    index_folder,
)  # fmt: skip

EXAMPLE = "jaxcache rm 'jit_step*' --dry-run"
EXIT_CODES = (0, 1, 2, 3, 10, 11)


def command(
    keys: Annotated[
        list[str],
        typer.Argument(
            metavar="KEY...", help="Full key, unique prefix of key or hash, or module glob."
        ),
    ],
    cache_dir: CacheDir = None,
    layout: LayoutName = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    json: Json = False,
    jsonl: Jsonl = False,
    quiet: Quiet = False,
) -> int:
    """Remove entries."""
    from jaxcache.cli.removal import carry_out, require_consent
    from jaxcache.cli.terminal.progress import progress_bar

    form = choose_format(json=json, jsonl=jsonl, quiet=quiet)
    require_consent(dry_run=dry_run, yes=yes)
    opened = open_cache(cache_dir, layout)
    with progress_bar("reading entries") as progress:
        plan = opened.layout.plan_removal(
            opened.store, keys, index_folder=index_folder(), now_ns=time.time_ns(),
            workers=available_cores(), progress=progress,
        )  # fmt: skip
    return carry_out(opened, plan, form, dry_run=dry_run, yes=yes)
