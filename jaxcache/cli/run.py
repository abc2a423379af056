"""``jaxcache run``."""

from typing import Annotated

import typer

from jaxcache.cli.optional_value import FailOnMissCommand
from jaxcache.cli.options import (
    AutotuneFrom,
    CacheDir,
    Check,
    CollectOnly,
    Components,
    Except,
    FailOnMiss,
    ForceCacheDir,
    Gemm,
    Json,
    Jsonl,
    Live,
    Patience,
    Portable,
    Processes,
    Record,
    RequireTuned,
    Strict,
    TargetFile,
    Tier,
    Timeout,
    TraceFile,
    choose_format,
)

EXAMPLE = "jaxcache run --fail-on-miss -- ./train.sh"
EXIT_CODES = (0, 1, 2, 13, 130)
CONTEXT_SETTINGS = {"allow_interspersed_args": False}
COMMAND_CLASS = FailOnMissCommand


def command(
    command_line: Annotated[
        list[str], typer.Argument(metavar="CMD...", help="The command, after --.")
    ],
    cache_dir: CacheDir = None,
    force_cache_dir: ForceCacheDir = False,
    live: Live = False,
    tier: Tier = None,
    portable: Portable = False,
    processes: Processes = None,
    fail_on_miss: FailOnMiss = None,
    excepted: Except = None,
    strict: Strict = False,
    check: Check = False,
    components: Components = False,
    record: Record = None,
    collect_only: CollectOnly = None,
    patience: Patience = None,
    target: TargetFile = None,
    gemm: Gemm = "cublas",
    autotune_from: AutotuneFrom = None,
    require_tuned: RequireTuned = False,
    trace: TraceFile = None,
    timeout: Timeout = None,
    json: Json = False,
    jsonl: Jsonl = False,
) -> None:
    """Run any command, and report what each compile did.

    JAX's thresholds are left as they are. With --processes the command is run N times, and the
    first Python in each that imports jax is one of the N.
    """
    from jaxcache.cli.output.warm import Verdict, finish, read_cross, warm_options
    from jaxcache.cli.terminal.live import watch
    from jaxcache.warm.run import run_command

    form = choose_format(json=json, jsonl=jsonl)
    verdict = Verdict(fail_on_miss, excepted or (), strict=strict, check=check)
    cross = read_cross(
        target,
        gemm=gemm,
        autotune_from=autotune_from,
        require_tuned=require_tuned,
        force_cache_dir=force_cache_dir,
        record=record,
        processes=processes,
        check=check,
        collect_only=collect_only,
    )
    options = warm_options(
        cache_dir,
        timeout=timeout,
        force_cache_dir=force_cache_dir,
        form=form,
        components=components,
        record=record,
        portable=portable,
        target=cross,
        live=live,
        tiers=tier,
        processes=processes,
        check=check,
        collect=collect_only,
        patience=patience,
    )
    report = run_command(command_line, options, watch())
    finish(report, verdict, form, trace=trace)
