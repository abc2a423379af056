"""``jaxcache import``."""

from enum import StrEnum
from typing import Annotated

import typer

from jaxcache.cli.opening import LayoutName
from jaxcache.cli.options import CacheDir, DryRun, Json, Jsonl, Quiet, choose_format
from jaxcache.errors import ExitCode

EXAMPLE = "jaxcache import cache.jxb --require-compatible"
EXIT_CODES = (0, 1, 2, 3, 12, 13)

Python = Annotated[
    str | None,
    typer.Option(metavar="PATH", help="The Python whose jax is to use the cache; ours if it has."),
]


class ConflictRule(StrEnum):
    """The side that wins where both have a key."""

    KEEP = "keep"
    REPLACE = "replace"
    FAIL = "fail"


OnConflict = Annotated[
    ConflictRule,
    typer.Option(
        metavar="keep|replace|fail", help="Where another sound entry is there under the same key."
    ),
]
AllowLarge = Annotated[
    bool,
    typer.Option("--allow-large", help="Let in what inflates further than executables do, too."),
]
Atomic = Annotated[bool, typer.Option("--atomic", help="All entries, or none.")]


def command(
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE", help="The bundle; - for stdin. Or what torch.compiler saved."
        ),
    ],
    cache_dir: CacheDir = None,
    layout: LayoutName = None,
    on_conflict: OnConflict = ConflictRule.KEEP,
    atomic: Atomic = False,
    require_compatible: Annotated[
        bool, typer.Option("--require-compatible", help="Refuse what will not hit here.")
    ] = False,
    python: Python = None,
    side_caches: Annotated[
        bool, typer.Option("--side-caches/--no-side-caches", help="XLA's own caches too.")
    ] = True,
    level: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=22,
            metavar="1..22",
            show_default=False,
            help="zstd level of the entries; default: what makes them as small as they were.",
        ),
    ] = None,
    allow_large: AllowLarge = False,
    dry_run: DryRun = False,
    json: Json = False,
    jsonl: Jsonl = False,
    quiet: Quiet = False,
) -> int:
    """Check a bundle, and add its entries to a cache.

    The bundle is checked from end to end before anything is written, and what will hit here is
    forecast.
    """
    from jaxcache.cli.bundle import ask_host, check_trust, open_import, receive
    from jaxcache.cli.opening import locate_target

    form = choose_format(json=json, jsonl=jsonl, quiet=quiet)
    with open_import(file) as (bundle, left_out):
        whose = bundle.manifest.layout
        target = locate_target(cache_dir, layout, whose)
        code = receive(
            bundle,
            target,
            form,
            verdict=check_trust(bundle),
            host=ask_host(python, required=require_compatible) if whose == "jax" else None,
            require_compatible=require_compatible,
            on_conflict=on_conflict,
            side_caches=side_caches,
            atomic=atomic,
            level=level,
            dry_run=dry_run,
            allow_large=allow_large,
            expect=True,
        )
    return ExitCode.PARTIAL if left_out and code == ExitCode.DONE else code
