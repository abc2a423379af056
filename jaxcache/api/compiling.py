"""Run the user's jax in child processes: warming, compiling recipes, explaining scripts."""

import os
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from jaxcache.api.handle import Handle
from jaxcache.layouts import load_layout

if TYPE_CHECKING:
    from typing import Unpack

    from jaxcache.cache.doctor.run_checks import Diagnosis
    from jaxcache.cache.explain.sides import Explanation
    from jaxcache.options.keywords import (
        CompileKeywords,
        DoctorKeywords,
        RunKeywords,
        WarmKeywords,
    )
    from jaxcache.options.run import DoctorOptions, RunOptions
    from jaxcache.warm.compiling.worker import CompileReport
    from jaxcache.warm.report.report import Report
    from jaxcache.warm.where import Use


class Runner(NamedTuple):
    """The functions for the programs of one compiler."""

    options: Collection[str] | None
    """The fields of the options of ``run`` and ``warm`` that it knows; None for all."""
    run: Callable[..., Any]
    """Runs a command (words, options, callbacks) and reports what its cache did."""
    warm: Callable[..., Any]
    """Runs a program in the same way, with all of the cache on."""
    explain_script: Callable[..., Any]
    """Runs a program (that, options) and explains why each of its compiles missed."""
    report_view: Callable[..., Any]
    """Makes the view of the report of ``run`` and ``warm``."""


def runner_of(layout: str | None) -> Runner:
    """Return the runner of a layout; JAX's by default: a program's compiler is not known before.

    Raises:
        UsageError: ``bad-layout``.
    """
    if layout is not None and load_layout(layout).name == "torch":
        from jaxcache.render.torch import report_view
        from jaxcache.warm.torch.explain import explain_script
        from jaxcache.warm.torch.run import run_command, warm_program

        options = ("python", "timeout_seconds")
        return Runner(options, run_command, warm_program, explain_script, report_view)
    from jaxcache.warm.run import run_command as run_jax
    from jaxcache.warm.run import warm_program as warm_jax

    return Runner(None, run_jax, warm_jax, _explain_jax, _view_jax)


def _explain_jax(*args: Any, **keywords: Any) -> Any:
    from jaxcache.warm.explain import explain_script  # only `explain` needs it

    return explain_script(*args, **keywords)


def _view_jax(*args: Any, **keywords: Any) -> Any:
    from jaxcache.render.warm import report_view  # imported while the program runs

    return report_view(*args, **keywords)


RunOptionsT = TypeVar("RunOptionsT", bound="RunOptions")


