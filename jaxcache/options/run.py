"""Options of the commands that start a Python, to compile with its JAX or to query it."""

import os
import re

from jaxcache.errors import UsageError
from jaxcache.options import JOBS, PLATFORM, PYTHON
from jaxcache.options.declare import (
    COUNT,
    DURATION,
    FLAG,
    NUMBER,
    SIZE,
    TEXT,
    TEXTS,
    Kind,
    Options,
    option,
)
from jaxcache.units import parse_duration_seconds

#: Why a compile was no hit, where ``--except`` allows it: no cache could serve these. A cache that
#: is off, or cannot be opened, is not among them.
EXCEPTED = {
    "uncacheable": ("host-callbacks", "not-process-0", "shared-by-process-0", "name-too-long"),
    "skipped": ("compile-time", "size", "over-cap"),
}
TIMEOUT = option("--timeout", DURATION, "Stop the program after this long.")
PORTABLE = option(
    "--portable",
    FLAG,
    "Make keys independent of the cache's path (for JAX before 0.11). Use it on every run; for "
    "plain JAX, set JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES=none.",
)


def read_limit(text: str) -> int | float:
    """Read a number of misses, or a duration of compiling as float seconds.

    Raises:
        UsageError: ``bad-duration``.
    """
    return int(text) if re.fullmatch(r"\d{1,18}", text) else parse_duration_seconds(text)


_GUARD = re.compile(r"(compile|load|trace)(:(raise|warn|count)(:\d+(\.\d+)?)?)?")


def _read_guard(text: str) -> str:
    if not _GUARD.fullmatch(text):
        raise UsageError(
            f"a guard must be ON:ACTION[:SECONDS] (got {text!r})",
            code="bad-guard",
            hint="ON is compile, load or trace; ACTION is raise, warn or count; SECONDS is the "
            "time until the guard is up, unless the program calls jaxcache.warmed_up() before",
        )
    return text


def _read_directory(path: str) -> str:
    if not os.path.isdir(path):
        raise UsageError(f"no such directory: {path}", code="no-directory")
    return os.path.abspath(path)


def _read_new_file(path: str) -> str:
    if not (path and os.path.isdir(os.path.dirname(os.path.abspath(path)))):
        raise UsageError(
            f"cannot write {path!r}: its directory does not exist", code="cannot-write"
        )
    return path


#: A file that is written when the program has ended; if that is impossible, it is not started.
_NEW_FILE = Kind(str | None, "FILE", _read_new_file)


class TargetOptions(Options, panel="Absent hardware"):
    """A host that is not here, to compile for."""

    target: str | None = option(
        "--target",
        TEXT,
        "Compile for the host of this profile (jaxcache target capture), running on the CPU.",
        metavar="PROFILE",
    )
    autotune_from: str | None = option(
        "--autotune-from",
        Kind(str | None, "DIR", _read_directory),
        "Use the autotuning results in this directory of a real host.",
    )
    require_tuned: bool = option(
        "--require-tuned", FLAG, "Skip modules that can only be compiled without tuning."
    )

    #: Fields that make no sense with a target.
    _NOT_WITH_TARGET: tuple[str, ...] = ()

    def check(self) -> None:
        """Refuse options that do not go together.

        Raises:
            UsageError
        """
        if self.target is None:
            if self.autotune_from or self.require_tuned:
                raise UsageError("--autotune-from and --require-tuned need --target")
        elif unusable := [n for n in self._NOT_WITH_TARGET if getattr(self, n)]:
            raise UsageError(
                f"--target and {self.DECLARED[unusable[0]].names[0]} cannot be combined"
            )


