"""Find and read the configuration files that may hold live settings.

``[tool.jaxcache.live]`` of the nearest pyproject.toml, then ``[live]`` of
``$XDG_CONFIG_HOME/jaxcache/config.toml``. A tier decides whose machine code this process runs, so a
file that another user may write is not read.
"""

import os
import stat
from typing import Any

_MAX_BYTES = 1 << 20


class ConfigError(ValueError):
    """A configuration file or a setting that cannot be used; the text says why."""


def config_files() -> "list[str]":
    """The files that exist, the first one first to ask."""
    found = []
    folder = os.getcwd()
    while True:
        path = os.path.join(folder, "pyproject.toml")
        if os.path.isfile(path):
            found.append(path)
            break
        parent = os.path.dirname(folder)
        if parent == folder:
            break
        folder = parent
    home = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    path = os.path.join(home, "jaxcache", "config.toml")
    return [*found, *([path] if os.path.isfile(path) else [])]


def mentions_live() -> bool:
    """Whether a file may have a live table with ``enabled`` in it, without a parser."""
    for path in _existing():
        text = _read(path)
        if b"enabled" in text and _has_table(path, text):
            return True
    return False


def configured_directory() -> "str | None":
    """``cache-dir`` of the configuration files, as the command line reads it; None without one."""
    for path in _existing():
        text = _read(path)
        if b"cache-dir" not in text:
            continue
        document = _parse(path, text)
        if path.endswith("pyproject.toml"):
            document = _table(_table(document, "tool"), "jaxcache")
        value = document.get("cache-dir")
        if isinstance(value, str) and not _unsafe(path):
            folder = os.path.dirname(path)
            return value if "://" in value else os.path.join(folder, os.path.expanduser(value))
    return None


def read_tables() -> "list[tuple[str, dict[str, Any]]]":
    """Each file with its table of live settings, those that have one.

    Raises:
        ConfigError: a file is no TOML, or other users may write it.
    """
    tables = []
    for path in _existing():
        text = _read(path)
        if not _has_table(path, text):
            continue
        document = _parse(path, text)
        if path.endswith("pyproject.toml"):
            document = _table(_table(document, "tool"), "jaxcache")
        table = document.get("live")
        if table is None:
            continue
        if not isinstance(table, dict):
            raise ConfigError(f"live in {path} is not a table")
        if reason := _unsafe(path):
            raise ConfigError(f"{path} is not read: {reason}")
        tables.append((path, table))
    return tables


def _has_table(path: str, text: bytes) -> bool:
    """Whether a table may be ours, so that mostly no parser has to be imported."""
    return b"live" in text and (b"jaxcache" in text or not path.endswith("pyproject.toml"))


def _existing() -> "list[str]":
    try:
        return config_files()
    except OSError:  # the working directory is gone
        return []


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(_MAX_BYTES)
    except OSError:
        return b""


def _parse(path: str, text: bytes) -> "dict[str, Any]":
    try:
        import tomllib
    except ImportError as error:  # Python 3.10
        raise ConfigError(
            f"{path} is not read: this Python has no tomllib; use JAXCACHE_LIVE_* variables"
        ) from error
    try:
        return tomllib.loads(text.decode())
    except ValueError as error:
        raise ConfigError(f"cannot read {path}: {error}") from error


def _table(document: "dict[str, Any]", name: str) -> "dict[str, Any]":
    table = document.get(name)
    return table if isinstance(table, dict) else {}


def _unsafe(path: str) -> str:
    """Why another user may have written the file; empty where only its owner can have."""
    status = os.stat(path)
    if status.st_uid not in (os.getuid(), 0):
        return "it belongs to another user"
    if status.st_mode & stat.S_IWOTH:
        return "every user may write it"
    return ""
