"""``compile``: fill a cache from a recipe, or report which entries would be added."""

import time
from collections.abc import Sequence
from contextvars import copy_context

from jaxcache.cache.allow_lists import MOST_DEVICES, MOST_PROCESSES
from jaxcache.cache.files import scratch_directory
from jaxcache.cache.recipe import RecipeFile, open_recipe
from jaxcache.core.system import available_cores
from jaxcache.errors import JaxcacheError, UsageError
from jaxcache.layouts import check_not_torch
from jaxcache.model import report_progress
from jaxcache.options.run import CompileOptions
from jaxcache.store import make_store
from jaxcache.store.location import absolute_location
from jaxcache.warm.child.child import find_python
from jaxcache.warm.compiling import worker
from jaxcache.warm.compiling.pool import Pool, Session, compile_on_cluster, key_notes, version_notes
from jaxcache.warm.crosshost.cross_target import CrossTarget, Delivery, read_cross


def compile_recipe(recipe: str, cache_dir: str, options: CompileOptions) -> worker.CompileReport:
    """Compile what the cache lacks, through JAX's own path, so that names are JAX's own.

    Args:
        recipe: the file.
        cache_dir: a directory, which is made where it is missing, or a URL.

    Raises:
        RecipeError: the recipe cannot be read.
        NoJaxError: no usable jax was found.
        UsageError: ``too-few-devices``, ``no-dask``, ``other-platform``, ``several-processes``,
            ``other-layout``.
        JaxcacheError: ``no-platform``, where that holds for the whole recipe; ``no-cluster``.
    """
    cross = read_cross(options)
    options = options.replace(jobs=options.jobs or available_cores())
    with open_recipe(recipe) as file:
        shard = worker.parse_shard(options.shard) if options.shard else None
        plan = worker.plan_compile(file, shard=shard)
        location = absolute_location(cache_dir)
        used_at = "" if options.portable else options.used_at or location
        _check_size(plan, options)
        _check_target(plan, cross)
        store = make_store(location)
        check_not_torch(store)
        session = Session(file, Delivery(store), options, used_at, cross)
        report = copy_context().run  # its threads have contexts of their own
        session.progress = lambda done: report(report_progress, done, len(plan.jobs))
        return _compile(file, plan, session)


def _compile(file: RecipeFile, plan: worker.CompilePlan, session: Session) -> worker.CompileReport:
    options = session.options
    started = time.monotonic()
    try:
        if options.dask is None:
            done, refusals, interrupted = _compile_here(plan, session)
        else:
            done, refusals, interrupted = compile_on_cluster(options.dask, plan, session)
    finally:
        session.delivery.remember()
    if refusals and all(m.reason == "not-started" for m in done):
        raise refusals[0]
    notes = (
        *(error.message for error in refusals),
        *version_notes(file.recipe.environments, session.jax),
        *key_notes(done),
    )
    return worker.CompileReport(
        cache_dir=session.delivery.url,
        recipe=file.path,
        modules=(*done, *(worker.refused(*refusal) for refusal in plan.refused)),
        wall_seconds=time.monotonic() - started,
        check=options.check_only,
        interrupted=interrupted,
        unreached=len(plan.jobs) - len(done),
        notes=notes,
    )


def _compile_here(
    plan: worker.CompilePlan, session: Session
) -> tuple[list[worker.CompileResult], Sequence[JaxcacheError], bool]:
    options = session.options
    python = find_python(options.python)
    with scratch_directory("compile") as top:
        cross = session.cross
        target = cross.write_request(top, session.delivery.url) if cross else None

        def make_processes(job: worker.Job) -> worker.Processes:
            return worker.Processes(
                python, job.environment, devices=options.devices, directory=top, target=target
            )

        widest = max((j.environment.process_count for j in plan.jobs), default=1)
        pool = Pool(
            session,
            make_processes,
            max(1, (options.jobs or 1) // widest),
            memory_bytes=options.max_memory_bytes,
        )
        interrupted = pool.run(plan.jobs)
    results = [pool.results[i] for i in sorted(pool.results)]
    return results, list(pool.refusals.values()), interrupted


def _check_size(plan: worker.CompilePlan, options: CompileOptions) -> None:
    """Refuse numbers of devices and processes that are not sane, or not what the caller requests.

    Raises:
        UsageError: ``too-few-devices``, ``too-many-devices``, ``too-many-processes``.
    """
    for job in plan.jobs:
        needed = job.environment.device_count
        count = job.environment.process_count
        if options.devices is None and needed > MOST_DEVICES:
            raise UsageError(
                f"the recipe needs {needed} devices",
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
        if count > max(MOST_PROCESSES, options.jobs or 1):
            raise UsageError(
                f"the recipe needs {count} processes",
                code="too-many-processes",
                hint=f"to start so many, allow them: --jobs {count}",
            )


def _check_target(plan: worker.CompilePlan, target: CrossTarget | None) -> None:
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
    several = max(j.environment.process_count for j in plan.jobs) > 1 if plan.jobs else False
    if several or target.processes:
        raise UsageError(
            f"{'the recipe' if several else 'the target'} is of several processes, and a recipe is "
            "compiled for a target by one",
            code="several-processes",
            hint="warm the script itself with --target DIR",
        )
