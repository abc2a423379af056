"""Options of the commands that query a Python: doctor, explain, where, target capture, ci key."""

from jaxcache.options import PLATFORM, PYTHON
from jaxcache.options.declare import FLAG, NUMBER, TEXT, TEXTS, Options, option
from jaxcache.options.run import PORTABLE, TIMEOUT


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
