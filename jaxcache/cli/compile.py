"""``jaxcache compile``."""

from typing import Annotated

import typer

from jaxcache.cli.options import (
    AutotuneFrom,
    CacheDir,
    Gemm,
    Json,
    Jsonl,
    Portable,
    Python,
    Quiet,
    RequireTuned,
    TargetFile,
    choose_format,
    locate_cache,
)
from jaxcache.errors import UsageError

EXAMPLE = "jaxcache compile train.recipe -C /var/cache/jax --jobs 8"
EXIT_CODES = (0, 1, 2, 3, 10, 13, 130)


def command(
    recipe: Annotated[
        str, typer.Argument(metavar="RECIPE", help="What jaxcache warm --record has written.")
    ],
    cache_dir: CacheDir = None,
    jobs: Annotated[
        int | None,
        typer.Option("--jobs", "-j", min=1, metavar="N", help="Workers; default: one per core."),
    ] = None,
    shard: Annotated[
        str | None,
        typer.Option(metavar="I/N", help="Compile the I-th of N parts; others do the rest."),
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Compile nothing; say what would hit, and why not.")
    ] = False,
    used_at: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="Where the cache is going to be used, if not at -C."),
    ] = None,
    portable: Portable = False,
    devices: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="CPU devices, if not as recorded.")
    ] = None,
    target: TargetFile = None,
    gemm: Gemm = "cublas",
    autotune_from: AutotuneFrom = None,
    require_tuned: RequireTuned = False,
    max_memory: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="Of all workers; default: 4/5 of what is available."),
    ] = None,
    dask: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="A dask scheduler whose workers do it: tcp://…"),
    ] = None,
    python: Python = None,
    json: Json = False,
    jsonl: Jsonl = False,
    quiet: Quiet = False,
) -> None:
    """Compile a recorded recipe into a cache, without its script.

    What the cache has already is left alone. Workers are processes with the devices, flags and
    settings that were recorded; a module that kills its worker is tried once more and then named.
    """
    from jaxcache.cache.recipe.format import open_recipe
    from jaxcache.cli.output.compile import finish, watch
    from jaxcache.cli.output.warm import read_cross
    from jaxcache.store import make_store
    from jaxcache.units import parse_size_bytes
    from jaxcache.warm.replay.plan import parse_shard, plan_compile
    from jaxcache.warm.replay.run import absolute, compile_recipe, default_jobs
    from jaxcache.warm.replay.session import CompileOptions

    if portable and used_at:
        raise UsageError("--portable and --used-at exclude each other")
    form = choose_format(json=json, jsonl=jsonl, quiet=quiet)
    cross = read_cross(
        target,
        gemm=gemm,
        autotune_from=autotune_from,
        require_tuned=require_tuned,
        devices=devices,
        dask=dask,
    )
    with open_recipe(recipe) as file:
        plan = plan_compile(file, shard=parse_shard(shard) if shard else None)
        location = absolute(locate_cache(cache_dir).path)
        options = CompileOptions(
            used_at="" if portable else absolute(used_at) if used_at else location,
            python=python,
            jobs=jobs or default_jobs(),
            devices=devices,
            memory_bytes=parse_size_bytes(max_memory) if max_memory else None,
            check=check,
            target=cross,
            dask=dask,
        )
        with watch(plan, options.jobs) as watcher:
            report = compile_recipe(file, plan, make_store(location), options, watcher)
    finish(report, form)
