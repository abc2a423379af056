"""The settings of the live layer: names, types, defaults, and where each value comes from.

``JAXCACHE_LIVE_*`` in the environment comes first, then the configuration files (:mod:`.config`),
then the arguments of ``enable()``, which never override the user, then the default. This file is
the only one that resolves them, also for ``jaxcache doctor``.
"""

import os
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from .config import ConfigError, read_tables

PREFIX = "JAXCACHE_LIVE"
_SIZES = {
    "": 1, "b": 1, "k": 10**3, "kb": 10**3, "m": 10**6, "mb": 10**6, "g": 10**9, "gb": 10**9,
    "t": 10**12, "tb": 10**12, "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40,
}  # fmt: skip
_DURATIONS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_AMOUNT = re.compile(r"(\d+(?:\.\d+)?|\.\d+)\s*([a-z]*)", re.IGNORECASE)


def _amount(value: Any, units: Mapping[str, int], example: str) -> float:
    if isinstance(value, str):
        match = _AMOUNT.fullmatch(value.strip())
        if match and match[2].lower() in units:
            return float(match[1]) * units[match[2].lower()]
    raise ValueError(f"write {example}")


def _size(value: Any) -> int:
    if type(value) is int and value >= 0:
        return value
    return int(_amount(value, _SIZES, "500MB, 10GiB, or bare bytes"))


def _seconds(value: Any) -> float:
    if isinstance(value, (int, float)) and not isinstance(value, bool) and value >= 0:
        return float(value)
    return _amount(value, _DURATIONS, "30s, 15m, 12h, 7d or 2w")


def _count(value: Any) -> int:
    if isinstance(value, str) and value.strip().isdigit():
        value = int(value)
    if type(value) is int and value >= 0:
        return value
    raise ValueError("write a whole number")


def _switch(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str):
        word = value.strip().lower()
        if word in ("1", "true", "yes", "on"):
            return True
        if word in ("0", "false", "no", "off", ""):
            return False
    raise ValueError("write true or false")


def _text(value: Any) -> str:
    if isinstance(value, (str, os.PathLike)):
        return os.path.expanduser(os.fspath(value))
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


class Setting(NamedTuple):
    """One setting: how it is read, and what holds where nobody sets it."""

    parse: "Callable[[Any], Any]"
    default: Any
    help: str


SETTINGS: "dict[str, Setting]" = {
    "enabled": Setting(_switch, False, "Switch the layer on; JAXCACHE_LIVE in the environment."),
    "require-seal": Setting(
        _choice("tiers", "always", "never"), "tiers",
        "Refuse entries without a checksum: those of tiers, all, or none.",
    ),
    "max-size": Setting(_size, None, "Evict entries above this size of the local directory."),
    "max-entries": Setting(_count, None, "Evict entries above this number."),
    "unused-for": Setting(_seconds, None, "Evict entries unused for this long."),
    "policy": Setting(_choice("lru", "cost"), "lru", "Which entries go first."),
    "ledger": Setting(_switch, True, "Record uses and compile seconds for ls and prune."),
    "portable-keys": Setting(
        _switch, False, "Keep the directory out of the keys of JAX before 0.11."
    ),
    "every-process": Setting(
        _switch, False, "Write the entries of every process of a distributed program."
    ),
    "tiers": Setting(
        _words, (), "Directories and URLs to ask after the local directory; :ro is read-only."
    ),
    "local-dir": Setting(_text, None, "The directory where JAX's own is a bucket."),
    "timeout": Setting(_seconds, 2.0, "How long one request to a tier may take."),
    "miss-budget": Setting(_seconds, 3.0, "How long the misses of a tier may take in all."),
    "flush": Setting(_seconds, 5.0, "How long the end of the process waits for uploads."),
    "queue": Setting(_count, 256, "How many uploads may wait in memory."),
    "prefetch": Setting(_switch, True, "Fetch what the last run used from the tiers at start."),
    "require-signed": Setting(_switch, False, "Use entries of tiers only if a trusted key signed."),
    "signing-key": Setting(_text, None, "Sign uploads with this private key."),
    "single-flight": Setting(
        _seconds, 0.0, "Wait at most this long for another process that compiles the same module."
    ),
    "metrics": Setting(_text, None, "Counters for Prometheus: a file, or :PORT for HTTP."),
    "summary": Setting(_switch, False, "Print one line of counts when the process ends."),
}  # fmt: skip


class Resolved:
    """Every setting with its value and who set it."""

    def __init__(self, values: "dict[str, Any]", origins: "dict[str, str]") -> None:
        self.values = values
        self.origins = origins

    def __getitem__(self, name: str) -> Any:
        return self.values[name]


def variable(name: str) -> str:
    """The environment variable of a setting."""
    return PREFIX if name == "enabled" else f"{PREFIX}_{name.upper().replace('-', '_')}"


def resolve(given: "Mapping[str, Any] | None" = None) -> Resolved:
    """Resolve every setting.

    Args:
        given: arguments by name, with ``_`` or ``-``; None stands for "not given".

    Raises:
        ConfigError: a value that cannot be read, or a name that is no setting.
    """
    values = {name: setting.default for name, setting in SETTINGS.items()}
    origins = dict.fromkeys(SETTINGS, "default")
    sources = [("enable()", {k: v for k, v in (given or {}).items() if v is not None})]
    sources += [*reversed(read_tables()), ("environment", _environment())]
    for origin, table in sources:
        for word, value in table.items():
            name = word.replace("_", "-")
            where = variable(name) if origin == "environment" else origin
            if name not in SETTINGS:
                raise ConfigError(f"{where}: {word} is not a setting{_nearest(name)}")
            try:
                values[name] = SETTINGS[name].parse(value)
            except ValueError as error:
                raise ConfigError(f"{where}: {name} = {value!r}: {error}") from None
            origins[name] = where
    return Resolved(values, origins)


def _environment() -> "dict[str, Any]":
    found: dict[str, Any] = {}
    for variable_name, value in os.environ.items():
        if variable_name == PREFIX:
            found["enabled"] = value
        elif variable_name.startswith(f"{PREFIX}_"):
            found[variable_name[len(PREFIX) + 1 :].lower().replace("_", "-")] = value
    return found


def _nearest(name: str) -> str:
    from difflib import get_close_matches

    close = get_close_matches(name, SETTINGS, n=1)
    return f"; did you mean {close[0]}?" if close else ""


def describe() -> "dict[str, Any]":
    """The settings, their origins and what this Python has, for ``jaxcache doctor``."""
    from importlib.metadata import entry_points

    # JAX finds the layer by itself only where jaxcache is installed beside it.
    found = any(e.value == "jaxcache.live.plugin" for e in entry_points(group="jax_plugins"))
    try:
        resolved = resolve()
    except ConfigError as error:
        return {"installed": found, "error": str(error)}
    return {"installed": found, "values": resolved.values, "origins": resolved.origins}
