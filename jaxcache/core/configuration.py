"""The configuration files, and which of their settings count.

The files are every ``pyproject.toml`` from the working directory upwards, then the user's
``config.toml``. A project often comes from another person: a clone, an archive, a shared directory.
So its settings that decide which machine code runs, where files are written or what listens count
only if the user trusted the file with ``jaxcache trust here``, which records its path and the
SHA-256 of its content. Settings that only restrict count from every file that no other user could
have written. The command line and the live layer both read settings here and nowhere else, and
sizes and durations as people write them.
"""

import contextlib
import os
import re
import stat
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

from .system import open_regular, user_directory

PROJECT = "pyproject.toml"
#: Each line of this file of the user's configuration is ``sha256:DIGEST PATH``.
TRUSTED_PROJECTS = "trusted-projects"
MAX_BYTES = 1 << 20
#: Settings that only restrict: they count without trust. In ``[live]``, only with these values.
RESTRICTING = frozenset({"require-signed"})
_RESTRICTING_LIVE = {"require-signed": True, "require-seal": "always"}
_DIGEST = "sha256:"
#: ``tool.jaxcache``, or the table ``tool`` that ``jaxcache`` may be a key of.
_OWN_TABLE = rb"""tool["']?\s*(\.\s*["']?jaxcache|\]|=)"""
#: Every setting that decides what is cached, and JAX's default (jax/_src/config.py, 0.4.30 to
#: 0.12). The environment's name is the same in upper case.
JAX_DEFAULTS: "dict[str, Any]" = {
    "jax_enable_compilation_cache": True,
    "jax_compilation_cache_dir": None,
    "jax_persistent_cache_min_compile_time_secs": 1.0,
    "jax_persistent_cache_min_entry_size_bytes": 0,
    "jax_compilation_cache_max_size": -1,
    "jax_persistent_cache_enable_xla_caches": "xla_gpu_per_fusion_autotune_cache_dir",
    "jax_raise_persistent_cache_errors": False,
    "jax_compilation_cache_include_metadata_in_key": False,
    "jax_compilation_cache_check_contents": False,
    "jax_compilation_cache_expect_pgle": False,
    "jax_remove_custom_partitioning_ptr_from_cache_key": False,
    "jax_share_binary_between_hosts": False,
    "jax_enable_pgle": False,
    "jax_explain_cache_misses": False,
}
#: As JAX reads a setting that is true or false.
TRUE_WORDS = frozenset({"y", "yes", "t", "true", "on", "1"})
FALSE_WORDS = frozenset({"n", "no", "f", "false", "off", "0"})
_reported: "set[str]" = set()


def read_switch(variable: str, env: "Mapping[str, str]" = os.environ) -> "bool | None":
    """Return whether a variable switches something on or off; None where it says neither."""
    word = env.get(variable, "").strip().lower()
    return word in TRUE_WORDS if word in TRUE_WORDS | FALSE_WORDS else None


def read_setting(text: str, default: Any) -> Any:
    """Return the value that JAX reads from a variable of the environment for a setting.

    Args:
        default: a value of the setting's type.

    Raises:
        ValueError: JAX refuses the text: ``import jax`` ends with an error.
    """
    if isinstance(default, bool):
        if text.lower() not in TRUE_WORDS | FALSE_WORDS:
            raise ValueError(f"invalid truth value {text!r}")
        return text.lower() in TRUE_WORDS
    return type(default)(text) if isinstance(default, (int, float)) else text


def config_directory() -> str:
    """Return the directory of the user's configuration: ``$XDG_CONFIG_HOME/jaxcache``.

    Raises:
        FileNotFoundError: no home directory is known, so there is no such configuration.
    """
    return os.path.join(user_directory("XDG_CONFIG_HOME", "~/.config"), "jaxcache")


