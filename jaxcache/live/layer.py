"""The layer of this process: its settings, its counters, and the directories it has opened.

:func:`begin_early` makes it before its jax, to fetch from tiers while jax is imported: the entries
that the program's last run used. It takes that jax over once it is imported. Nothing is loaded, and
each entry is checked as ever. Where the program uses another JAX, or names its credentials later, a
new layer takes its place.

``jaxcache.enable()`` switches the cache on, from Python, with one call.
"""

import atexit
import functools
import os
import stat
import sys
import threading
import time
import warnings
from typing import TYPE_CHECKING, Any, NamedTuple

from ..core.configuration import JAX_DEFAULTS, read_switch, report_once
from ..core.names import XLA_CACHES, live_directory
from ..core.remote import SERVICES, redact
from ..core.seams import UnknownJaxError
from ..core.seams.cache import Adapter, reopen_where_needed
from ..core.system import expand_home
from .preload import Preload
from .process import COUNTERS, SUMS, LiveProcess, Metrics
from .settings import SETTINGS, ConfigError, ResolvedSettings, configured_directory, resolve

if TYPE_CHECKING:
    from .directory import Directory


class Layer(LiveProcess):
    """Everything that one process has of the live layer."""

    forked = False
    """Whether the process that this one was forked from had a layer; one begun later counts, too.

    A child has no tiers: their connections are its parent's.
    """

    def __init__(self, settings: ResolvedSettings, adapter: "Adapter | UnimportedJax") -> None:
        super().__init__(settings, adapter)
        self.directories: dict[str, Directory] = {}
        self.metrics: Any = None
        self.preload = Preload(self)
        os.register_at_fork(after_in_child=self._after_fork)

    def take_over(self, adapter: Adapter) -> None:
        """Go on with the jax that was imported meanwhile."""
        self.adapter = adapter
        self.counters.tell(adapter.monitoring)
        for text in self._said:
            report_once(text)

    def install(self, adapter: Adapter) -> None:
        """Put the layer between JAX and its cache."""
        adapter.install(self)
        if self.directories:  # opened before it was certain what keys contain
            self._say_of_paths()
        self._start_metrics()
        atexit.register(self.close)

    def _start_metrics(self) -> None:
        if self.settings["metrics"]:
            try:
                self.metrics = Metrics(self.settings["metrics"], self.counters)
            except Exception as error:  # no such directory, or not a path
                self.say(f"live: no metrics: {error}")

    def change(self, settings: ResolvedSettings) -> None:
        """Use other settings from now on; JAX reopens its directory."""
        if settings.values == self.settings.values:
            return
        deadline = time.monotonic() + self.settings["flush"]
        before = self.settings
        self.settings = settings
        if settings["metrics"] != before["metrics"]:
            self._start_metrics()
        directories = list(self.directories.values())
        self.directories = {}
        for directory in directories:
            directory.close(deadline)
        self.adapter.reset()

    def open(self, path: str, max_size: int, bucket: str = "") -> "Directory":
        """Return the directory at a path; one object per path, also after JAX resets its cache."""
        from .directory import Directory  # not before JAX opens its cache

        root = os.path.abspath(path)
        directory = self.directories.get(root)
        cap = None if max_size is None or max_size < 0 else max_size
        if directory is not None:
            directory.set_cap(cap)
        else:
            open_tiers = functools.partial(self.open_tiers, bucket=bucket)
            directory = Directory(self, root, cap, open_tiers, self.preload.is_ahead)
            self.directories[root] = directory
        return directory

    def backend_starts(self) -> None:
        """Begin to load ahead, from the directory that JAX is going to open."""
        try:
            if place := self.preload.configured_directory():
                self.preload.begin(self.open(*place))
        except Exception as error:
            self.trouble(error)

    def locate(self, path: str) -> "tuple[str, str]":
        """The local directory of a path or URL that JAX was given, and the bucket that it names."""
        if path.partition("://")[0] in SERVICES:
            try:
                return str(self.settings["local-dir"] or live_directory(path)), path
            except FileNotFoundError:  # JAX uses the bucket by itself
                self.say(
                    f"live: {path} needs a local directory: set JAXCACHE_LIVE_LOCAL_DIR or HOME"
                )
        return path, ""

    def open_tiers(self, directory: "Directory", bucket: str = "") -> Any:
        """Return the tiers of a directory; None without any, and in a forked child."""
        addresses = (*((bucket,) if bucket else ()), *self.settings["tiers"])
        if not addresses or self.forked:
            return None
        from .tiers import Tiers

        self._say_of_paths()
        try:
            return Tiers(directory, addresses, self)
        except Exception as error:  # a missing package, a key that others may read
            self.trouble(error)
            return None

    def _say_of_paths(self) -> None:
        if self.settings["tiers"] and self.adapter.hashes_path():
            self.say(
                "live: keys of this JAX contain the path of the local cache, so entries of a tier "
                "hit only where it is the same: use --portable (JAXCACHE_LIVE_PORTABLE_KEYS=1) on "
                "every machine"
            )

    def close(self) -> None:
        """Finish at the end of the process, within the limits that are set."""
        try:
            self.preload.close()
            deadline = time.monotonic() + self.settings["flush"]
            self.background.finish(self.settings["flush"])
            for directory in list(self.directories.values()):
                directory.close(deadline)
            if self.metrics is not None:
                self.metrics.write()
            if self.settings["summary"]:
                report_once(self.counters.summary())
        except Exception as error:
            self.trouble(error)

    def _after_fork(self) -> None:
        Layer.forked = True
        self.counters.reset()
        self.background.reset()
        self.first_runs.reset()
        self.preload.disown()
        for directory in self.directories.values():
            directory.reset()


