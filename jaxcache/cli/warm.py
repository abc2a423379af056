"""``jaxcache warm``."""

from typing import Annotated

import typer

from jaxcache.cli.optional_value import WarmCommand
from jaxcache.cli.options import (
    AutotuneFrom,
    CacheDir,
    Check,
    CollectOnly,
    Components,
    Devices,
    Except,
    FailOnMiss,
    ForceCacheDir,
    Gemm,
    Json,
    Jsonl,
    Live,
    Patience,
    Platform,
    Portable,
    Processes,
    Python,
    Record,
    RequireTuned,
    Strict,
    TargetFile,
    Tier,
    Timeout,
    TraceFile,
    choose_format,
)

EXAMPLE = "jaxcache warm train.py --steps 1"
EXIT_CODES = (0, 1, 2, 13, 130)
#: What follows the script's name belongs to the script.
CONTEXT_SETTINGS = {"allow_interspersed_args": False, "ignore_unknown_options": False}
COMMAND_CLASS = WarmCommand


def command(
    script: Annotated[
        str | None,
        typer.Argument(
            metavar="[SCRIPT|MODULE:FUNCTION]",
            help="The Python script to run, or a function to compile without running it.",
            show_default=False,
        ),
    ] = None,
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="[ARG]...", help="Its own arguments.", show_default=False),
    ] = None,
    module: Annotated[
        str | None,
        typer.Option(
            "-m", metavar="NAME", help="Run a module, as python -m does; the rest is its own."
        ),
    ] = None,
    file: Annotated[
        str | None,
        typer.Option(metavar="LIST", help="A TOML file that names several scripts, instead."),
    ] = None,
    arg: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[NAME=]ARG",
            help="An argument of FUNCTION: 'f32[8,128]', key[], or a Python literal; repeatable.",
            show_default=False,
        ),
    ] = None,
    static: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE", help="A static argument of FUNCTION.", show_default=False
        ),
    ] = None,
    args: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="A TOML file with FUNCTION's arguments: pytrees."),
    ] = None,
    committed: Annotated[
        bool, typer.Option("--committed", help="FUNCTION's arrays are committed to a device.")
    ] = False,
    jobs: Annotated[
        int, typer.Option(min=1, metavar="N", help="Run so many scripts of the list at once.")
    ] = 1,
    cache_dir: CacheDir = None,
    python: Python = None,
    platform: Platform = None,
    devices: Devices = None,
    processes: Processes = None,
    mock_gpu_topology: Annotated[
        str | None, typer.Option(metavar="NxNxN", help="Sets JAX_MOCK_GPU_TOPOLOGY.")
    ] = None,
    force_cache_dir: ForceCacheDir = False,
    live: Live = False,
    tier: Tier = None,
    portable: Portable = False,
    fail_on_miss: FailOnMiss = None,
    excepted: Except = None,
    strict: Strict = False,
    check: Check = False,
    seal: Annotated[
        bool, typer.Option("--seal", help="Seal what was written; see jaxcache seal.")
    ] = False,
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
    """Run a script or a function, and report what each compile did.

    SCRIPT may be a folder with a __main__.py, or a notebook, whose code cells are run.

    The script runs unchanged in its own Python; its output, input and exit code pass through.
    The thresholds below which JAX does not cache are lifted. The report goes to standard error;
    with --json it goes to standard output, and the script's own output to standard error.

    MODULE:FUNCTION (or FILE.py:FUNCTION) is lowered and compiled for --arg without being run.
    """
    from jaxcache.cli.output.warm import Verdict, finish, programs, read_cross, warm_options
    from jaxcache.cli.terminal.live import watch
    from jaxcache.warm.arguments import Words
    from jaxcache.warm.run import warm_programs

    form = choose_format(json=json, jsonl=jsonl)
    verdict = Verdict(fail_on_miss, excepted or (), strict=strict, check=check)
    cross = read_cross(
        target,
        gemm=gemm,
        autotune_from=autotune_from,
        require_tuned=require_tuned,
        platform=platform,
        processes=processes,
        mock_gpu_topology=mock_gpu_topology,
        force_cache_dir=force_cache_dir,
        check=check,
        record=record,
        collect_only=collect_only,
    )
    options = warm_options(
        cache_dir,
        python=python,
        platform=platform,
        devices=devices,
        timeout=timeout,
        force_cache_dir=force_cache_dir,
        form=form,
        components=components,
        processes=processes,
        jobs=jobs,
        check=check,
        seal=seal,
        mock_gpu_topology=mock_gpu_topology,
        record=record,
        portable=portable,
        collect=collect_only,
        patience=patience,
        target=cross,
        live=live,
        tiers=tier,
    )
    call = Words(tuple(arg or ()), tuple(static or ()), args, committed)
    chosen = programs(script, arguments, file, call, module=module)
    report = warm_programs(chosen, options, watch())
    finish(report, verdict, form, trace=trace)
