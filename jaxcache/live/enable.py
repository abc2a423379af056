"""``jaxcache.enable()``: the cache on, from Python, with one call."""

import os
import stat
import sys
import tempfile
import warnings
from typing import Any, NamedTuple

from ..core.configuration import JAX_DEFAULTS
from ..core.machine import XLA_CACHES
from ..core.remote import redact
from ..core.system import expand_home
from . import layer as live_layer
from .adapter import reopen_where_needed
from .settings import SETTINGS, ResolvedSettings, configured_directory, resolve
from .settings import ConfigError as ConfigError

_DIRECTORY = "jax_compilation_cache_dir"
#: What calls before this one have set, which a later call may change.
_ours: "dict[str, Any]" = {}
#: The live settings that earlier calls have given.
_given: "dict[str, Any]" = {}


class Enabled(NamedTuple):  # a dataclass takes 2 ms to make
    """The result of :func:`enable`."""

    cache_dir: str
    """The directory or URL that JAX uses."""
    live: bool
    """Whether the live layer is on."""
    changed: "dict[str, Any]"
    """Settings of JAX that were made."""
    kept: "dict[str, Any]"
    """Settings that were requested but left as the user has them."""

    def __repr__(self) -> str:
        parts = [f"cache_dir={self.cache_dir!r}", f"live={self.live}"]
        for word, values in (("changed", self.changed), ("kept", self.kept)):
            names = ", ".join(f"{name}={value!r}" for name, value in values.items())
            parts += [f"{word}: {names}"] if names else []
        return f"jaxcache enabled ({'; '.join(parts)})"


def enable(
    cache_dir: "str | os.PathLike[str] | None" = None,
    *,
    max_size: "int | str | None" = None,
    tiers: "tuple[str, ...] | list[str]" = (),
    live: bool = True,
    portable: "bool | None" = None,
    min_compile_seconds: "float | None" = 0.0,
    **settings: Any,
) -> Enabled:
    """Switch JAX's persistent cache on, before or after the first compile; safe to call twice.

    What the user has set stays: JAX's own variables and configuration, ``JAXCACHE_LIVE*``, and
    the tables in pyproject.toml and config.toml. Arguments that a call omits stay as an earlier
    call has set them. The result lists what was changed and what was kept; one warning names the
    arguments that the user's own settings override. Machines of several types may share a
    directory: the CPU's or GPU's type is part of each key.

    Args:
        cache_dir: a directory or URL; by default ``cache-dir`` of the configuration files, else
            ``~/.cache/jax`` (``$XDG_CACHE_HOME/jax``). Where that cannot be written, a directory
            for temporary files is used, with one warning.
        max_size: evict above this size, in bytes or such as ``"10GB"``.
        tiers: directories and URLs to ask after the local directory; ``[]`` removes those of an
            earlier call.
        live: switch the live layer on, too; without it only JAX's own settings are made.
        portable: keep the directory out of the keys of JAX before 0.11.
        min_compile_seconds: cache what took longer to compile; JAX's threshold is 1 s. None
            leaves it.
        settings: any other setting of the live layer: every_process, flush, ledger, local_dir,
            max_entries, metrics, miss_budget, policy, prefetch, preload, queue, require_seal,
            require_signed, signing_key, single_flight, summary, timeout, unused_for.

    Raises:
        ConfigError: a setting cannot be read, or ``cache_dir`` cannot be made.
    """
    import jax

    arguments = {
        "enabled": live,
        "max-size": max_size,
        "tiers": None if tiers == () else tuple(tiers),
        "portable-keys": portable,
        **{name.replace("_", "-"): value for name, value in settings.items()},
    }
    chosen = {name: value for name, value in arguments.items() if value is not None}
    arguments = _given | chosen
    resolved = resolve(arguments)
    _given.update(arguments)
    wanted: dict[str, Any] = {}
    if min_compile_seconds is not None:
        wanted["jax_persistent_cache_min_compile_time_secs"] = float(min_compile_seconds)
        wanted["jax_persistent_cache_min_entry_size_bytes"] = -1
    if resolved["portable-keys"]:
        wanted[XLA_CACHES] = "none"
    if not resolved["enabled"] and resolved["max-size"] is not None:
        wanted["jax_compilation_cache_max_size"] = resolved["max-size"]
    free = _is_free(jax.config, _DIRECTORY)
    if cache_dir is not None:
        wanted[_DIRECTORY] = _prepare(os.fspath(cache_dir), explicit=True, make=free)
    elif free and _DIRECTORY not in _ours:
        wanted[_DIRECTORY] = _prepare(*_default_directory())
    changed, kept = _apply(jax.config, wanted)
    _warn_of_lost(chosen, resolved, kept if cache_dir is not None else {}, cache_dir)
    if resolved["enabled"]:
        live_layer.start(resolved)
    reopen_where_needed(is_moved=_DIRECTORY in changed, is_live=live_layer.LAYER is not None)
    directory = str(getattr(jax.config, _DIRECTORY))
    return Enabled(directory, live_layer.LAYER is not None, changed, kept)