class RunOptions(TargetOptions, panel=None):
    """Options to run a command and to record its compiles."""

    cache_dir: str = ""
    """Absolute path or URL: the cache that the run is expected to use."""
    jax_cache_dir: str | None = None
    """The directory as JAX gets it; None where nothing outside the program names one. The bytes
    count, because JAX 0.4.36 to 0.10 hashes them."""
    stdout_to_stderr: bool = False
    scratch: str | None = None
    """A directory that takes what would be written; the cache and its ledger stay as they are."""
    undo: tuple[str, ...] | None = None
    """Undo parts of the key of each miss, to find an entry; the paths that the cache had."""
    processes: int | None = option(
        "--processes", COUNT, "Run as N JAX processes on this machine.", min=1
    )
    timeout_seconds: float | None = TIMEOUT
    portable: bool = PORTABLE
    force_cache_dir: bool = option(
        "--force-cache-dir", FLAG, "Override a cache directory that the program sets."
    )
    check_contents: bool = option(
        "--check",
        FLAG,
        "Run the script twice: compile the hits again, and compare the executables (for CPU their "
        "optimized HLO) with the entries.",
        panel="Assertions",
    )
    no_write: bool = option(
        "--no-write",
        FLAG,
        "Leave the cache unchanged, so that a miss is a miss again in the next run.",
        panel="Assertions",
    )
    record: str | None = option(
        "--record",
        _NEW_FILE,
        "Record every module, for jaxcache compile RECIPE.",
        metavar="RECIPE",
        panel="Recipe",
    )
    collect: int | None = option(
        "--collect-only",
        Kind(int | None, "[N]"),
        "With --record: return zeros for modules of more than N operations (default: 50).",
        keyword="collect",
        panel="Recipe",
        show_default=False,
    )
    patience_seconds: float = option(
        "--patience",
        DURATION,
        "With --collect-only: stop after this long without a new module.",
        default="60s",
        panel="Recipe",
    )
    live: bool = option(
        "--live",
        FLAG,
        "Enable the live layer inside JAX (verified reads, a size limit, tiers) in every Python "
        "that the command starts.",
        panel="Live layer",
    )
    tiers: tuple[str, ...] = option(
        "--tier",
        TEXTS,
        "With the live layer: look in this directory or URL after the cache; repeatable.",
        metavar="URL",
        keyword="tiers",
        panel="Live layer",
    )
    guard: str | None = option(
        "--guard",
        Kind(str | None, "ON:ACTION[:SECONDS]", _read_guard),
        "Refuse compiles after the program's warm-up: SECONDS after it has imported jax (choose "
        "more than the warm-up takes), or exactly from its call of jaxcache.warmed_up(). ON: "
        "compile, load, trace; ACTION: raise, warn, count.",
        panel="Assertions",
    )
    components: bool = option(
        "--components",
        FLAG,
        "Also record key components for hits (about 10% slower when everything hits).",
        panel="Output",
    )

    _NOT_WITH_TARGET: tuple[str, ...] = (
        "force_cache_dir",
        "record",
        "processes",
        "check_contents",
        "collect",
        "no_write",
    )

    def check(self) -> None:
        """Refuse options that do not go together.

        Raises:
            UsageError: two of them exclude each other.
        """
        super().check()
        if self.no_write and (self.live or self.tiers):
            raise UsageError(
                "--no-write cannot be combined with --live or --tier, which fill the cache"
            )
        if self.collect is not None and not self.record:
            raise UsageError(
                "--collect-only needs --record",
                hint="it does not run large modules; its only result is a recipe",
            )


class WarmOptions(RunOptions, panel=None):
    """Options to run a script or compile a function."""

    python: str | None = PYTHON
    platform: str | None = PLATFORM
    devices: int | None = option("--devices", COUNT, "Give the program N CPU devices.", min=1)
    jobs: int = option(
        "--jobs",
        NUMBER,
        "Compile N modules in parallel: a first run, with zeros as results, collects them; the "
        "second is the real one.",
        default=1,
        min=1,
    )

    _NOT_WITH_TARGET: tuple[str, ...] = ("platform", *RunOptions._NOT_WITH_TARGET)

    def check(self) -> None:
        """Refuse options that do not go together.

        Raises:
            UsageError: two of them exclude each other.
        """
        super().check()
        if self.no_write and self.jobs > 1:
            raise UsageError(
                "--no-write cannot be combined with --jobs, which fills the cache first"
            )


class CallOptions(Options, panel="MODULE:FUNCTION"):
    """The arguments of a function that is compiled without being run."""

    words: tuple[str, ...] = option(
        "--arg",
        TEXTS,
        "An argument of FUNCTION: 'f32[8,128]', key[], or a Python literal; repeatable.",
        metavar="[NAME=]ARG",
    )
    static: tuple[str, ...] = option(
        "--static", TEXTS, "A static argument of FUNCTION.", metavar="NAME=VALUE"
    )
    table: str | None = option(
        "--args", TEXT, "A TOML file with FUNCTION's arguments: pytrees.", metavar="FILE"
    )
    committed: bool = option("--committed", FLAG, "FUNCTION's arrays are committed to a device.")

    def __bool__(self) -> bool:
        return bool(self.words or self.static or self.table or self.committed)