class ConfigFile:  # a dataclass takes 2 ms to make, in every process that has jax
    """A configuration file: its content, and why some of it does not count."""

    def __init__(self, path: str, text: bytes, unsafe: str) -> None:
        self.path = path
        self.text = text
        self.unsafe = unsafe
        """Why another user may have written the file; empty if none could."""
        self.is_project = os.path.basename(path) == PROJECT
        self._is_trusted: bool | None = None

    @property
    def is_trusted(self) -> bool:
        """Whether every setting counts: the user's own file, or a project's that is trusted."""
        if self._is_trusted is None:
            if self.is_project:
                self._is_trusted = read_trusted_projects().get(self.path) == digest_of(self.text)
            else:
                self._is_trusted = not self.unsafe
        return self._is_trusted

    @property
    def names_jaxcache(self) -> bool:
        """Whether a project's file may have settings of jaxcache, judged without parsing it.

        A file that another user may have written is not parsed before it is trusted.
        """
        # To parse a project's file takes longer than all else before a program starts.
        table = rb"tool\.jaxcache" if self.unsafe else _OWN_TABLE
        return b"jaxcache" in self.text and re.search(table, self.text) is not None

    @property
    def counts(self) -> bool:
        """Whether any setting of the file counts."""
        return not self.unsafe or self.is_trusted

    def parse(self) -> "dict[str, Any]":
        """Return all settings of jaxcache in the file, trusted or not.

        Raises:
            ValueError: it is not TOML, or this Python has no parser for it.
        """
        try:
            import tomllib
        except ImportError as error:  # Python 3.10
            raise ValueError("this Python has no tomllib; use JAXCACHE_LIVE_* variables") from error
        try:
            document: Any = tomllib.loads(self.text.decode())
        except RecursionError as error:
            raise ValueError("its values are nested too deeply") from error
        for name in ("tool", "jaxcache") if self.is_project else ():
            document = document.get(name, {})
            if not isinstance(document, dict):
                raise ValueError(f"{name} is not a table")
        return dict(document)

    def select(self, table: "dict[str, Any]") -> "tuple[dict[str, Any], list[str]]":
        """Return the settings of the file that count, and the names of those that do not."""
        if not table or self.is_trusted:
            return table, []
        counting: dict[str, Any] = {}
        ignored = []
        for name, value in table.items():
            if name == "live" and isinstance(value, dict):
                counting[name] = {k: v for k, v in value.items() if _restricts_live(k, v)}
                if len(counting[name]) < len(value):
                    ignored.append(name)
            elif name in RESTRICTING:
                counting[name] = value
            else:
                ignored.append(name)
        return counting, ignored

    def explain_ignored(self, names: "Iterable[str]" = ()) -> str:
        """Return the line for the user: which settings do not count, why, and what to do."""
        if not self.counts:
            line = f"ignored the settings of {self.path}: {self.unsafe}"
        else:
            line = f"ignored {' and '.join(names)} of {self.path}: this file is not trusted"
        return f"{line}; {self.remedy}"

    @property
    def remedy(self) -> str:
        """What the user can do so that the settings count."""
        if not self.is_project:
            return "only you or root may own it and write it"
        from shlex import quote

        directory = os.path.dirname(self.path)
        place = "" if directory == working_directory() else f" {quote(directory)}"
        return f"jaxcache trust here{place} shows them and asks"


def _restricts_live(name: str, value: Any) -> bool:
    restricting = _RESTRICTING_LIVE.get(name.replace("_", "-"))
    return restricting is not None and type(value) is type(restricting) and value == restricting


def digest_of(text: bytes) -> str:
    """Return the digest by which the content of a trusted file is recorded."""
    import hashlib

    return _DIGEST + hashlib.sha256(text).hexdigest()


def find_config_files(directory: "str | None" = None) -> "list[ConfigFile]":
    """Return the files that hold settings of jaxcache, the nearest project's first."""
    paths = []
    here = working_directory() if directory is None else directory
    while here:
        paths.append(os.path.join(here, PROJECT))
        parent = os.path.dirname(here)
        here = parent if parent != here else ""
    files = [*map(read_config_file, paths), read_user_file("config.toml")]
    return [file for file in files if file and (not file.is_project or file.names_jaxcache)]


def read_counting(
    files: "Iterable[ConfigFile]",
    wanted: "Collection[str]",
    read: "Callable[[ConfigFile], dict[str, Any] | None]",
) -> "Iterator[tuple[str, dict[str, Any]]]":
    """Yield the path and the settings that count of each file; report once what is ignored.

    Args:
        wanted: the settings that the caller uses.
        read: returns all settings of a file; None where it is left out.
    """
    for file in files:
        if not file.counts:
            report_once(file.explain_ignored())
            continue
        table = read(file)
        if table is None:
            continue
        counting, ignored = file.select(table)
        if any(name in ignored for name in wanted):
            report_once(file.explain_ignored(ignored))
        yield file.path, counting


