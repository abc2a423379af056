"""``jaxcache rm``."""

import time
from typing import Annotated

import typer

from jaxcache.cli.options import (
    CacheDir,
    DryRun,
    Json,
    Jsonl,
    Quiet,
    Yes,
    available_cores,
    choose_format,
    locate_cache,
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
    dry_run: DryRun = False,
    yes: Yes = False,
    json: Json = False,
    jsonl: Jsonl = False,
    quiet: Quiet = False,
) -> int:
    """Remove single entries."""
    from jaxcache.cache.ledger import Ledger
    from jaxcache.cache.survey import plan_cache_removal
    from jaxcache.cli.progress import progress_bar
    from jaxcache.cli.removal import carry_out, require_consent
    from jaxcache.store import open_store

    form = choose_format(json=json, jsonl=jsonl, quiet=quiet)
    require_consent(dry_run=dry_run, yes=yes)
    store = open_store(locate_cache(cache_dir).path)
    ledger = Ledger.load(store)
    with progress_bar("reading entries") as progress:
        plan = plan_cache_removal(
            store, keys, lookup=ledger.record if ledger else None, now_ns=time.time_ns(),
            workers=available_cores(), progress=progress,
        )  # fmt: skip
    return carry_out(store, plan, form, dry_run=dry_run, yes=yes)