_early: "Layer | None" = None


class UnimportedJax:
    """The facts about a jax that is about to be imported."""

    monitoring = None

    def __init__(self) -> None:
        from importlib.metadata import version

        self.versions = {"jax_version": version("jax"), "jaxlib_version": version("jaxlib")}

    def hashes_path(self) -> bool:
        """Return False: whether keys contain the path of the cache is not known yet."""
        return False


def begin_early() -> None:
    """Begin to fetch, where the environment names both the cache directory and tiers."""
    global _early
    if _early is not None:
        return
    path = os.environ.get("JAX_COMPILATION_CACHE_DIR", "")
    is_off = read_switch("JAX_ENABLE_COMPILATION_CACHE") is False
    settings = resolve()
    if not path or is_off or not settings["enabled"] or not settings["prefetch"]:
        return
    layer = Layer(settings, UnimportedJax())
    local, bucket = layer.locate(path)
    if "://" not in local and (bucket or settings["tiers"]):
        os.makedirs(local, exist_ok=True)
        layer.open(local, int(os.environ.get("JAX_COMPILATION_CACHE_MAX_SIZE") or -1), bucket)
        _early = layer


def _take_early(settings: ResolvedSettings, adapter: Adapter) -> "Layer | None":
    """Hand the layer over to the jax that has been imported; None where it is not to be used."""
    global _early
    layer = _early
    _early = None
    if layer is None or layer.forked or layer.settings.values != settings.values:
        return None
    tiers = [d.tiers for d in layer.directories.values() if d.tiers is not None]
    is_refused = any(t.is_given_up() for t in tiers)
    if tiers and not is_refused and layer.adapter.versions == adapter.versions:
        layer.take_over(adapter)
        return layer
    for one in tiers:
        one.abandon()
    return None


LAYER: "Layer | None" = None
_starting = threading.RLock()


def start(settings: "ResolvedSettings | None" = None) -> "Layer | None":
    """Switch the layer on if the settings request it; one layer per process.

    Args:
        settings: those of ``enable()``, which a layer at work takes over; None where JAX starts it.

    Returns:
        The layer; None where it stays off. The reason is on standard error.
    """
    global LAYER
    with _starting:
        try:
            if LAYER is None:
                resolved = settings or resolve()
                if not resolved["enabled"]:
                    return None
                adapter = Adapter()
                LAYER = adapter.layer()
                if LAYER is None:
                    layer = _take_early(resolved, adapter) or Layer(resolved, adapter)
                    layer.install(adapter)
                    LAYER = layer
                    if settings is None:
                        _set_default_directory(resolved)
            if settings is not None:
                LAYER.change(settings)
        except (ConfigError, UnknownJaxError) as error:
            report_once(f"live is off: {error}")
        return LAYER


def counters() -> "dict[str, float]":
    """Return what the live layer of this process has counted; empty where the layer is off.

    Every counter and every sum is there, also those that are zero; docs/live.md explains them.
    """
    if LAYER is None:
        return {}
    return {**dict.fromkeys((*COUNTERS, *SUMS), 0), **LAYER.counters.snapshot()}


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
    directory from JAX 0.8.3 on; keys of earlier ones lack the CPU, which can end in SIGILL.

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
        start(resolved)
    reopen_where_needed(is_moved=_DIRECTORY in changed, is_live=LAYER is not None)
    directory = str(getattr(jax.config, _DIRECTORY))
    return Enabled(directory, LAYER is not None, changed, kept)


def _set_default_directory(settings: ResolvedSettings) -> None:
    """Set JAX's directory if a file switches the layer on and none is set.

    Raises:
        ConfigError: the file's own ``cache-dir`` cannot be made.
    """
    import jax

    if settings.origins["enabled"].endswith(".toml") and _is_free(jax.config, _DIRECTORY):
        changed, _ = _apply(jax.config, {_DIRECTORY: _prepare(*_default_directory())})
        reopen_where_needed(is_moved=_DIRECTORY in changed, is_live=LAYER is not None)


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
    import tempfile

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
