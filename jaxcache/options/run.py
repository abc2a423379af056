"""Options of the commands that start a Python, to compile with its JAX or to query it."""

import os
import re

from jaxcache.errors import UsageError
from jaxcache.options import (
    COUNT,
    DURATION,
    JOBS,
    NUMBER,
    PLATFORM,
    PYTHON,
    SIZE,
    TEXTS,
    Kind,
    Options,
    flag,
    option,
)
from jaxcache.units import parse_duration_seconds

#: Why a compile was no hit, where ``--except`` allows it: no cache could serve these. A cache that
#: is off, or cannot be opened, is not among them.
EXCEPTED = {
    "uncacheable": ("host-callbacks", "not-process-0", "shared-by-process-0", "name-too-long"),
    "skipped": ("compile-time", "size", "over-cap"),
}
MODULE = option(
    "-m NAME", "Run a module, as python -m does; the remaining words are its arguments."
)
TIMEOUT = option("--timeout", "Stop the program after this long.", DURATION)
PORTABLE = flag(
    "--portable",
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
        "--target PROFILE",
        "Compile for the host of this profile (jaxcache target capture), running on the CPU.",
    )
    autotune_from: str | None = option(
        "--autotune-from",
        "Use the autotuning results in this directory of a real host.",
        Kind(str | None, "DIR", _read_directory),
    )
    require_tuned: bool = flag(
        "--require-tuned", "Skip modules that can only be compiled without tuning."
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
    undo: str | None = None
    """Undo parts of the key of each miss, to find an entry; the paths of the cache, as JSON."""
    processes: int | None = option(
        "--processes", "Run as N JAX processes on this machine.", COUNT, min=1
    )
    timeout_seconds: float | None = TIMEOUT
    portable: bool = PORTABLE
    force_cache_dir: bool = flag(
        "--force-cache-dir", "Override a cache directory that the program sets."
    )
    check_contents: bool = flag(
        "--check",
        "Run the script twice: compile the hits again, and compare the executables (for CPU "
        "their optimized HLO) with the entries.",
        panel="Assertions",
    )
    no_write: bool = flag(
        "--no-write",
        "Leave the cache unchanged, so that a miss is a miss again in the next run.",
        panel="Assertions",
    )
    record: str | None = option(
        "--record RECIPE",
        "Record every module, for jaxcache compile RECIPE.",
        _NEW_FILE,
        panel="Recipe",
    )
    collect: int | None = option(
        "--collect-only",
        "With --record: return zeros for modules of more than N operations (default: 50).",
        Kind(int | None, "[N]"),
        keyword="collect",
        panel="Recipe",
        show_default=False,
    )
    patience_seconds: float = option(
        "--patience",
        "With --collect-only: stop after this long without a new module.",
        DURATION,
        default="60s",
        panel="Recipe",
    )
    live: bool = flag(
        "--live",
        "Enable the live layer inside JAX (verified reads, a size limit, tiers) in every "
        "Python that the command starts.",
        panel="Live layer",
    )
    tiers: tuple[str, ...] = option(
        "--tier URL",
        "With the live layer: look in this directory or URL after the cache; repeatable.",
        TEXTS,
        keyword="tiers",
        panel="Live layer",
    )
    guard: str | None = option(
        "--guard",
        "Refuse compiles after the program's warm-up: SECONDS after it has imported jax "
        "(choose more than the warm-up takes), or exactly from its call of "
        "jaxcache.warmed_up(). ON: compile, load, trace; ACTION: raise, warn, count.",
        Kind(str | None, "ON:ACTION[:SECONDS]", _read_guard),
        panel="Assertions",
    )
    components: bool = flag(
        "--components",
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
    devices: int | None = option("--devices", "Give the program N CPU devices.", COUNT, min=1)
    jobs: int = option(
        "--jobs",
        "Compile N modules in parallel: a first run, with zeros as results, collects them; the "
        "second is the real one.",
        NUMBER,
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
        "--arg [NAME=]ARG",
        "An argument of FUNCTION: 'f32[8,128]', key[], or a Python literal; repeatable.",
        TEXTS,
    )
    static: tuple[str, ...] = option("--static NAME=VALUE", "A static argument of FUNCTION.", TEXTS)
    table: str | None = option("--args FILE", "A TOML file with FUNCTION's arguments: pytrees.")
    committed: bool = flag("--committed", "FUNCTION's arrays are committed to a device.")

    def __bool__(self) -> bool:
        return bool(self.words or self.static or self.table or self.committed)


class Assertions(Options, panel="Assertions"):
    """Outcomes of a run that make it fail."""

    fail_on_miss: int | float | None = option(
        "--fail-on-miss",
        "Exit with 1 if more than N compiles (or DURATION of compile time) missed; without a "
        "value, if any did.",
        Kind(str | None, "[N|DURATION]", read_limit),
        show_default=False,
    )
    excepted: tuple[str, ...] = option(
        f"--except {'|'.join(EXCEPTED)}",
        "With --fail-on-miss: allow compiles that JAX cannot cache (uncacheable) or that are "
        "below its thresholds (skipped); repeatable.",
        TEXTS,
    )
    strict: bool = flag("--strict", "Exit with 1 if JAX cannot cache a module at all.")

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
    check_only: bool = flag(
        "--check",
        "Compile nothing; report which modules would hit, and why the others would miss.",
        keyword="check",
    )
    shard: str | None = option("--shard I/N", "Compile only part I of N.")
    python: str | None = PYTHON
    used_at: str | None = option(
        "--used-at DIR", "The directory where the cache will be used (default: as -C)."
    )
    portable: bool = PORTABLE
    devices: int | None = option(
        "--devices", "Number of CPU devices (default: as recorded).", COUNT, min=1
    )
    max_memory_bytes: int | None = option(
        "--max-memory", "Memory limit of all workers (default: 4/5 of what is available).", SIZE
    )
    dask: str | None = option(
        "--dask ADDRESS", "Compile on the workers of this dask scheduler, such as tcp://HOST:8786."
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

    all: bool = flag("--all", "Also list JAX's own operations one by one.")
    trace: str | None = option("--trace", "Write a Chrome trace, to open in Perfetto.", _NEW_FILE)


class DoctorOptions(Options):
    """The Python to examine, and how much of the cache."""

    python: str | None = option("--python PYTHON", "The Python that runs JAX.")
    max_decoded: int | None = option(
        "--decode N",
        "Decode only the N newest entries (0: all).",
        NUMBER,
        default=200,
        min=0,
        keyword="max_decoded",
    )


class ExplainOptions(Options):
    """The subjects of ``explain``."""

    churn: bool = flag("--churn", "Modules with several keys, their cost, and why.")
    all: bool = flag("--all", "Also list JAX's own operations one by one.")
    python: str | None = option("--python PYTHON", "The Python that runs SCRIPT.")
    portable: bool = PORTABLE


class WhereOptions(Options):
    """The time limit of a command that shows which caches it uses."""

    stop: bool = flag("--stop", "End each Python as soon as it has opened its cache.")
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
        "--hash-files GLOB",
        "Files whose contents are part of the key; repeatable; '!GLOB' excludes.",
        TEXTS,
    )
    restore_keys: bool = flag(
        "--restore-keys", "Print the less specific keys instead, the closest first."
    )
    prefix: str = option("--prefix NAME", "Prefix of the key.", default="jaxcache")
    python: str | None = PYTHON
    platform: str | None = PLATFORM
