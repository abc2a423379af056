"""Run the user's jax in child processes: warming, compiling recipes, explaining scripts."""

import os
import shlex
import signal
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, cast

from jaxcache import __version__
from jaxcache.api.handle import Handle, refuse_foreign
from jaxcache.errors import JaxcacheError, NoJaxError, UsageError
from jaxcache.layouts import load_layout
from jaxcache.layouts.base import FunctionGroup
from jaxcache.model import Depth
from jaxcache.options import run as options_run
from jaxcache.store import check_made, check_tier, is_remote
from jaxcache.store.location import absolute_location, report_ignored

if TYPE_CHECKING:
    from typing import Unpack

    from jaxcache.cache.doctor.run_checks import BugReport, Diagnosis, Versions
    from jaxcache.cache.explain.sides import Explanation
    from jaxcache.options.keywords import CompileKeywords, DoctorKeywords, RunKeywords, WarmKeywords
    from jaxcache.warm.compiling.worker import CompileReport
    from jaxcache.warm.crosshost.target_profile import ProfileDifference, TargetCheck, TargetProfile
    from jaxcache.warm.programs import WarmProgram
    from jaxcache.warm.report.report import Report
    from jaxcache.warm.where import Use as Use


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

    def start(
        self,
        program: "WarmProgram | Sequence[str]",
        options: options_run.RunOptions,
        on_start: "Callable[[], None]",
    ) -> Any:
        """Run a program or a command line, and return its report.

        Args:
            on_start: called once it has started.
        """
        from jaxcache.warm.child.launch import RunCallbacks
        from jaxcache.warm.programs import WarmProgram

        is_program = isinstance(program, WarmProgram)
        run = self.runs.warm_program if is_program else self.runs.run_command
        return run(program, options, RunCallbacks(on_start))


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


def read_versions() -> "Versions":
    """Look up the versions of jaxcache and of what it runs on."""
    from jaxcache.cache.doctor import run_checks

    return run_checks.read_versions(__version__)


def make_bug_report(
    open_cache: "Callable[[], CompilingMethods]", python: str | None = None
) -> "BugReport":
    """Examine a cache, and describe what was found without paths, names or keys.

    Args:
        open_cache: opens the cache; the report contains the code of its error.
        python: the Python with jax.
    """
    from jaxcache.cache.doctor import run_checks

    diagnosis = error_code = None
    try:
        cache = open_cache()
        cache.refuse_caches_below()
        diagnosis = cache.diagnose(options=options_run.DoctorOptions(python=python))
    except JaxcacheError as error:
        error_code = error.code
    return run_checks.make_bug_report(read_versions(), diagnosis, error_code)


def find_uses(
    command: "Sequence[str]", options: options_run.WhereOptions
) -> "tuple[tuple[Use, ...], str | None]":
    """Run a command as it is; return which caches JAX opens in it, and why one may be missing.

    Raises:
        UsageError: ``cannot-run``.
    """
    from jaxcache.warm.where import find_where

    return find_where(command, options)[:2]


def capture_target(file: str, python: str | None = None) -> "tuple[str, TargetProfile]":
    """Capture the profile of this host; return the path to write it to, too.

    Args:
        file: a directory, which is made, if this host is one of a pod.
    """
    from jaxcache.warm.crosshost.target_profile import capture_profile, pod_file

    is_pod = file.endswith(os.sep) or os.path.isdir(file)
    profile = capture_profile(python, now_ns=time.time_ns(), pod=is_pod)
    if not is_pod:
        return file, profile
    os.makedirs(file, exist_ok=True)
    return pod_file(file, profile), profile


def compare_target(
    file: str, python: str | None = None
) -> "tuple[TargetProfile, Sequence[ProfileDifference] | None, str]":
    """Read a profile, and compare it with this host; without a jax here, return why not.

    Raises:
        NoJaxError: the Python that is named has none.
    """
    from jaxcache.warm.crosshost import target_profile as profiles

    profile = profiles.read_profile(file)
    try:
        here = profiles.capture_profile(python, now_ns=time.time_ns())
    except NoJaxError as error:
        if python is not None:
            raise
        return profile, None, error.message
    return profile, profiles.compare_profiles(profile, here), ""


RunOptionsT = TypeVar("RunOptionsT", bound=options_run.RunOptions)


