"""The layer of this process: its settings, its counters, and the directories it has opened.

:func:`begin_early` makes it before its jax, to fetch from tiers while jax is imported: the entries
that the program's last run used. It takes that jax over once it is imported. Nothing is loaded, and
each entry is checked as ever. Where the program uses another JAX, or names its credentials later, a
new layer takes its place.
"""

import atexit
import functools
import os
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..core.configuration import FALSE_WORDS
from ..core.names import live_directory
from ..core.remote import SERVICES
from ..core.seams import UnknownJaxError
from .adapter import Adapter
from .preload import Preload
from .process import COUNTERS, SUMS, LiveProcess, Metrics, say
from .settings import ConfigError, ResolvedSettings, resolve

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
            say(text)

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
                say(self.counters.summary())
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
    is_off = os.environ.get("JAX_ENABLE_COMPILATION_CACHE", "").strip().lower() in FALSE_WORDS
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


def start(
    settings: "ResolvedSettings | None" = None,
    *,
    began: "Callable[[ResolvedSettings], None] | None" = None,
) -> "Layer | None":
    """Switch the layer on if the settings request it; one layer per process.

    Args:
        settings: those of ``enable()``, which a layer at work takes over.
        began: called with the settings of a layer that has begun to work here.

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
                    if began is not None:
                        began(resolved)
            if settings is not None:
                LAYER.change(settings)
        except (ConfigError, UnknownJaxError) as error:
            say(f"live is off: {error}")
        return LAYER


def counters() -> "dict[str, float]":
    """Return what the live layer of this process has counted; empty where the layer is off.

    Every counter and every sum is there, also those that are zero; docs/live.md explains them.
    """
    if LAYER is None:
        return {}
    return {**dict.fromkeys((*COUNTERS, *SUMS), 0), **LAYER.counters.snapshot()}
