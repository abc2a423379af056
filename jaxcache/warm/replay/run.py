"""``compile``: fill a cache from a recipe, or say what it would be filled with."""

import os
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from jaxcache.cache.bundle.compat import path_in_key
from jaxcache.cache.recipe.format import RecipeFile
from jaxcache.cache.recipe.model import Environment, Request
from jaxcache.cache.recipe.refusals import REFUSALS, kept_flags
from jaxcache.errors import UsageError
from jaxcache.store.base import Store
from jaxcache.warm.replay.deliver import Delivery, facts_of
from jaxcache.warm.replay.plan import CompilePlan, Job, Refused
from jaxcache.warm.replay.pool import Pool, Watcher
from jaxcache.warm.replay.report import Compiled, CompileReport
from jaxcache.warm.replay.worker import Team
from jaxcache.warm.run import find_python
from jaxcache.warm.target.delivery import Aim


@dataclass(frozen=True, slots=True)
class CompileOptions:
    """How to compile a recipe."""

    used_at: str
    """The cache directory as JAX is going to be given it; it is part of some keys."""
    python: str | None = None
    jobs: int = 1
    devices: int | None = None
    """CPU devices that a worker pretends to have, instead of as many as were recorded."""
    memory_bytes: int | None = None
    """Of all workers together."""
    check: bool = False
    """Make the keys, and compile nothing."""
    target: Aim | None = None
    """A host that is not here, on which the recipe was recorded or whose platform it is for."""


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
        UsageError: ``too-few-devices``.
        JaxcacheError: ``no-platform``, where that holds for the whole recipe.
    """
    python = find_python(options.python)
    check_devices(plan, options.devices)
    check_target(plan, options.target)
    started = time.monotonic()
    session = _Session(file, Delivery(store), options)
    with tempfile.TemporaryDirectory(prefix="jaxcache-compile-", ignore_cleanup_errors=True) as top:
        target = options.target.write_request(top, store.url) if options.target else None

        def make_team(job: Job) -> Team:
            return session.start(
                Team(
                    python,
                    job.environment,
                    devices=options.devices,
                    folder=tempfile.mkdtemp(dir=top),
                    target=target,
                )
            )

        pool = Pool(
            make_team, session.do, options.jobs, memory_bytes=options.memory_bytes, watcher=watcher
        )
        try:
            interrupted = pool.run(plan.jobs)
        finally:
            session.delivery.remember()
    done = [pool.results[i] for i in sorted(pool.results)]
    if pool.refusals and all(m.reason == "not-started" for m in done):
        raise pool.refusals[0]
    notes = [e.message for e in pool.refusals]
    return CompileReport(
        cache_dir=store.url,
        recipe=file.path,
        modules=(*done, *(_refused(r) for r in plan.refused)),
        wall_seconds=time.monotonic() - started,
        check=options.check,
        interrupted=interrupted,
        unreached=len(plan.jobs) - len(done),
        notes=(*notes, *_version_notes(file.recipe.environments, session.ready), *_key_notes(done)),
    )


class _Session:
    """Has one job done by a team: what is common to all of them."""

    def __init__(self, file: RecipeFile, delivery: Delivery, options: CompileOptions) -> None:
        self._file = file
        self._options = options
        self.delivery = delivery
        self.ready: Mapping[str, Any] = {}
        self._reading = threading.Lock()

    def start(self, team: Team) -> Team:
        """Remember what the first children say of themselves."""
        self.ready = self.ready or team.ready
        return team

    def do(self, team: Team, job: Job) -> Compiled:
        """Compile one request, unless the cache has it or nothing is to be compiled."""
        request = job.request
        with self._reading:
            blobs = (self._file.blob(request.bytecode), self._file.blob(request.options))
        seen: dict[str, Any] = {}

        def ask(key: str, components: Mapping[str, str]) -> bool:
            seen.update(key=key, components=components, cached=self.delivery.has(key))
            return not (seen["cached"] or self._options.check)

        process = job.environment.process_id
        written = team.compile(request, process, self._options.used_at, blobs, ask)
        key, components = str(seen.get("key")), seen.get("components", {})
        differs = _differing(request, key, components)
        result = Compiled(
            module=request.module,
            key=key,
            outcome="already-cached" if seen.get("cached") else "missing",
            recorded_key=request.key,
            compile_seconds=request.compile_seconds,
            differs=differs,
            moved=differs == ("compile_options",) and self._is_moved(job.environment, team),
            function=request.function,
            doubts=request.doubts,
        )
        if written is None:
            return result
        seconds = written.seconds
        flags = " ".join(sorted(_key_flags(job.environment)))
        facts = facts_of(request, team.ready, components, seconds, flags)
        if written.tuning is not None:
            facts["tuning"] = written.tuning
        target = self._options.target
        size_bytes = self.delivery.take(
            written.file, key, facts, codec=target.profile.codec if target else None
        )
        outcome = "already-cached" if size_bytes is None else "written"
        return replace(
            result, outcome=outcome, compile_seconds=seconds, size_bytes=size_bytes,  # type: ignore[arg-type]
            tuning=written.tuning,
        )  # fmt: skip

    def _is_moved(self, environment: Environment, team: Team) -> bool:
        """Whether the directory is part of the key, and another one than where it was recorded."""
        return environment.cache_dir != self._options.used_at and path_in_key(
            str(team.ready.get("jax_version"))
        )


def _key_flags(environment: Environment) -> Iterator[str]:
    for flags in (environment.xla_flags, environment.libtpu_init_args, environment.argv_flags):
        yield from kept_flags(flags)


def _differing(request: Request, key: str, components: Mapping[str, str]) -> tuple[str, ...]:
    """The parts of a key that are not as recorded."""
    if request.key is None or key == request.key:
        return ()
    names = dict.fromkeys([*components, *request.components])
    found = tuple(n for n in names if components.get(n) != request.components.get(n))
    return found or ("unknown",)


def _refused(refused: Refused) -> Compiled:
    request = refused.request
    return Compiled(
        module=request.module, key=request.key, outcome="refused", recorded_key=request.key,
        compile_seconds=request.compile_seconds, reason=refused.reason,
        detail=REFUSALS[refused.reason], attempts=0, function=request.function,
        doubts=request.doubts,
    )  # fmt: skip


def check_devices(plan: CompilePlan, devices: int | None) -> None:
    """Refuse a number of devices that the recipe cannot be compiled with.

    Raises:
        UsageError: ``too-few-devices``.
    """
    if devices is None:
        return
    for job in plan.jobs:
        needed = job.environment.device_count
        if job.environment.platform == "cpu" and devices < needed:
            raise UsageError(
                f"{job.request.module} was recorded with {needed} devices, and not {devices}",
                code="too-few-devices",
                hint=f"--devices {needed}, or none: then it is as recorded",
            )


def check_target(plan: CompilePlan, target: Aim | None) -> None:
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
                code="other-platform", hint="record it there, or warm its script with --target",
            )  # fmt: skip
        if environment.process_count > 1:
            raise UsageError(
                "the recipe is of several processes, and a target is one", code="several-processes"
            )


def _version_notes(environments: Sequence[Environment], ready: Mapping[str, Any]) -> Iterator[str]:
    """Say where this jax is not the one that recorded, and what follows from that."""
    if not ready:
        return
    for name, shown in (("jax_version", "jax"), ("jaxlib_version", "jaxlib")):
        others = {getattr(e, name) for e in environments} - {ready.get(name)}
        if others:
            yield (
                f"recorded with {shown} {', '.join(sorted(others))}, compiled with "
                f"{shown} {ready.get(name)}: the keys are those of the latter"
            )
    here = ready.get("jaxlib_digest")
    if any(
        e.jaxlib_version == ready.get("jaxlib_version") and e.jaxlib_digest not in (None, here)
        for e in environments
    ):
        yield "this is another build of the jaxlib that recorded, and keys do not tell them apart"


def _key_notes(done: Sequence[Compiled]) -> Iterator[str]:
    if moved := sum(m.moved for m in done):
        yield (
            f"{moved} keys are for this directory instead of the one where they were recorded, "
            "which this jax hashes"
        )
    differing = [m for m in done if m.differs and not m.moved]
    if differing:
        parts = Counter(name for m in differing for name in m.differs)
        names = ", ".join(f"{name} ({count})" for name, count in parts.most_common())
        yield f"{len(differing)} keys are not the recorded ones, which differ in {names}"


def absolute(location: str) -> str:
    """A directory as JAX is given it by ``warm``: absolute; a URL as it is."""
    return location if "://" in location else os.path.abspath(location)


def default_jobs() -> int:
    """One worker per core; XLA's own threads fill what they leave."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return cores or 1