def set_default_directory(settings: ResolvedSettings) -> None:
    """Set JAX's directory if a file switches the layer on and none is set.

    Raises:
        ConfigError: the file's own ``cache-dir`` cannot be made.
    """
    import jax

    if settings.origins["enabled"].endswith(".toml") and _is_free(jax.config, _DIRECTORY):
        changed, _ = _apply(jax.config, {_DIRECTORY: _prepare(*_default_directory())})
        reopen_where_needed(is_moved=_DIRECTORY in changed, is_live=live_layer.LAYER is not None)


def _warn_of_lost(
    chosen: "dict[str, Any]", resolved: ResolvedSettings, kept: "dict[str, Any]", cache_dir: Any
) -> None:
    """Warn, in one line, of the arguments that the user's own settings have overruled."""
    lost = []
    if _DIRECTORY in kept:
        upper = _DIRECTORY.upper()
        where = upper if upper in os.environ else f"jax.config.{_DIRECTORY}"
        lost.append(f"cache_dir={os.fspath(cache_dir)!r} ({where} is {kept[_DIRECTORY]})")
    for name in chosen:
        where = resolved.origins[name]
        differs = name != "enabled" and SETTINGS[name][0](chosen[name]) != resolved[name]
        if where != "enable()" and differs:
            argument = name.replace("-", "_")
            value = tuple(map(redact, chosen[name])) if name == "tiers" else chosen[name]
            lost.append(f"{argument}={value!r} ({where} sets {resolved.shown[name]!r})")
    if lost:
        warnings.warn(
            f"jaxcache: enable() leaves your own settings, so these arguments have no effect: "
            f"{', '.join(lost)}",
            stacklevel=_depth_of_caller(),
        )


def _is_free(config: Any, name: str) -> bool:
    """Whether the user has left a setting of JAX as it was."""
    if not hasattr(config, name):
        return False
    value = getattr(config, name)
    if name in _ours and _ours[name] == value:
        return True
    return name.upper() not in os.environ and value == JAX_DEFAULTS[name]


def _apply(config: Any, wanted: "dict[str, Any]") -> "tuple[dict[str, Any], dict[str, Any]]":
    changed: dict[str, Any] = {}
    kept: dict[str, Any] = {}
    for name, value in wanted.items():
        if not hasattr(config, name) or getattr(config, name) == value:
            continue
        if _is_free(config, name):
            config.update(name, value)
            changed[name] = _ours[name] = value
        else:
            kept[name] = getattr(config, name)
    return changed, kept


def _default_directory() -> "tuple[str, bool]":
    configured = configured_directory()
    if configured:
        return configured, True
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return os.path.join(base, "jax"), False


def _prepare(path: str, explicit: bool, *, make: bool = True) -> str:
    """Make a directory; instead of a default that cannot be written, a temporary one."""
    if path.startswith("file://"):
        from urllib.parse import unquote, urlsplit

        path = unquote(urlsplit(path).path)
    if "://" in path:
        return path
    try:
        path = os.path.abspath(expand_home(path))
        if not make:
            return path
        os.makedirs(path, mode=0o700, exist_ok=True)
        if explicit or os.access(path, os.W_OK | os.X_OK):
            return path
        reason = "it cannot be written"
    except OSError as error:
        reason = error.strerror or str(error)
        if explicit:
            raise ConfigError(f"cannot use {path} as the cache: {reason}") from error
    fallback = os.path.join(tempfile.gettempdir(), f"jaxcache-{os.getuid()}")
    os.makedirs(fallback, mode=0o700, exist_ok=True)
    status = os.lstat(fallback)
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o022:
        raise ConfigError(f"cannot use {path} ({reason}), and {fallback} is not safe to use")
    if "warned" not in _ours:
        _ours["warned"] = True
        warnings.warn(
            f"jaxcache: cannot use {path} ({reason}); {fallback} is used, set cache_dir",
            stacklevel=_depth_of_caller(),
        )
    return fallback


def _depth_of_caller() -> int:
    """The stack level of whoever called :func:`enable`."""
    depth = 1
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename == __file__:
        depth = depth + 1
        frame = frame.f_back
    return depth
