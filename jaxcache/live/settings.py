"""The settings of the live layer: names, types, defaults, and where each value comes from.

``JAXCACHE_LIVE_*`` in the environment comes first, then ``[tool.jaxcache.live]`` of the nearest
trusted pyproject.toml, then ``[live]`` of ``$XDG_CONFIG_HOME/jaxcache/config.toml``, then the
arguments of ``enable()``, which never override the user, then the default. This file is the only
one that resolves them, also for ``jaxcache doctor``. ``core/configuration.py`` decides which
settings of a file count: a tier decides whose machine code this process runs.
"""

import os
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ..core import configuration
from ..core.remote import redact
from ..core.system import expand_home

PREFIX = "JAXCACHE_LIVE"


class ConfigError(ValueError):
    """A configuration file or a setting that cannot be used; the text gives the reason."""


def _amount(kind: type, read: "Callable[[str], Any]", forms: str) -> "Callable[[Any], Any]":
    def parse(value: Any) -> Any:
        kinds = (int, float) if kind is float else (int,)
        if type(value) in kinds and value >= 0:
            return kind(value)
        amount = read(value) if isinstance(value, str) else None
        if amount is None:
            raise ValueError(f"write {forms}")
        return amount

    return parse


_size = _amount(int, configuration.read_size_bytes, configuration.SIZES)
_seconds = _amount(float, configuration.read_seconds, configuration.DURATIONS)
_count = _amount(int, lambda text: int(text) if text.strip().isdigit() else None, "a whole number")


def _switch(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str):
        word = value.strip().lower()
        if word in configuration.TRUE_WORDS:
            return True
        if word in configuration.FALSE_WORDS or not word:
            return False
    raise ValueError("write true or false")


def _ledger(value: Any) -> Any:
    """A switch, or ``totals`` where ``jaxcache run`` records the uses by itself."""
    return value if value == "totals" else _switch(value)


def _text(value: Any) -> str:
    if isinstance(value, (str, os.PathLike)):
        try:
            return expand_home(os.fspath(value))
        except FileNotFoundError as error:
            raise ValueError(error.strerror) from error
    raise ValueError("write a text")


def _words(value: Any) -> "tuple[str, ...]":
    """A list, or one text: its lines if it has several, else its words, between commas too."""
    if isinstance(value, (str, os.PathLike)):
        text = os.fspath(value)
        value = text.splitlines() if "\n" in text else re.split(r"[,\s]+", text.strip())
    if isinstance(value, (list, tuple)):
        return tuple(_text(v) for v in value if v != "")
    raise ValueError("write a list of directories and URLs")


def _choice(*words: str) -> "Callable[[Any], str]":
    def parse(value: Any) -> str:
        if value in words:
            return str(value)
        raise ValueError(f"write {' or '.join(words)}")

    return parse


#: How each setting is read, and its default; docs/live.md describes what each does.
SETTINGS: "dict[str, tuple[Callable[[Any], Any], Any]]" = {
    "enabled": (_switch, False),
    "require-seal": (_choice("tiers", "always", "never"), "tiers"),
    "max-size": (_size, None),
    "max-entries": (_count, None),
    "unused-for": (_seconds, None),
    "policy": (_choice("lru", "cost"), "cost"),
    "ledger": (_ledger, True),
    "portable-keys": (_switch, False),
    "every-process": (_switch, False),
    "tiers": (_words, ()),
    "local-dir": (_text, None),
    "timeout": (_seconds, 2.0),
    "miss-budget": (_seconds, 3.0),
    "flush": (_seconds, 5.0),
    "queue": (_count, 256),
    "prefetch": (_switch, True),
    "preload": (_switch, True),
    "require-signed": (_switch, False),
    "signing-key": (_text, None),
    "single-flight": (_seconds, 0.0),
    "metrics": (_text, None),
    "summary": (_switch, False),
}


class ResolvedSettings:
    """Every setting with its value and who set it."""

    def __init__(self, values: "dict[str, Any]", origins: "dict[str, str]") -> None:
        self.values = values
        self.origins = origins

    def __getitem__(self, name: str) -> Any:
        return self.values[name]

    @property
    def shown(self) -> "dict[str, Any]":
        """The values without what may be a secret, to be printed."""
        return {**self.values, "tiers": tuple(map(redact, self.values["tiers"]))}


