"""``compile``: fill a cache from a recipe, or say what it would be filled with."""

import os
import tempfile
import time
from collections.abc import Sequence

from jaxcache.cache.allowed import MOST_DEVICES, MOST_PROCESSES
from jaxcache.cache.recipe.format import RecipeFile
from jaxcache.errors import JaxcacheError, UsageError
from jaxcache.store.base import Store
from jaxcache.warm.crosshost.cross import Cross
from jaxcache.warm.delivery import Delivery
from jaxcache.warm.process import find_python
from jaxcache.warm.replay.plan import CompilePlan, Job
from jaxcache.warm.replay.pool import Pool, Watcher
from jaxcache.warm.replay.report import Compiled, CompileReport
from jaxcache.warm.replay.session import CompileOptions, Session, key_notes, refused, version_notes
from jaxcache.warm.replay.worker import Processes


def compile_recipe(
    file: RecipeFile,
    plan: CompilePlan,
    store: Store,
    options: CompileOptions,
    watcher: Watcher | None = None,
) -> CompileReport:
    """Compile what the cache lacks, through JAX's own path, so that names are JAX's own.

    Raises:
        NoJaxError: there is no usable jax.
        UsageError: ``too-few-devices``, ``no-dask``, ``other-platform``, ``several-processes``.
        JaxcacheError: ``no-platform``, where that holds for the whole recipe; ``no-cluster``.
    """
    _check_size(plan, options)
    _check_target(plan, options.target)
    started = time.monotonic()
    session = Session(file, Delivery(store), options)
    try:
        if options.dask is None:
            done, refusals, interrupted = _compile_here(plan, session, watcher)
        else:
            from jaxcache.warm.replay.cluster import compile_on_cluster

            done, refusals, interrupted = compile_on_cluster(options.dask, plan, session, watcher)
    finally:
        session.delivery.remember()
    if refusals and all(m.reason == "not-started" for m in done):
        raise refusals[0]
    notes = (
        *(error.message for error in refusals),
        *version_notes(file.recipe.environments, session.jax),
        *key_notes(done),
    )
    return CompileReport(
        cache_dir=store.url,
        recipe=file.path,
        modules=(*done, *map(refused, plan.refused)),
        wall_seconds=time.monotonic() - started,
        check=options.check,
        interrupted=interrupted,
        unreached=len(plan.jobs) - len(done),
        notes=notes,
    )


def _compile_here(
    plan: CompilePlan, session: Session, watcher: Watcher | None
) -> tuple[list[Compiled], Sequence[JaxcacheError], bool]:
    options = session.options
    python = find_python(options.python)
    with tempfile.TemporaryDirectory(prefix="jaxcache-compile-", ignore_cleanup_errors=True) as top:
        target = options.target.write_request(top, session.delivery.url) if options.target else None

        def make_processes(job: Job) -> Processes:
            return Processes(
                python, job.environment, devices=options.devices, folder=top, target=target
            )

        widest = max((j.environment.process_count for j in plan.jobs), default=1)
        pool = Pool(
            make_processes,
            session.attempt,
            session.conclude,
            max(1, options.jobs // widest),
            memory_bytes=options.memory_bytes,
            watcher=watcher,
        )
        interrupted = pool.run(plan.jobs)
    return [pool.results[i] for i in sorted(pool.results)], pool.refusals, interrupted


def _check_size(plan: CompilePlan, options: CompileOptions) -> None:
    """Refuse numbers of devices and processes that are not sane, or not what the caller asks for.

    Raises:
        UsageError: ``too-few-devices``, ``too-many-devices``, ``too-many-processes``.
    """
    for job in plan.jobs:
        needed, count = job.environment.device_count, job.environment.process_count
        if options.devices is None and needed > MOST_DEVICES:
            raise UsageError(
                f"the recipe asks for {needed} devices",
                code="too-many-devices",
                hint=f"to have so many, name them: --devices {needed}",
            )
        if options.devices and job.environment.platform == "cpu" and options.devices < needed:
            raise UsageError(
                f"{job.request.module} was recorded with {needed} devices, and not "
                f"{options.devices}",
                code="too-few-devices",
                hint=f"--devices {needed}, or none: then it is as recorded",
            )
        if count > max(MOST_PROCESSES, options.jobs):
            raise UsageError(
                f"the recipe asks for {count} processes",
                code="too-many-processes",
                hint=f"to start so many, allow them: --jobs {count}",
            )


def _check_target(plan: CompilePlan, target: Cross | None) -> None:
    """Refuse a recipe that was recorded on another platform than the target's.

    Raises:
        UsageError: ``other-platform``, or ``several-processes``.
    """
    if target is None:
        return
    profile = target.profile
    for environment in {id(j.environment): j.environment for j in plan.jobs}.values():
        if environment.platform not in (profile.platform, profile.lowering_platform):
            raise UsageError(
                f"the recipe is for {environment.platform}, and the target is {profile.devices}",
                code="other-platform",
                hint="record it there, or warm its script with --target",
            )
        if environment.process_count > 1:
            raise UsageError(
                "the recipe is of several processes, and a target is one", code="several-processes"
            )


def absolute(location: str) -> str:
    """A directory as JAX is given it by ``warm``: absolute; a URL as it is."""
    return location if "://" in location else os.path.abspath(location)


def default_jobs() -> int:
    """One worker per core; XLA's own threads fill what they leave."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return cores or 1
