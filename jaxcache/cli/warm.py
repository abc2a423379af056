"""``jaxcache warm``."""

from typing import Annotated

import typer

from jaxcache.cli.options import (
    CacheDir,
    Devices,
    FailOnMiss,
    ForceCacheDir,
    Json,
    Jsonl,
    Platform,
    Python,
    Timeout,
)  # fmt: skip

EXAMPLE = "jaxcache warm train.py --steps 1"
EXIT_CODES = (0, 1, 2, 13, 130)
#: What follows the script's name belongs to the script.
CONTEXT_SETTINGS = {"allow_interspersed_args": False, "ignore_unknown_options": False}


def command(
    script: Annotated[str, typer.Argument(metavar="SCRIPT", help="The Python script to run.")],
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="[ARG]...", help="Its own arguments.", show_default=False),
    ] = None,
    cache_dir: CacheDir = None,
    python: Python = None,
    platform: Platform = None,
    devices: Devices = None,
    force_cache_dir: ForceCacheDir = False,
    fail_on_miss: FailOnMiss = None,
    timeout: Timeout = None,
    json: Json = False,
    jsonl: Jsonl = False,
) -> None:
    """Run a script with the cache on, and account for every compile.

    The script runs unchanged in its own Python; its output, input and exit code pass through.
    The thresholds below which JAX does not cache are lifted. The report goes to standard error;
    with --json it goes to standard output, and the script's own output to standard error.
    """
    from jaxcache.cli.output_warm import announce, finish, warm_options
    from jaxcache.warm.run import warm_script

    options = warm_options(
        cache_dir, python=python, platform=platform, devices=devices, timeout=timeout,
        force_cache_dir=force_cache_dir, document=json or jsonl,
    )  # fmt: skip
    report = warm_script(script, arguments or [], options, announce())
    finish(report, json=json, jsonl=jsonl, fail_on_miss=fail_on_miss)