#: The outcomes of looks that torch made.
_LOOKED = ("hit", "miss")


class CompilingMethods(Handle):
    """See :class:`jaxcache.api.Cache`."""

    def _place(self, options: RunOptionsT) -> "tuple[Runner, RunOptionsT]":

        runner = runner_of(self.layout.name)
        options.check_known(self.layout.name, runner.options)
        return runner, options.replace(
            cache_dir=self.store.url, jax_cache_dir=self.spelling or self.store.url
        )

    def place_run(
        self, options: RunOptionsT, *, for_reader: bool = True
    ) -> "tuple[Runner, RunOptionsT]":
        """Complete the options of a run; a local cache directory need not exist yet.

        >>> from jaxcache.options.run import RunOptions
        >>> runner, placed = cache.place_run(RunOptions())
        >>> placed.cache_dir == cache.path
        True

        Args:
            for_reader: whether standard output is the program's; otherwise it is the report's.

        Raises:
            UsageError: options do not go together, or the directory is a file.
            NoCacheError: the directory cannot be made or read.
            JaxcacheError: ``read-only``: it is empty, and ``warm`` could not fill it.
        """
        options.check()
        is_named = self.location.origin == "--cache-dir"
        # What the variable names is up to the program.
        compiler = self.compiler if is_named else self.layout_name or "jax"
        runner = runner_of(compiler)
        hint = "a run of it takes --timeout, --fail-on-miss, --strict, --trace and --json"
        options.check_known(compiler, runner.options, hint)
        path = absolute_location(self.location.path)
        if os.path.exists(path) and not os.path.isdir(path):
            raise UsageError(f"{path} is a file, not a cache directory", code="not-a-directory")
        if is_named:
            self.refuse_caches_below()
            self.note_foreign()
            if self.existing is None:
                check_made(path)
            elif not (is_remote(path) or options.no_write or self.existing.writable):
                if isinstance(options, options_run.WarmOptions) and not os.listdir(path):
                    self.require_writable()
                self.note(
                    f"note: {path} cannot be written: what this run compiles will not be kept"
                )
        for tier in options.tiers:
            check_tier(tier.removesuffix(":ro"))
        if options.tiers and not (self.spelling or options.force_cache_dir):
            self.note(
                "note: no cache directory is named; unless the program sets one, JAX has none, and "
                "--tier has no effect: add -C DIR"
            )
        return runner, options.replace(
            cache_dir=path, jax_cache_dir=self.spelling, stdout_to_stderr=not for_reader
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
        options: options_run.CompileOptions | None = None,
        **keywords: "Unpack[CompileKeywords]",
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
        from jaxcache.warm.compiling.run import compile_recipe

        chosen = options_run.CompileOptions.choose(options, **keywords)
        chosen.check()
        self.refuse_caches_below()
        if not (chosen.used_at or chosen.portable):
            chosen = chosen.replace(used_at=self.spelling)
        with self.progress("compiling"):
            return compile_recipe(os.fspath(recipe), self.location.path, chosen)

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
        explanation, exit_code = runner.explains.explain_script(program, chosen)
        if exit_code == -signal.SIGINT:
            raise KeyboardInterrupt
        return cast("Explanation", explanation)

    def check_target(self, file: str, *, python: str | None = None) -> "TargetCheck":
        """Compare the keys of this cache with those that this host makes for a profile.

        >>> cache.check_target("h200.json").looked_up  # doctest: +SKIP
        7

        Args:
            file: the profile, or the directory of those of a pod.
            python: the Python with jax.
        """
        from jaxcache.cache.bundle.compat import forecast_path
        from jaxcache.cache.scan import scan
        from jaxcache.core.machine import hashes_path
        from jaxcache.core.names import XLA_CACHES
        from jaxcache.warm.crosshost import target_profile as profiles

        targets = profiles.read_profiles(file)
        entries = scan(self.store, depth=Depth.LISTED).entries
        ledger = self.ledger
        records = [record for entry in entries if (record := ledger.record(entry.key))]
        here = profiles.capture_profile(python, now_ns=self.clock(), pod=len(targets) > 1)
        caches = (None, here.settings.get(XLA_CACHES))
        may_miss = any(hashes_path(here.jax_version, chosen) for chosen in caches)
        bound = forecast_path(self.store, entries if may_miss else (), ledger, self.location.path)
        return profiles.check_target(targets, here, len(entries), records, bound)

    def examine(
        self,
        *command: str,
        options: options_run.DoctorOptions | None = None,
    ) -> "tuple[Diagnosis, Report | None]":
        """Run a command, and diagnose the cache that it uses; return the report of the run, too.

        >>> diagnosis, report = cache.examine(sys.executable, "train.py")
        >>> report.script_exit_code
        0

        Args:
            command: none to diagnose this cache as it is.
            options: as of :meth:`diagnose`.

        Raises:
            UsageError: ``not-a-directory``: it is a bundle.
        """
        from dataclasses import replace

        from jaxcache.warm.report.notes import judge_run
        from jaxcache.warm.where import Use, find_where

        chosen = options or options_run.DoctorOptions()
        path = self.location.path
        if self.compiler == "torch":
            chosen.check_known("torch", ())
            refused: Counter[tuple[str, str]] = Counter()
            if command:
                run = options_run.RunOptions(cache_dir=self.path, stdout_to_stderr=True)
                looks = TorchRunner().runs.run_command(command, run).modules
                refused.update((m.outcome, m.reason) for m in looks if m.outcome not in _LOOKED)
            return self.diagnose(refused=refused, options=chosen), None
        is_named = self.location.origin == "--cache-dir"
        if is_named and self.kind == "bundle":
            raise UsageError(
                f"{path} is a bundle, not a cache directory",
                code="not-a-directory",
                hint=f"look into a bundle with: jaxcache show {shlex.quote(path)}",
            )
        if is_named and os.path.isdir(path):
            refuse_foreign(path)
        report_ignored("live")
        if not command:
            return self.diagnose(options=chosen), None
        variables = {"JAX_COMPILATION_CACHE_DIR": absolute_location(path)} if is_named else {}
        uses, _, report = find_where(command, environment=variables)
        used = next((u for u in uses if u.opened), next(iter(uses), None))
        if is_named and used is None:  # it compiled nothing, and got the directory all the same
            used = Use(0, chosen.python or "", None, None, None)
        diagnosis = self.diagnose(used=used, options=chosen)
        return replace(diagnosis, findings=judge_run(report, diagnosis.findings)), report

    def diagnose(
        self,
        *,
        used: "Use | None" = None,
        refused: "Mapping[tuple[str, str], int] | None" = None,
        options: options_run.DoctorOptions | None = None,
        **keywords: "Unpack[DoctorKeywords]",
    ) -> "Diagnosis":
        """Show the settings that JAX would use here, and find known problems.

        >>> diagnosis = cache.diagnose()
        >>> diagnosis.no_jax is None
        True

        Args:
            used: how a program used the cache (:func:`jaxcache.warm.where.find_where`): its Python
                and its settings count, and its cache where none was named here.
            refused: of torch: looks of a program that are no hit or miss, by outcome and reason.
            keywords: those of :class:`jaxcache.options.run.DoctorOptions`: ``python``,
                ``max_decoded`` (0 decodes all entries).
        """
        from jaxcache.cache.doctor.inputs import with_script
        from jaxcache.cache.doctor.run_checks import diagnose
        from jaxcache.warm.child.query import query_settings

        chosen = options_run.DoctorOptions.choose(options, **keywords)
        if self.compiler == "torch":
            chosen.check_known("torch", ())
            examine: Callable[..., Diagnosis] = load_layout("torch").examines.diagnose
            with self.progress("reading entries"):
                return examine(self.path, os.environ, refused or {})
        path = self.location.path
        environment = dict(os.environ)
        if used and self.location.origin == "--cache-dir":
            # As the program got it.
            environment["JAX_COMPILATION_CACHE_DIR"] = absolute_location(path)
        elif used and used.opened:
            path = used.opened
        python = chosen.python or (used.executable if used else None) or None
        facts = query_settings(python, environment)
        if used:
            facts = facts._replace(settings=with_script(facts.settings, used.settings))
        with self.progress("reading entries"):
            return diagnose(
                path,
                facts,
                environment,
                uncacheable=used.uncacheable if used else None,
                max_decoded=chosen.max_decoded or None,
            )
