"""``jaxcache push``."""

from typing import Annotated

import typer

from jaxcache.cli.export import Sign
from jaxcache.cli.opening import LayoutName, locate_target, open_cache
from jaxcache.cli.options import CacheDir, DryRun, Json, Jsonl, Quiet, Yes, choose_format
from jaxcache.cli.sync import Exclude, Include, LedgerToo, MaxSize, Requests, SideCaches

EXAMPLE = "jaxcache push s3://bucket/team/jax --exclude 'jit_debug*'"
EXIT_CODES = (0, 1, 2, 3, 10, 11, 12, 130)


def command(
    url: Annotated[str, typer.Argument(metavar="URL", help="s3://, gs://, az://, or a path.")],
    cache_dir: CacheDir = None,
    layout: LayoutName = None,
    include: Include = None,
    exclude: Exclude = None,
    max_size: MaxSize = None,
    prune_remote: Annotated[
        bool,
        typer.Option(
            "--prune-remote", help="With --max-size: entries there may go to let better ones in."
        ),
    ] = False,
    sign: Sign = None,
    side_caches: SideCaches = True,
    ledger: LedgerToo = True,
    jobs: Requests = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    json: Json = False,
    jsonl: Jsonl = False,
    quiet: Quiet = False,
) -> int:
    """Upload the entries that another cache lacks.

    What is there already is never replaced.
    """
    from jaxcache.cli.sync import carry_files, carry_over, read_options

    form = choose_format(json=json, jsonl=jsonl, quiet=quiet)
    options = read_options(
        include, exclude, max_size, make_room=prune_remote, side_caches=side_caches, ledger=ledger
    )
    if prune_remote:
        from jaxcache.cli.removal import require_consent

        require_consent(dry_run=dry_run, yes=yes)
    opened = open_cache(cache_dir, layout)
    if not opened.layout.stands_alone:
        return carry_files(opened, url, options, form, signed=bool(sign), dry_run=dry_run)
    return carry_over(
        opened,
        locate_target(url, layout, opened.layout.name),
        options,
        form,
        jobs=jobs,
        sign=sign or (),
        dry_run=dry_run,
        yes=yes,
    )
