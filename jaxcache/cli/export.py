"""``jaxcache export``."""

import sys
import time
from typing import Annotated

import typer

from jaxcache.cli.opening import LayoutName, open_cache
from jaxcache.cli.options import CacheDir, Filters, Json, Jsonl, Keys, Quiet, choose_format
from jaxcache.errors import ExitCode, UsageError

EXAMPLE = "jaxcache export cache.jxb"
EXIT_CODES = (0, 1, 2, 3, 10, 12)

File = Annotated[str, typer.Argument(metavar="FILE", help="The bundle to write; - for stdout.")]
Level = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=22,
        metavar="1..22",
        show_default=False,
        help="zstd level; default: 12, or 19 where that takes more room than the files.",
    ),
]
Sign = Annotated[
    list[str] | None,
    typer.Option("--sign", metavar="KEY", help="Sign with a private key file or name; repeatable."),
]


def command(
    file: File,
    keys: Keys = None,
    cache_dir: CacheDir = None,
    layout: LayoutName = None,
    filters: Filters = None,
    level: Level = None,
    since: Annotated[
        str | None, typer.Option(metavar="REF", help="Only what this bundle or cache has not.")
    ] = None,
    sign: Sign = None,
    side_caches: Annotated[
        bool | None,
        typer.Option(
            "--side-caches/--no-side-caches",
            help="XLA's own caches; by default if nothing is selected.",
        ),
    ] = None,
    json: Json = False,
    jsonl: Jsonl = False,
    quiet: Quiet = False,
) -> int:
    """Write entries to one compressed, checkable file."""
    from jaxcache.cache.bundle.deliver import check_target
    from jaxcache.cli.bundle import deliver, signing_keys
    from jaxcache.cli.terminal.progress import progress_bar
    from jaxcache.layouts.sides import open_side
    from jaxcache.store import open_store

    form = choose_format(json=json, jsonl=jsonl, quiet=quiet)
    if file == "-" and (json or jsonl or quiet or sys.stdout.isatty()):
        raise UsageError("a bundle on standard output leaves no room for anything else there")
    if file != "-":
        check_target(file)
    signers = signing_keys(sign or [])
    opened = open_cache(cache_dir, layout)
    with progress_bar("reading") as progress:
        side = open_side(since, open_store, progress, layout=layout) if since else None
        plan = opened.layout.plan_export(
            opened.store,
            keys=keys or [],
            filters=filters or [],
            since=side,
            side_caches=side_caches,
            now_ns=time.time_ns(),
            progress=progress,
        )
    left_out = deliver(opened.store, plan, file, form, level, signers)
    return ExitCode.PARTIAL if left_out else ExitCode.DONE
