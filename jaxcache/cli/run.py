"""``jaxcache run``."""

from typing import Annotated

import typer

from jaxcache.cli.options import (
    CacheDir,
    FailOnMiss,
    ForceCacheDir,
    Json,
    Jsonl,
    Timeout,
)  # fmt: skip

EXAMPLE = "jaxcache run --fail-on-miss 0 -- ./train.sh"
EXIT_CODES = (0, 1, 2, 130)
CONTEXT_SETTINGS = {"allow_interspersed_args": False}


def command(
    command_line: Annotated[
        list[str], typer.Argument(metavar="CMD...", help="The command, after --.")
    ],
    cache_dir: CacheDir = None,
    force_cache_dir: ForceCacheDir = False,
    fail_on_miss: FailOnMiss = None,
    timeout: Timeout = None,
    json: Json = False,
    jsonl: Jsonl = False,
) -> None:
    """Run any command with the cache on, and account for every compile of every Python in it.

    JAX's thresholds are left as they are.
    """
    from jaxcache.cli.output_warm import announce, finish, warm_options
    from jaxcache.warm.run import run_command

    options = warm_options(
        cache_dir, timeout=timeout, force_cache_dir=force_cache_dir, document=json or jsonl
    )
    report = run_command(command_line, options, announce())
    finish(report, json=json, jsonl=jsonl, fail_on_miss=fail_on_miss)
