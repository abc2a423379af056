"""The location of the cache and of our own files; quick to import, without the parser."""

import os
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, NamedTuple

from jaxcache.core import configuration
from jaxcache.core.system import expand_home, user_directory
from jaxcache.errors import UsageError, system_errors_as
from jaxcache.store import check_location, local_path


def index_directory() -> str | None:
    """Return ``$XDG_CACHE_HOME/jaxcache/index``, of the indexes; None without a home directory."""
    try:
        return os.path.join(user_directory("XDG_CACHE_HOME", "~/.cache"), "jaxcache", "index")
    except FileNotFoundError:
        return None


VARIABLE = "JAX_COMPILATION_CACHE_DIR"
_DEFAULT = "default"


class Location(NamedTuple):
    """The location of the cache, and the setting it comes from."""

    path: str
    origin: str

    @property
    def is_own_choice(self) -> bool:
        """Whether the user chose it for jaxcache: with an option or in a configuration file.

        Plain JAX reads neither. It reads the variable alone, and without it has no cache.
        """
        return self.origin not in (VARIABLE, _DEFAULT)

    @property
    def is_unset(self) -> bool:
        """Whether nothing names it: plain JAX caches nothing then."""
        return self.origin == _DEFAULT

    @property
    def spelling(self) -> str | None:
        """The directory as JAX gets it, byte for byte; None where JAX gets none."""
        if self.is_own_choice:
            return absolute_location(self.path)
        return os.environ.get(VARIABLE) or None


def locate_cache(option: str | None) -> Location:
    """Resolve the cache directory by the order of the command-line contract.

    ``--cache-dir``, else ``JAX_COMPILATION_CACHE_DIR``, else ``cache-dir`` in
    ``[tool.jaxcache]`` of the nearest trusted pyproject.toml or in the user's ``config.toml``, else
    ``$XDG_CACHE_HOME/jax``.

    Raises:
        UsageError: ``bad-config`` where a configuration file cannot be read, ``bad-path`` where
            the option is there and empty, or no home directory is known.
    """
    if option is not None:
        return Location(expand_location(option), "--cache-dir")
    if value := os.environ.get(VARIABLE):
        # JAX takes a ~ that no shell has expanded for the name of a directory, and "file:", too.
        literal = value.startswith(("~", "file://"))
        path = os.path.abspath(value) if literal else expand_location(value)
        return Location(path, VARIABLE)
    for path, table in _configurations("cache-dir"):
        if value := table.get("cache-dir"):
            return Location(expand_location(value, os.path.dirname(path)), path)
    hint = "name a cache with --cache-dir, or set HOME"
    with system_errors_as(UsageError, "cannot find the default cache", code="bad-path", hint=hint):
        return Location(os.path.join(user_directory("XDG_CACHE_HOME", "~/.cache"), "jax"), _DEFAULT)


def config_is_set(name: str) -> bool:
    """Return whether any configuration file sets a switch: none of them can take it back.

    Raises:
        UsageError: ``bad-config`` where one cannot be read.
    """
    tables = list(_configurations(name))  # all of them, to report a mistake in any
    return any(table.get(name, False) for _, table in tables)


def configured_python() -> tuple[str, str] | None:
    """Return the Python that a configuration file names, and the path of the file.

    Raises:
        UsageError: ``bad-config`` where a file cannot be read.
    """
    for path, table in _configurations("python"):
        if value := table.get("python"):
            return value, path
    return None


def expand_location(value: str, base: str = "") -> str:
    """A path, of ``~`` or ``file://`` too, as a path; any other URL as it is.

    Raises:
        UsageError: ``bad-url``, or ``bad-path`` where it is empty or of an unknown home directory.
    """
    if not value:
        raise UsageError(
            "an empty path names no cache",
            code="bad-path",
            hint="is a variable of the shell not set?",
        )
    check_location(value)
    if value.startswith("file://"):
        return local_path(value)
    if "://" in value:
        return value
    hint = "set HOME, or write ./~ for a directory of that name"
    with system_errors_as(UsageError, f"cannot find {value}", code="bad-path", hint=hint):
        return os.path.join(base, expand_home(value))


def absolute_location(value: str) -> str:
    """A path as JAX is given it, absolute; a URL as it is.

    Raises:
        UsageError: ``bad-url``, or ``bad-path`` where it is empty.
    """
    path = expand_location(value)
    return path if "://" in path else os.path.abspath(path)


def report_ignored(wanted: str) -> None:
    """Print one line for each file that has this setting and is not trusted."""
    with suppress(UsageError):  # whoever reads the settings reports it
        list(_configurations(wanted))


#: The settings that a configuration file may hold, and the type of each.
SETTINGS: dict[str, type] = {"cache-dir": str, "python": str, "require-signed": bool, "live": dict}


def _configurations(wanted: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the settings that count: of each ``pyproject.toml`` upwards, then of the user.

    Args:
        wanted: the setting that the caller uses; one line reports a file where it is ignored.

    Raises:
        UsageError: ``bad-config``.
    """
    files = configuration.find_config_files()
    return configuration.read_counting(files, (wanted,), read_settings)


def read_settings(file: configuration.ConfigFile) -> dict[str, Any]:
    """Return all settings in a configuration file, whether they count or not.

    Raises:
        UsageError: ``bad-config``.
    """
    try:
        table = file.parse()
    except ValueError as error:
        raise UsageError(f"cannot read {file.path}: {error}", code="bad-config") from error
    for name, value in table.items():
        _check_setting(file.path, name, value)
    return table


def _check_setting(path: str, name: str, value: object) -> None:
    if name not in SETTINGS:
        from difflib import get_close_matches

        near = get_close_matches(name.replace("_", "-"), SETTINGS, 1)
        raise UsageError(
            f"{path} has a setting {name!r}, which jaxcache does not know",
            code="bad-config",
            hint=f"did you mean {near[0]}?" if near else f"known are {', '.join(SETTINGS)}",
        )
    if not isinstance(value, SETTINGS[name]):
        kind = {str: "a string", bool: "true or false", dict: "a table"}[SETTINGS[name]]
        raise UsageError(f"{name} in {path} must be {kind}", code="bad-config")