def read_config_file(path: str) -> "ConfigFile | None":
    """Read one file with the status of the same descriptor; None if it is not a file."""
    try:
        with open_regular(path) as file:
            status = os.fstat(file.fileno())
            text = file.read(MAX_BYTES + 1)
    except OSError:
        return None
    is_project = os.path.basename(path) == PROJECT
    unsafe = find_other_writer(status) if is_project else find_writer(path, status)
    if len(text) > MAX_BYTES:
        unsafe = f"it is larger than {MAX_BYTES} bytes"
    return ConfigFile(path, text[:MAX_BYTES], unsafe)


def read_user_file(name: str) -> "ConfigFile | None":
    """Read a file of the user's configuration; None without it, or without a home directory."""
    try:
        return read_config_file(os.path.join(config_directory(), name))
    except FileNotFoundError:
        return None


def find_writer(path: str, status: os.stat_result) -> str:
    """Return why another user may have written a file, or replaced it with one of the user's."""
    above = os.stat(os.path.dirname(path))
    return find_other_writer(status) or find_other_writer(above, "its directory")


def find_other_writer(status: os.stat_result, what: str = "it") -> str:
    """Return why another user may have written a file; empty if only the user or root could.

    A group whose number is that of the owner is the owner's private group, which the usual
    ``umask`` of many systems lets write.
    """
    if status.st_uid not in (os.getuid(), 0):
        return f"{what} belongs to another user"
    if status.st_mode & stat.S_IWOTH:
        return f"every user may write {what}"
    if status.st_mode & stat.S_IWGRP and status.st_gid != status.st_uid:
        return f"its group may write {what}"
    return ""


def read_trusted_projects() -> "dict[str, str]":
    """Return the digest of each trusted file by its path; none where others may write the list."""
    file = read_user_file(TRUSTED_PROJECTS)
    if file is None:
        return {}
    if file.unsafe:
        report_once(f"ignored {file.path}: {file.unsafe}")
        return {}
    lines = (os.fsdecode(line).partition(" ") for line in file.text.split(b"\n"))
    return {project: digest for digest, _, project in lines if digest.startswith(_DIGEST)}


def working_directory() -> str:
    """Return the working directory; empty where it was removed."""
    try:
        return os.getcwd()
    except OSError:
        return ""


def report_once(line: str) -> None:
    """Print a line on standard error, the first time that this process reports it."""
    if line in _reported:
        return
    _reported.add(line)
    shown = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in line)
    with contextlib.suppress(Exception):  # standard error is closed
        sys.stderr.write(f"jaxcache: {shown}\n")  # in one write: two threads may speak at once
        sys.stderr.flush()


def forget_reported() -> None:
    """Report every line again: a new command begins in this process."""
    _reported.clear()


SIZES = "500MB, 10GiB, or bare bytes"
DURATIONS = "30s, 15m, 12h, 7d or 2w"
_SIZE_UNITS = {"": 1, "b": 1}
for _power, _letter in enumerate("kmgt", 1):
    _SIZE_UNITS |= {_letter: 1000**_power, f"{_letter}b": 1000**_power}
    _SIZE_UNITS[f"{_letter}ib"] = 1024**_power
_DURATION_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
#: Compiled when there is something to read. More digits would overflow.
_AMOUNT = r"(\d{1,18}(?:\.\d{1,18})?|\.\d{1,18})\s*([A-Za-z]*)"


def read_size_bytes(text: str) -> "int | None":
    """Read a size such as ``10GB`` (10^9), ``10GiB`` (2^30) or ``4096``; None if it is not one."""
    number, unit = _read(text, _SIZE_UNITS)
    if unit is None:
        return None
    return int(float(number) * unit) if "." in number else int(number) * unit


def read_seconds(text: str) -> "float | None":
    """Read a duration such as ``30s``, ``15m`` or ``7d``; None if it is not a duration."""
    number, unit = _read(text, _DURATION_UNITS)
    return None if unit is None else float(number) * unit


def _read(text: str, units: "Mapping[str, int]") -> "tuple[str, Any]":
    match = re.fullmatch(_AMOUNT, text.strip())
    return (match[1], units.get(match[2].lower())) if match else ("", None)
