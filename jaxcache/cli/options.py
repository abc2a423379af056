"""Options that several commands share, and what they mean."""

import os
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from jaxcache.errors import JaxcacheError, UsageError

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
Keys = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[KEY]...",
        help="Full key, unique prefix of key or hash, or module glob.",
        show_default=False,
    ),
]
Filters = Annotated[
    list[str] | None,
    typer.Option(
        "--filter",
        metavar="EXPR",
        help="Only entries that fit, such as 'size>1MB', 'unused>7d', 'platform=gpu'; repeatable.",
        show_default=False,
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", "-n", help="Show the plan, change nothing.")]
Jobs = Annotated[
    int | None,
    typer.Option("--jobs", "-j", min=1, metavar="N", help="Threads; default: one per core."),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
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
FailOnMiss = Annotated[
    str | None,
    typer.Option(
        metavar="[N|DURATION]",
        help="Exit 1 where more than N compiles (or so much compiling) were not hits; alone: any.",
        show_default=False,
    ),
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
        help="With --collect-only: stop when nothing new comes for so long.",
    ),
]
Timeout = Annotated[
    str | None, typer.Option(metavar="DURATION", help="Stop the program after so long.")
]


class Format(StrEnum):
    """How a result goes to standard output."""

    JSON = "json"
    JSONL = "jsonl"
    KEYS = "keys"
    TSV = "tsv"
    TABLE = "table"


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


def index_folder() -> Path:
    """Where indexes of caches are kept: ``$XDG_CACHE_HOME/jaxcache/index``."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(base, "jaxcache", "index")


class Location(NamedTuple):
    """Where the cache is, and who said so."""

    path: str
    origin: str


def locate_cache(option: str | None) -> Location:
    """Resolve the cache directory by the order of the command-line contract.

    ``--cache-dir``, else ``JAX_COMPILATION_CACHE_DIR``, else ``cache-dir`` in
    ``[tool.jaxcache]`` of the nearest pyproject.toml or in the user's ``config.toml``, else
    ``$XDG_CACHE_HOME/jax``.

    Raises:
        UsageError: ``bad-config`` where a configuration file cannot be read.
    """
    if option:
        return Location(_expand(option), "--cache-dir")
    if value := os.environ.get("JAX_COMPILATION_CACHE_DIR"):
        return Location(_expand(value), "JAX_COMPILATION_CACHE_DIR")
    for path in filter(os.path.isfile, _config_files()):
        table = _read_config(path)
        if value := table.get("cache-dir"):
            if not isinstance(value, str):
                raise UsageError(f"cache-dir in {path} is not a string", code="bad-config")
            return Location(_expand(value, path.parent), str(path))
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Location(os.path.join(base, "jax"), "default")


def config_is_set(name: str) -> bool:
    """Whether any configuration file sets a switch: none of them can take it back.

    Raises:
        UsageError: ``bad-config`` where one cannot be read, or its value is no true or false.
    """
    found = False
    for path in filter(os.path.isfile, _config_files()):
        value = _read_config(path).get(name, False)
        if not isinstance(value, bool):
            raise UsageError(f"{name} in {path} is neither true nor false", code="bad-config")
        found = found or value
    return found


def _expand(value: str, base: Path | None = None) -> str:
    if "://" in value:
        return value
    return os.path.join(base or "", os.path.expanduser(value))


def _config_files() -> list[Path]:
    """The nearest pyproject.toml that has our table, then the user's own configuration."""
    here = Path.cwd()
    projects = [p / "pyproject.toml" for p in (here, *here.parents)]
    nearest = [p for p in projects if p.is_file()][:1]
    home = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    return [*nearest, Path(home, "jaxcache", "config.toml")]


def _read_config(path: Path) -> dict[str, Any]:
    import tomllib

    try:
        document = tomllib.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read {path}: {error}", code="bad-config") from error
    if path.name == "pyproject.toml":
        document = document.get("tool", {}).get("jaxcache", {})
    return document if isinstance(document, dict) else {}
