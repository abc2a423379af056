"""Where the cache is, and where our own files are; without the parser, for what must be quick."""

import os
from pathlib import Path
from typing import Any, NamedTuple

from jaxcache.errors import UsageError


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
        UsageError: ``bad-config`` where a configuration file cannot be read, ``bad-path`` where
            the option is there and empty.
    """
    if option is not None:
        if not option:
            raise UsageError(
                "an empty path names no cache", code="bad-path",
                hint="is a variable of the shell not set?",
            )  # fmt: skip
        return Location(expand_location(option), "--cache-dir")
    if value := os.environ.get("JAX_COMPILATION_CACHE_DIR"):
        return Location(expand_location(value), "JAX_COMPILATION_CACHE_DIR")
    for path in filter(os.path.isfile, _config_files()):
        table = _read_config(path)
        if value := table.get("cache-dir"):
            if not isinstance(value, str):
                raise UsageError(f"cache-dir in {path} is not a string", code="bad-config")
            return Location(expand_location(value, path.parent), str(path))
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


def expand_location(value: str, base: Path | None = None) -> str:
    """A path, of ``~`` or ``file://`` too, as a path; any other URL as it is.

    Raises:
        UsageError: ``bad-url``
    """
    if value.startswith("file://"):
        from jaxcache.store import local_path

        return local_path(value)
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
