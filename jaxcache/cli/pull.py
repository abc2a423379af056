"""``jaxcache pull``."""

from typing import Annotated

import typer

from jaxcache.cli.import_ import AllowLarge
from jaxcache.cli.opening import LayoutName, locate_target, open_cache
from jaxcache.cli.options import CacheDir, DryRun, Json, Jsonl, Quiet, choose_format
from jaxcache.cli.sync import Exclude, Include, LedgerToo, MaxSize, Requests, SideCaches

EXAMPLE = "jaxcache pull s3://bucket/team/jax --include 'jit_train*'"
EXIT_CODES = (0, 1, 2, 3, 10, 12, 130)


def command(
    url: Annotated[str, typer.Argument(metavar="URL", help="s3://, gs://, az://, or a path.")],
    cache_dir: CacheDir = None,
    layout: LayoutName = None,
    include: Include = None,
    exclude: Exclude = None,
    max_size: MaxSize = None,
    require_signed: Annotated[
        bool,
        typer.Option(
            "--require-signed", help="Only what a trusted key has signed; see jaxcache trust."
        ),
    ] = False,
    side_caches: SideCaches = True,
    ledger: LedgerToo = True,
    jobs: Requests = None,
    allow_large: AllowLarge = False,
    dry_run: DryRun = False,
    json: Json = False,
    jsonl: Jsonl = False,
    quiet: Quiet = False,
) -> int:
    """Download the entries that this cache lacks.

    Each entry is checked on arrival; a sound one here is never replaced.
    """
    from jaxcache.cli.sync import carry_files, carry_over, read_options

    form = choose_format(json=json, jsonl=jsonl, quiet=quiet)
    options = read_options(include, exclude, max_size, side_caches=side_caches, ledger=ledger)
    opened = open_cache(url, layout)
    if not opened.layout.stands_alone:
        return carry_files(opened, cache_dir, options, form, signed=require_signed, dry_run=dry_run)
    target = locate_target(cache_dir, layout, opened.layout.name)
    return carry_over(
        opened,
        target,
        options,
        form,
        jobs=jobs,
        dry_run=dry_run,
        needs_some=True,
        require_signed=require_signed,
        allow_large=allow_large,
    )
