"""Options that several commands share, and what they mean."""

import os
import sys
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from jaxcache.cli.location import Location as Location
from jaxcache.cli.location import config_is_set as config_is_set
from jaxcache.cli.location import index_folder as index_folder
from jaxcache.cli.location import locate_cache as locate_cache
from jaxcache.errors import JaxcacheError, UsageError
from jaxcache.options import FLAG, Options, option

if TYPE_CHECKING:
    from jaxcache.store.base import Store

CacheDir = Annotated[
    str | None,
    typer.Option(
        "--cache-dir",
        "-C",
        metavar="PATH|URL",
        help="The cache; default: JAX_COMPILATION_CACHE_DIR, the configuration, ~/.cache/jax.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
Jsonl = Annotated[bool, typer.Option("--jsonl", help="Print one JSON object per line.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print keys only.")]
Python = Annotated[
    str | None,
    typer.Option("--python", metavar="PYTHON", help="The Python that has jax; default: our own."),
]
Platform = Annotated[
    str | None, typer.Option(metavar="NAME", help="Sets JAX_PLATFORMS, such as cpu or cuda.")
]
Devices = Annotated[
    int | None, typer.Option(min=1, metavar="N", help="Pretend that the host has N CPU devices.")
]
ForceCacheDir = Annotated[
    bool, typer.Option("--force-cache-dir", help="Win over a directory that the program sets.")
]
Live = Annotated[
    bool, typer.Option("--live", help="Switch the live layer on in every Python below.")
]
Tier = Annotated[
    list[str] | None,
    typer.Option(
        metavar="URL",
        help="With the live layer: ask this directory or URL after the cache; repeatable.",
        show_default=False,
    ),
]
Portable = Annotated[
    bool,
    typer.Option("--portable", help="Leave the cache's path out of the keys (JAX before 0.11)."),
]
FailOnMiss = Annotated[
    str | None,
    typer.Option(
        metavar="[N|DURATION]",
        help="Exit 1 where more than N compiles (or so much compiling) were not hits; alone: any.",
        show_default=False,
    ),
]
Except = Annotated[
    list[str] | None,
    typer.Option(
        "--except",
        metavar="uncacheable|skipped",
        help="With --fail-on-miss: allow compiles that JAX cannot cache, or that are under its "
        "thresholds; repeatable.",
        show_default=False,
    ),
]
Check = Annotated[
    bool, typer.Option("--check", help="Run again; JAX compares executables with entries.")
]
Processes = Annotated[
    int | None,
    typer.Option(min=1, metavar="N", help="Run as N JAX processes on this machine."),
]
Strict = Annotated[
    bool, typer.Option("--strict", help="Exit 1 where a module cannot be cached at all.")
]
TraceFile = Annotated[
    str | None,
    typer.Option("--trace", metavar="FILE", help="Write Chrome trace events; Perfetto opens them."),
]
Components = Annotated[
    bool, typer.Option("--components", help="Remember the key's components of hits, too.")
]
Record = Annotated[
    str | None,
    typer.Option(
        "--record", metavar="RECIPE", help="Keep every module, for: jaxcache compile RECIPE."
    ),
]
CollectOnly = Annotated[
    str | None,
    typer.Option(
        "--collect-only",
        metavar="[N]",
        help="With --record: answer modules of more than N operations (alone: 50) with zeros.",
        show_default=False,
    ),
]
Patience = Annotated[
    str | None,
    typer.Option(
        metavar="DURATION",
        help="With --collect-only: stop after this long without a new module.",
    ),
]
Timeout = Annotated[
    str | None, typer.Option(metavar="DURATION", help="Stop the program after this long.")
]


TargetFile = Annotated[
    str | None,
    typer.Option(
        "--target",
        metavar="PROFILE",
        help="Compile for the host of this profile (jaxcache target capture), running on the CPU.",
    ),
]
Gemm = Annotated[
    str,
    typer.Option(
        metavar="cublas|cost-model|triton", help="Matrix products that cannot be tuned without GPU."
    ),
]
AutotuneFrom = Annotated[
    str | None,
    typer.Option(metavar="DIR", help="Tune with the autotune directory of a real host."),
]
RequireTuned = Annotated[
    bool, typer.Option("--require-tuned", help="Leave out what could only be made untuned.")
]


class Format(StrEnum):
    """How a result goes to standard output."""

    JSON = "json"
    JSONL = "jsonl"
    KEYS = "keys"
    TSV = "tsv"
    TABLE = "table"

    @property
    def is_json(self) -> bool:
        """Whether standard output holds nothing but JSON."""
        return self in (Format.JSON, Format.JSONL)


def choose_format(*, json: bool = False, jsonl: bool = False, quiet: bool = False) -> Format:
    """Pick the output format: what was asked for, else a table on a terminal, TSV in a pipe.

    Raises:
        UsageError: more than one was asked for.
    """
    asked = [
        f for f, on in ((Format.JSON, json), (Format.JSONL, jsonl), (Format.KEYS, quiet)) if on
    ]
    if len(asked) > 1:
        raise UsageError("--json, --jsonl and --quiet exclude each other")
    return asked[0] if asked else Format.TABLE if sys.stdout.isatty() else Format.TSV


class JsonOutput(Options):
    """JSON instead of text."""

    json: bool = option("--json", FLAG, "Print one JSON document.")
    jsonl: bool = option("--jsonl", FLAG, "Print one JSON object per line.")

    @property
    def form(self) -> Format:
        """The format: what was asked for, else a table on a terminal, TSV in a pipe.

        Raises:
            UsageError: more than one was asked for.
        """
        return choose_format(**vars(self))


class Output(JsonOutput):
    """JSON or keys instead of text."""

    quiet: bool = option("--quiet -q", FLAG, "Print keys only.")


def require_writable(store: "Store") -> None:
    """Refuse to change a cache that cannot be changed, before any work.

    Raises:
        JaxcacheError: ``read-only``.
    """
    if not store.writable:
        raise JaxcacheError(
            f"{store.url} cannot be written",
            code="read-only",
            hint="it is mounted read-only, or belongs to somebody else",
        )


def available_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