class CompilingMethods(Handle):
    """See :class:`jaxcache.api.Cache`."""

    def _place(self, options: RunOptionsT) -> "tuple[Runner, RunOptionsT]":

        runner = runner_of(self.layout.name)
        options.check_known(self.layout.name, runner.options)
        return runner, options.replace(
            cache_dir=self.store.url, jax_cache_dir=self.spelling or self.store.url
        )

    def warm(
        self, script: str | os.PathLike[str], *arguments: str, **keywords: "Unpack[WarmKeywords]"
    ) -> "Report":
        """Run a script with this cache on, and account for every compile.

        On a cache of torch it returns a :class:`jaxcache.warm.torch.run.TorchReport`.

        >>> report = cache.warm("train.py")
        >>> report.script_exit_code
        0

        Args:
            keywords: those of :class:`jaxcache.options.run.WarmOptions`:
                ``python="/path/to/python"``,
                ``platform="cpu"``, ``timeout="10m"``, ``record="train.recipe"``, …

        Raises:
            UsageError: no such script, or no such Python.
            NoJaxError: that Python has no jax.
        """
        from jaxcache.options.run import WarmOptions
        from jaxcache.warm.programs import WarmProgram

        runner, chosen = self._place(WarmOptions.read(**keywords))
        report: Report = runner.warm(WarmProgram(os.fspath(script), arguments), chosen)
        return report

    def warm_function(
        self,
        function: str,
        *arguments: str,
        static: tuple[str, ...] = (),
        committed: bool = False,
        **keywords: "Unpack[WarmKeywords]",
    ) -> "Report":
        """Compile a function without running it, with the keys of the plain call.

        >>> report = cache.warm_function("train.py:double", "f32[8]")
        >>> {module.module: module.outcome for module in report.modules}["jit_double"]
        'written'

        Args:
            function: ``"MODULE:FUNCTION"`` or ``"FILE.py:FUNCTION"``.
            arguments: ``"f32[8,128]"``, a Python literal, or ``NAME=`` and one of these.
            static: static arguments, as ``"NAME=VALUE"``.
            committed: whether the arrays are committed to a device.
            keywords: as of :meth:`warm`.

        Raises:
            UsageError: ``bad-argument``, or no such Python.
            NoJaxError: that Python has no jax.
        """
        from jaxcache.options.run import CallOptions, WarmOptions
        from jaxcache.warm.programs import WarmProgram, read_call

        call_options = CallOptions(words=arguments, static=tuple(static), committed=committed)
        runner, chosen = self._place(WarmOptions.read(**keywords))
        report: Report = runner.warm(WarmProgram(call=read_call(function, call_options)), chosen)
        return report

    def run(self, *command: str, **keywords: "Unpack[RunKeywords]") -> "Report":
        """Run any command with this cache on; JAX's thresholds are left as they are.

        >>> report = cache.run(sys.executable, "train.py")
        >>> report.script_exit_code
        0

        Args:
            keywords: those of :class:`jaxcache.options.run.RunOptions`.

        Raises:
            UsageError: the command cannot be run.
        """
        from jaxcache.options.run import RunOptions

        runner, chosen = self._place(RunOptions.read(**keywords))
        report: Report = runner.run(command, chosen)
        return report

    def compile(
        self, recipe: str | os.PathLike[str], **keywords: "Unpack[CompileKeywords]"
    ) -> "CompileReport":
        """Compile a recorded recipe into this cache, without its script.

        >>> report = cache.warm("train.py", record="train.recipe")
        >>> other.compile("train.recipe").count("failed")
        0

        Args:
            keywords: those of :class:`jaxcache.options.run.CompileOptions`: ``jobs=8``,
                ``shard="1/4"``, ``check=True`` to compile nothing and report what would hit, …

        Raises:
            RecipeError: the recipe cannot be read, or was changed.
            NoJaxError: no Python with jax was found.
            UsageError: options that do not go together.
        """
        from jaxcache.options.run import CompileOptions
        from jaxcache.warm.compiling.run import compile_recipe

        chosen = CompileOptions.read(**keywords)
        if not (chosen.used_at or chosen.portable):
            chosen = chosen.replace(used_at=self.spelling or self.store.url)
        return compile_recipe(os.fspath(recipe), self.store.url, chosen)

    def explain_script(
        self, script: str | os.PathLike[str], *arguments: str, **keywords: "Unpack[WarmKeywords]"
    ) -> "Explanation":
        """Run a script with this cache on, and explain why each compile missed.

        >>> len(cache.explain_script("train.py").comparisons) > 0
        True

        Args:
            keywords: as of :meth:`warm`.

        Raises:
            UsageError: no such script, or no such Python.
            NoJaxError: that Python has no jax.
        """
        from jaxcache.options.run import WarmOptions
        from jaxcache.warm.programs import WarmProgram

        runner, chosen = self._place(WarmOptions.read(**keywords))
        program = WarmProgram(os.fspath(script), arguments)
        explanation: Explanation = runner.explain_script(program, chosen)[0]
        return explanation

    def diagnose(
        self,
        *,
        used: "Use | None" = None,
        dry_run: bool = False,
        options: "DoctorOptions | None" = None,
        **keywords: "Unpack[DoctorKeywords]",
    ) -> "Diagnosis":
        """Show the settings that JAX would use here, and find known problems.

        On a cache of torch it returns a :class:`jaxcache.layouts.torch.doctor.TorchDiagnosis`.

        >>> diagnosis = cache.diagnose()
        >>> diagnosis.no_jax is None
        True

        Args:
            used: how a program used the cache (:func:`jaxcache.warm.where.find_where`): its Python
                and its settings count.
            dry_run: with ``fix=True``, only report what would be repaired.
            keywords: those of :class:`jaxcache.options.run.DoctorOptions`: ``python``, ``fix``,
                ``max_decoded`` (0 decodes all entries).
        """
        from jaxcache.cache.doctor.inputs import with_script
        from jaxcache.cache.doctor.run_checks import diagnose
        from jaxcache.options.run import DoctorOptions
        from jaxcache.warm.child.query import query_settings

        chosen = DoctorOptions.choose(options, **keywords)
        if self.compiler == "torch":
            from jaxcache.layouts.torch import doctor

            chosen.check_known("torch", ())
            diagnosis: Any = doctor.diagnose(self.path, os.environ, {})
            return diagnosis  # type: ignore[no-any-return]
        python = chosen.python or (used.executable if used else None)
        asked = query_settings(python, os.environ)
        with self.progress("reading entries") as progress:
            return diagnose(
                self.location.path,
                settings=with_script(asked.settings, used.settings) if used else asked.settings,
                interpreter=asked.interpreter,
                no_jax=asked.no_jax,
                jax_error=asked.jax_error,
                uncacheable=used.uncacheable if used else None,
                max_decoded=chosen.max_decoded or None,
                fix=chosen.fix,
                dry_run=dry_run,
                progress=progress,
            )