class Assertions(Options, panel="Assertions"):
    """Outcomes of a run that make it fail."""

    fail_on_miss: int | float | None = option(
        "--fail-on-miss",
        Kind(str | None, "[N|DURATION]", read_limit),
        "Exit with 1 if more than N compiles (or DURATION of compile time) missed; without a "
        "value, if any did.",
        show_default=False,
    )
    excepted: tuple[str, ...] = option(
        "--except",
        TEXTS,
        "With --fail-on-miss: allow compiles that JAX cannot cache (uncacheable) or that are below "
        "its thresholds (skipped); repeatable.",
        metavar="|".join(EXCEPTED),
    )
    strict: bool = option("--strict", FLAG, "Exit with 1 if JAX cannot cache a module at all.")

    def check(self) -> None:
        """Refuse options that do not go together.

        Raises:
            UsageError
        """
        if self.excepted and self.fail_on_miss is None:
            raise UsageError("--except needs --fail-on-miss")
        if unknown := [name for name in self.excepted if name not in EXCEPTED]:
            raise UsageError(f"{unknown[0]!r} is not one of {', '.join(EXCEPTED)}")


class CompileOptions(TargetOptions, panel=None):
    """Options to compile a recipe."""

    jobs: int | None = JOBS
    check_only: bool = option(
        "--check",
        FLAG,
        "Compile nothing; report which modules would hit, and why the others would miss.",
        keyword="check",
    )
    shard: str | None = option("--shard", TEXT, "Compile only part I of N.", metavar="I/N")
    python: str | None = PYTHON
    used_at: str | None = option(
        "--used-at",
        TEXT,
        "The directory where the cache will be used (default: as -C).",
        metavar="DIR",
    )
    portable: bool = PORTABLE
    devices: int | None = option(
        "--devices", COUNT, "Number of CPU devices (default: as recorded).", min=1
    )
    max_memory_bytes: int | None = option(
        "--max-memory", SIZE, "Memory limit of all workers (default: 4/5 of what is available)."
    )
    dask: str | None = option(
        "--dask",
        TEXT,
        "Compile on the workers of this dask scheduler, such as tcp://HOST:8786.",
        metavar="ADDRESS",
    )

    _NOT_WITH_TARGET: tuple[str, ...] = ("devices", "dask")

    def check(self) -> None:
        """Refuse options that do not go together.

        Raises:
            UsageError
        """
        super().check()
        if self.portable and self.used_at:
            raise UsageError("--portable and --used-at cannot be combined")


class ReportOptions(Options, panel="Output"):
    """The extent and the destination of a run's report."""

    all: bool = option("--all", FLAG, "Also list JAX's own operations one by one.")
    trace: str | None = option("--trace", _NEW_FILE, "Write a Chrome trace, to open in Perfetto.")


class DoctorOptions(Options):
    """The cache and Python to examine, and whether to repair."""

    python: str | None = option("--python", TEXT, "The Python that runs JAX.", metavar="PYTHON")
    fix: bool = option("--fix", FLAG, "Make the repairs that lose nothing.")
    max_decoded: int | None = option(
        "--decode",
        NUMBER,
        "Decode only the N newest entries (0: all).",
        default=200,
        metavar="N",
        min=0,
        keyword="max_decoded",
    )


class ExplainOptions(Options):
    """The subjects of ``explain``."""

    churn: bool = option("--churn", FLAG, "Modules with several keys, their cost, and why.")
    all: bool = option("--all", FLAG, "Also list JAX's own operations one by one.")
    python: str | None = option("--python", TEXT, "The Python that runs SCRIPT.", metavar="PYTHON")
    portable: bool = PORTABLE


class WhereOptions(Options):
    """The time limit of a command that shows which caches it uses."""

    stop: bool = option("--stop", FLAG, "End each Python as soon as it has opened its cache.")
    timeout_seconds: float | None = TIMEOUT


class PythonChoice(Options):
    """The Python that runs JAX."""

    python: str | None = PYTHON


def job_environment(platform: str | None) -> dict[str, str]:
    """Return the environment of the jax of a CI job, whose platform may be an option."""
    return {**os.environ, **({"JAX_PLATFORMS": platform} if platform else {})}


class KeyOptions(Options):
    """The parts of a CI cache's key."""

    hash_files: tuple[str, ...] = option(
        "--hash-files",
        TEXTS,
        "Files whose contents are part of the key; repeatable; '!GLOB' excludes.",
        metavar="GLOB",
    )
    restore_keys: bool = option(
        "--restore-keys", FLAG, "Print the less specific keys instead, the closest first."
    )
    prefix: str = option("--prefix", TEXT, "Prefix of the key.", default="jaxcache", metavar="NAME")
    python: str | None = PYTHON
    platform: str | None = PLATFORM
