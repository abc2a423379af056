"""What runs the user's jax, in child processes: warming, compiling recipes, explaining scripts."""

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypedDict, Unpack

from jaxcache.api.amounts import Duration, Size, seconds, size_bytes
from jaxcache.store.base import Store

if TYPE_CHECKING:
    from jaxcache.cache.doctor.examine import Diagnosis
    from jaxcache.cache.explain.sides import Explanation
    from jaxcache.warm.crosshost.cross import Cross
    from jaxcache.warm.replay.report import CompileReport
    from jaxcache.warm.report import Report
    from jaxcache.warm.run import WarmOptions


class RunSettings(TypedDict, total=False):
    """How to run a program; each is an option of ``jaxcache warm``."""

    python: str | None
    """The Python that has jax; the running one by default."""
    platform: str | None
    devices: int | None
    processes: int | None
    timeout: Duration | None
    force_cache_dir: bool
    portable: bool
    check: bool
    seal: bool
    components: bool
    record: str | None
    """Where to write a recipe."""
    collect: int | None
    """While recording: answer modules of more operations than this with zeros."""
    target: "str | Cross | None"
    """A profile (``jaxcache target capture``), or one with options of its own."""


class Running:
    """See :class:`jaxcache.api.Cache`."""

    store: Store

    def warm(
        self,
        script: str | os.PathLike[str],
        *arguments: str,
        **settings: Unpack[RunSettings],
    ) -> "Report":
        """Run a script with this cache on, and account for every compile.

        Args:
            settings: see :class:`jaxcache.api.RunSettings`.

        Raises:
            UsageError: no such script, or no such Python.
            NoJaxError: that Python has no jax.
        """
        from jaxcache.warm.run import warm_script

        return warm_script(os.fspath(script), arguments, _options(self.store, settings))

    def warm_function(
        self,
        function: str,
        *arguments: str,
        static: Sequence[str] = (),
        committed: bool = False,
        **settings: Unpack[RunSettings],
    ) -> "Report":
        """Compile a function without running it, with the keys of the plain call.

        Args:
            function: ``"MODULE:FUNCTION"`` or ``"FILE.py:FUNCTION"``.
            arguments: ``"f32[8,128]"``, a Python literal, or ``NAME=`` and one of these.
            static: static arguments, as ``"NAME=VALUE"``.
            committed: whether the arrays are committed to a device.

        Raises:
            UsageError: ``bad-argument``, or no such Python.
            NoJaxError: that Python has no jax.
        """
        from jaxcache.warm.arguments import Words, read_call
        from jaxcache.warm.run import Program, warm_programs

        call = read_call(function, Words(arguments, tuple(static), committed=committed))
        return warm_programs([Program(call=call)], _options(self.store, settings))

    def run(self, *command: str, **settings: Unpack[RunSettings]) -> "Report":
        """Run any command with this cache on; JAX's thresholds are left as they are.

        Raises:
            UsageError: the command cannot be run.
        """
        from jaxcache.warm.run import run_command

        return run_command(command, _options(self.store, settings))

    def compile(
        self,
        recipe: str | os.PathLike[str],
        *,
        python: str | None = None,
        jobs: int | None = None,
        shard: str | None = None,
        check: bool = False,
        used_at: str | os.PathLike[str] | None = None,
        devices: int | None = None,
        target: "str | Cross | None" = None,
        max_memory: Size | None = None,
        dask: str | None = None,
    ) -> "CompileReport":
        """Compile a recorded recipe into this cache, without its script.

        Args:
            jobs: workers; one per core by default.
            shard: the I-th of N parts, as ``"1/4"``.
            check: compile nothing; say what would hit, and why not.
            used_at: where the cache is going to be used, if not where it is.

        Raises:
            RecipeError, NoJaxError, UsageError
        """
        from jaxcache.cache.recipe.format import open_recipe
        from jaxcache.warm.replay.plan import parse_shard, plan_compile
        from jaxcache.warm.replay.run import absolute, compile_recipe, default_jobs
        from jaxcache.warm.replay.session import CompileOptions

        options = CompileOptions(
            used_at=absolute(os.fspath(used_at)) if used_at else self.store.url,
            python=python,
            jobs=jobs or default_jobs(),
            devices=devices,
            memory_bytes=size_bytes(max_memory),
            check=check,
            dask=dask,
            target=_cross(target),
        )
        with open_recipe(os.fspath(recipe)) as file:
            plan = plan_compile(file, shard=parse_shard(shard) if shard else None)
            return compile_recipe(file, plan, self.store, options)

    def explain_script(
        self, script: str | os.PathLike[str], *arguments: str, **settings: Unpack[RunSettings]
    ) -> "Explanation":
        """Run a script with this cache on, and say why each compile missed.

        Raises:
            UsageError: no such script, or no such Python.
            NoJaxError: that Python has no jax.
        """
        from jaxcache.warm.explain import explain_script

        options = _options(self.store, settings)
        return explain_script(os.fspath(script), arguments, options)[0]

    def diagnose(
        self,
        *,
        python: str | None = None,
        fix: bool = False,
        dry_run: bool = False,
        max_decoded: int | None = 200,
    ) -> "Diagnosis":
        """The settings that JAX would use here, and every known trap that is present.

        Args:
            python: the Python that runs JAX; where it has no jax, the rest is examined.
            fix: make the repairs that lose nothing.
            max_decoded: how many of the newest entries are looked into; None: all.
        """
        from jaxcache.cache.doctor.diagnose import diagnose
        from jaxcache.warm.settings import ask_settings

        interpreter, settings, no_jax = ask_settings(python, os.environ)
        return diagnose(
            self.store.url,
            settings=settings,
            interpreter=interpreter,
            no_jax=no_jax,
            max_decoded=max_decoded,
            fix=fix,
            dry_run=dry_run,
        )


def _options(store: Store, settings: RunSettings) -> "WarmOptions":
    from jaxcache.warm.run import WarmOptions

    others = {k: v for k, v in settings.items() if k not in ("timeout", "target")}
    return WarmOptions(
        store.url,
        timeout_seconds=seconds(settings.get("timeout")),
        target=_cross(settings.get("target")),
        **others,  # type: ignore[arg-type]
    )


def _cross(target: "str | Cross | None") -> "Cross | None":
    if not isinstance(target, str):
        return target
    from jaxcache.warm.crosshost.cross import Cross
    from jaxcache.warm.crosshost.profile import read_profile

    return Cross(read_profile(target))
