"""Run the user's jax in child processes: warming, compiling recipes, explaining scripts."""

import os
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from jaxcache.api.handle import Handle
from jaxcache.layouts import load_layout
from jaxcache.layouts.base import FunctionGroup
from jaxcache.options import run as options_run

if TYPE_CHECKING:
    from typing import Unpack

    from jaxcache.cache.doctor.run_checks import Diagnosis
    from jaxcache.cache.explain.sides import Explanation
    from jaxcache.options.keywords import CompileKeywords, DoctorKeywords, RunKeywords, WarmKeywords
    from jaxcache.warm.compiling.run import ShowProgress
    from jaxcache.warm.compiling.worker import CompileReport
    from jaxcache.warm.report.report import Report
    from jaxcache.warm.where import Use


class Runner:
    """The functions for programs of JAX, in modules that are imported when they are used."""

    #: The fields of the options of ``run`` and ``warm`` that it knows; None for all.
    options: Collection[str] | None = None
    #: Run a command or a program, and report what its cache did.
    runs: FunctionGroup[Any] = FunctionGroup("jaxcache.warm.run")
    #: Runs a program, and explains why each of its compiles missed.
    explains: FunctionGroup[Any] = FunctionGroup("jaxcache.warm.explain")
    #: Makes the view of a report.
    views: FunctionGroup[Any] = FunctionGroup("jaxcache.render.warm")
    #: Sets what is inside one entry.
    pages: FunctionGroup[Any] = FunctionGroup("jaxcache.render.show")


class TorchRunner(Runner):
    """The functions for programs of torch."""

    options = ("python", "timeout_seconds")
    runs = FunctionGroup("jaxcache.warm.torch.run")
    explains = FunctionGroup("jaxcache.warm.torch.explain")
    views = FunctionGroup("jaxcache.render.torch")
    pages = FunctionGroup("jaxcache.render.torch")


def runner_of(layout: str | None) -> Runner:
    """Return the runner of a layout; JAX's by default: a program's compiler is not known before."""
    return TorchRunner() if layout == "torch" else Runner()


RunOptionsT = TypeVar("RunOptionsT", bound=options_run.RunOptions)


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
        from jaxcache.warm.programs import WarmProgram

        runner, chosen = self._place(options_run.WarmOptions.read(**keywords))
        report: Report = runner.runs.warm_program(WarmProgram(os.fspath(script), arguments), chosen)
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
        from jaxcache.warm.programs import WarmProgram, read_call

        call_options = options_run.CallOptions(
            words=arguments, static=tuple(static), committed=committed
        )
        runner, chosen = self._place(options_run.WarmOptions.read(**keywords))
        report: Report = runner.runs.warm_program(
            WarmProgram(call=read_call(function, call_options)), chosen
        )
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

        runner, chosen = self._place(options_run.RunOptions.read(**keywords))
        report: Report = runner.runs.run_command(command, chosen)
        return report

    def compile(
        self,
        recipe: str | os.PathLike[str],
        *,
        watch: "ShowProgress | None" = None,
        options: options_run.CompileOptions | None = None,
        **keywords: "Unpack[CompileKeywords]",
    ) -> "CompileReport":
        """Compile a recorded recipe into this cache, without its script.

        >>> report = cache.warm("train.py", record="train.recipe")
        >>> other.compile("train.recipe").count("failed")
        0

        Args:
            watch: makes the observer that is called when a job begins and when it ends.
            keywords: those of :class:`jaxcache.options.run.CompileOptions`: ``jobs=8``,
                ``shard="1/4"``, ``check=True`` to compile nothing and report what would hit, …

        Raises:
            RecipeError: the recipe cannot be read, or was changed.
            NoJaxError: no Python with jax was found.
            UsageError: options that do not go together.
        """
        from jaxcache.warm.compiling.run import compile_recipe

        chosen = options_run.CompileOptions.choose(options, **keywords)
        chosen.check()
        self.refuse_caches_below()
        if not (chosen.used_at or chosen.portable):
            chosen = chosen.replace(used_at=self.spelling)
        return compile_recipe(os.fspath(recipe), self.location.path, chosen, watch)

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
        from jaxcache.warm.programs import WarmProgram

        runner, chosen = self._place(options_run.WarmOptions.read(**keywords))
        program = WarmProgram(os.fspath(script), arguments)
        explanation: Explanation = runner.explains.explain_script(program, chosen)[0]
        return explanation

    def diagnose(
        self,
        *,
        used: "Use | None" = None,
        refused: "Mapping[tuple[str, str], int] | None" = None,
        dry_run: bool = False,
        options: options_run.DoctorOptions | None = None,
        **keywords: "Unpack[DoctorKeywords]",
    ) -> "Diagnosis":
        """Show the settings that JAX would use here, and find known problems.

        >>> diagnosis = cache.diagnose()
        >>> diagnosis.no_jax is None
        True

        Args:
            used: how a program used the cache (:func:`jaxcache.warm.where.find_where`): its Python
                and its settings count.
            refused: of torch: looks of a program that are no hit or miss, by outcome and reason.
            dry_run: with ``fix=True``, only report what would be repaired.
            keywords: those of :class:`jaxcache.options.run.DoctorOptions`: ``python``, ``fix``,
                ``max_decoded`` (0 decodes all entries).
        """
        from jaxcache.cache.doctor.inputs import with_script
        from jaxcache.cache.doctor.run_checks import diagnose
        from jaxcache.warm.child.query import query_settings

        chosen = options_run.DoctorOptions.choose(options, **keywords)
        if self.compiler == "torch":
            chosen.check_known("torch", ())
            examine: Callable[..., Diagnosis] = load_layout("torch").examines.diagnose
            with self.progress("reading entries") as progress:
                return examine(self.path, os.environ, refused or {}, progress=progress)
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