def variable(name: str) -> str:
    """The environment variable of a setting."""
    return PREFIX if name == "enabled" else f"{PREFIX}_{name.upper().replace('-', '_')}"


def resolve(overrides: "Mapping[str, Any] | None" = None) -> ResolvedSettings:
    """Resolve every setting.

    Args:
        overrides: arguments by name, with ``_`` or ``-``; None means "not given".

    Raises:
        ConfigError: a value that cannot be read, or a name that is not a setting.
    """
    values = {name: default for name, (_, default) in SETTINGS.items()}
    origins = dict.fromkeys(SETTINGS, "default")
    sources = [("enable()", {k: v for k, v in (overrides or {}).items() if v is not None})]
    tables = _read_tables()
    files = {path for path, _ in tables}
    sources += [*reversed(tables), ("environment", _environment())]
    for origin, table in sources:
        for word, value in table.items():
            name = word.replace("_", "-")
            where = variable(name) if origin == "environment" else origin
            if name not in SETTINGS:
                raise ConfigError(f"{where}: {word} is not a setting{_nearest(name)}")
            try:
                value = SETTINGS[name][0](value)
            except ValueError as error:
                raise ConfigError(f"{where}: {name} = {value!r}: {error}") from None
            is_required = name == "require-signed" and values[name] and origins[name] in files
            if is_required and where in files:  # no file takes back what another requires
                continue
            values[name] = value
            origins[name] = where
    return ResolvedSettings(values, origins)


def _environment() -> "dict[str, Any]":
    values: dict[str, Any] = {}
    for variable_name, value in os.environ.items():
        if variable_name == PREFIX:
            values["enabled"] = value
        elif variable_name.startswith(f"{PREFIX}_"):
            values[variable_name[len(PREFIX) + 1 :].lower().replace("_", "-")] = value
    return values


def _nearest(name: str) -> str:
    from difflib import get_close_matches

    close = get_close_matches(name, SETTINGS, n=1)
    return f"; did you mean {close[0]}?" if close else ""


def configured_directory() -> "str | None":
    """``cache-dir`` of the configuration files, as the command line reads it; ``~`` stays in it."""
    for path, table in _read_files("cache-dir"):
        value = table.get("cache-dir")
        if isinstance(value, str):
            is_whole = "://" in value or value.startswith("~")
            return value if is_whole else os.path.join(os.path.dirname(path), value)
    return None


def _read_tables() -> "list[tuple[str, dict[str, Any]]]":
    """Each file with its live settings that count, the nearest project's first.

    Raises:
        ConfigError: a trusted file is not TOML.
    """
    tables = []
    for path, settings in _read_files("live", "require-signed"):
        table = settings.get("live", {})
        if not isinstance(table, dict):
            raise ConfigError(f"live in {path} is not a table")
        if settings.get("require-signed", False) is not False:  # outside of [live]: for everything
            table = {**table, "require-signed": True}
        tables.append((path, table))
    return tables


def _read_files(*wanted: str) -> "Iterator[tuple[str, dict[str, Any]]]":
    """Return the settings of each file that count; report once if a wanted one is ignored.

    A file that is not trusted never stops the layer, with any content.

    Raises:
        ConfigError: a trusted file cannot be read.
    """
    # Mostly no parser has to be imported.
    files = configuration.find_config_files()
    name_errors = [f for f in files if any(name.encode() in f.text for name in wanted)]
    return configuration.read_counting(name_errors, wanted, _parse)


def _parse(file: configuration.ConfigFile) -> "dict[str, Any] | None":
    try:
        return file.parse()
    except ValueError as error:
        if file.is_trusted:
            raise ConfigError(f"cannot read {file.path}: {error}") from error
        configuration.report_once(f"cannot read {file.path}: {error}")
        return None


def describe() -> "dict[str, Any]":
    """The settings, their origins and what this Python has, for ``jaxcache doctor``."""
    from importlib.metadata import entry_points

    # JAX finds the layer by itself only where jaxcache is installed beside it.
    is_installed = any(e.value == "jaxcache.live.plugin" for e in entry_points(group="jax_plugins"))
    try:
        resolved = resolve()
    except ConfigError as error:
        return {"installed": is_installed, "error": str(error)}
    return {"installed": is_installed, "values": resolved.shown, "origins": resolved.origins}
