"""Every private name of JAX that the live layer touches.

Tried on JAX 0.4.38, 0.5.3, 0.6.2, 0.8.3, 0.10.2, 0.11.2 and 0.12.0.1. JAX looks all of them up in
their modules at each call, so that replacing the attribute is enough:

* ``jax._src.compilation_cache.LRUCache(path, *, max_size)``, ``get(key)``, ``put(key, value)``;
  beside them JAX reads only ``_path``. It survives ``reset_cache()``.
* ``jax._src.lru_cache._CACHE_SUFFIX``: how the files of entries end.
* ``compress_executable`` and ``decompress_executable`` there: one ``bytes`` in, one out.
* ``get_executable_and_time(cache_key, …)`` there: looks up, decompresses and loads.
* ``jax._src.interpreters.pxla.ExecuteReplicated``: executes ``self.xla_executable``; the first
  execution of each program goes through its ``__call__``. It may be missing.
* ``jax._src.xla_bridge.discover_pjrt_plugins``: called once, before backends are created.
* ``jax._src.compiler._cache_write(cache_key, compile_time_secs, module_name, backend,
  executable[, host_callbacks])``: called after each compile on every process.
* ``jax._src.compiler.compile_or_get_cached(…)``: one compile request.
* Tried on 0.8.3 and later, for :class:`LoadSeam`: ``compilation_cache.get_executable_and_time(
  cache_key, compile_options, backend, executable_devices[, host_callbacks])`` reads and
  decompresses the entry, and gives the rest to ``deserialize_executable`` of the client, which is
  replaced. So JAX's own code runs at each load, and whoever listens to it notices no difference.
"""

import functools
import inspect
import os
import re
from collections.abc import Callable
from typing import Any, NamedTuple

from ..names import CACHE_SUFFIX, XLA_CACHES
from . import describe_versions, hide_frames, known_to, process_index, wrap

TRIED = "0.4.38 to 0.12"


class Adapter:
    """The parts of the imported jax that are replaced."""

    def __init__(self) -> None:
        import jax

        self.jax = jax
        self._sees_executions = False
        self.monitoring = jax.monitoring
        with known_to("stand in front of the cache of", jax, TRIED):
            from jax._src import compilation_cache, compiler, lru_cache

            self._cache = compilation_cache
            self._compiler = compiler
            if lru_cache._CACHE_SUFFIX != CACHE_SUFFIX:  # before 0.4.31 a file was named by its key
                raise AttributeError(f"entries end in {lru_cache._CACHE_SUFFIX}")
            lru = compilation_cache.LRUCache
            if self.layer() is not None:  # another copy of this package was first
                lru = lru.__mro__[1]
            for function, first in (
                (lru.__init__, ["self", "path", "max_size"]),
                (lru.get, ["self", "key"]),
                (lru.put, ["self", "key"]),
                (compilation_cache.compress_executable, ["executable"]),
                (compilation_cache.decompress_executable, ["executable"]),
                (compilation_cache.get_executable_and_time, ["cache_key"]),
                (compilation_cache.reset_cache, []),
                (compiler.compile_or_get_cached, ["backend", "computation", "devices"]),
                (compiler._cache_write, ["cache_key", "compile_time_secs", "module_name"]),
            ):
                names = list(inspect.signature(function).parameters)
                if names[: len(first)] != first:
                    raise AttributeError(f"{function.__qualname__} takes {', '.join(names)}")
        self.versions = describe_versions()

    def layer(self) -> Any:
        """The layer at work in this process, maybe of another copy of this package; or None."""
        return getattr(self._cache.LRUCache, "jaxcache_live", None)

    def reset(self) -> None:
        """Let JAX reopen its cache at the next compile."""
        self._cache.reset_cache()

    def install(self, layer: Any) -> None:
        """Replace the names."""
        cache = self._cache
        is_unset = XLA_CACHES.upper() not in os.environ and hasattr(self.jax.config, XLA_CACHES)
        if layer.settings["portable-keys"] and is_unset:
            # The cache's path, which JAX gives to XLA as an option, stays out of the key.
            self.jax.config.update(XLA_CACHES, "none")
        seal_writes(cache)

        def decompress(original: Any, args: Any, kwargs: Any) -> Any:
            decoded = layer.now.decoded
            layer.now.decoded = None
            if decoded is not None and args and decoded[0] is args[0]:
                return decoded[1]
            return original(*args, **kwargs)

        wrap(cache, "decompress_executable", decompress)
        self._wrap_execution(layer)
        self._wrap_load(layer)
        self._wrap_write(layer)
        self._wrap_request(layer)
        self._watch_backends(layer)
        cache.LRUCache = make_cache(cache.LRUCache, layer)
        hide_frames()

    def _watch_backends(self, layer: Any) -> None:
        """Tell the layer when backends are about to be created, unless they are being created."""
        from jax._src import xla_bridge

        def discover(original: Any, args: Any, kwargs: Any) -> None:
            original(*args, **kwargs)
            layer.backend_starts()

        if hasattr(xla_bridge, "discover_pjrt_plugins"):
            wrap(xla_bridge, "discover_pjrt_plugins", discover)

    def hashes_path(self) -> bool:
        """Whether keys contain the cache's path, as those of JAX 0.4.36 to 0.10 do by default."""
        from ..machine import hashes_path

        return hashes_path(self.jax.__version__, getattr(self.jax.config, XLA_CACHES, None) or "")

    def _wrap_load(self, layer: Any) -> None:
        def load(original: Any, args: Any, kwargs: Any) -> Any:
            now = layer.now
            cache_key, *others = args
            layer.run(functools.partial(layer.preload.note, args=others, kwargs=kwargs), cache_key)
            now.loading = True
            now.key = cache_key
            executable = None
            try:
                loaded = original(*args, **kwargs)
                executable = loaded[0] if self._sees_executions else None
                return loaded
            finally:
                now.loading = False
                now.key = ""
                now.decoded = None
                for directory in layer.directories.values():
                    over = functools.partial(directory.loaded, executable=executable)
                    layer.run(over, cache_key)

        wrap(self._cache, "get_executable_and_time", load)

    def _wrap_execution(self, layer: Any) -> None:
        try:
            from jax._src.interpreters.pxla import ExecuteReplicated
        except ImportError:
            return  # a load is over when JAX has the executable
        wrap(ExecuteReplicated, "__call__", layer.first_runs.execute)
        self._sees_executions = True

    def _wrap_write(self, layer: Any) -> None:
        def write(original: Any, args: Any, kwargs: Any) -> Any:
            cache_key, compile_time_secs = args[:2]
            layer.counters.add("compile_seconds", compile_time_secs)
            layer.now.seconds = compile_time_secs
            try:
                result = original(*args, **kwargs)
                # JAX writes in process 0 alone.
                if layer.settings["every-process"] and process_index():
                    names = inspect.signature(original)
                    self._put(names.bind(*args, **kwargs).arguments)
                return result
            finally:
                layer.now.seconds = None
                if layer.now.missed is not None:  # compiled, and not written
                    directory, key = layer.now.missed
                    layer.now.missed = None
                    if directory.uses is not None and key == cache_key:
                        directory.uses.missed(key)

        wrap(self._compiler, "_cache_write", write)

    def _put(self, request: "dict[str, Any]") -> None:
        """Write an entry as ``_cache_write`` does in process 0, by the same thresholds."""
        config = self.jax.config
        seconds = request["compile_time_secs"]
        if request.get("host_callbacks") or (
            seconds < config.jax_persistent_cache_min_compile_time_secs
        ):
            return
        put = self._cache.put_executable_and_time
        key = request["cache_key"]
        module = request["module_name"]
        put(key, module, request["executable"], request["backend"], int(seconds))

    def _wrap_request(self, layer: Any) -> None:
        """Give leases back when a compile is over, also one that failed or was not written."""

        def request(original: Any, args: Any, kwargs: Any) -> Any:
            state = vars(layer.now)
            outer = dict(state)  # of the request that a signal handler has interrupted
            state.clear()
            layer.now.leases = []
            try:
                return original(*args, **kwargs)
            finally:
                leases = layer.now.leases
                state.clear()
                state.update(outer)
                for directory, key in leases:
                    layer.run(directory.release, key)

        wrap(self._compiler, "compile_or_get_cached", request)


def reopen_where_needed(*, is_moved: bool, is_live: bool) -> None:
    """Let JAX reopen its cache if it has opened another one, or has found none.

    Args:
        is_moved: whether its directory is another one now.
        is_live: whether the layer is on, with which an open cache may be without it.
    """
    from jax._src import compilation_cache

    cache = getattr(compilation_cache, "_cache", None)
    opened = getattr(compilation_cache, "_cache_initialized", False)
    checked = getattr(compilation_cache, "_cache_checked", False)
    used = getattr(compilation_cache, "_cache_used", False)
    inner = getattr(cache, "_base_cache", cache)  # VerificationCache
    plain = is_live and inner is not None and not hasattr(inner, "jaxcache_live")
    if (opened and (is_moved or cache is None)) or plain or (checked and not used):
        compilation_cache.reset_cache()


def seal_writes(cache_module: Any) -> None:
    """Let JAX write zstd's checksum into each entry; zlib has one of its own.

    Args:
        cache_module: ``jax._src.compilation_cache``, whose ``compress_executable(bytes)`` is
            replaced.
    """
    standard = getattr(cache_module, "zstd", None)
    package: Any = getattr(cache_module, "zstandard", None)
    if standard is not None:
        options = {standard.CompressionParameter.checksum_flag: 1}

    def compress_executable(executable: bytes) -> bytes:
        if standard is not None:
            return bytes(standard.compress(executable, options=options))
        return bytes(package.ZstdCompressor(write_checksum=True).compress(executable))

    if standard is not None or package is not None:
        cache_module.compress_executable = compress_executable


def codecs() -> "dict[str, str]":
    """Return the name of the codec in keys, and of the one that entries are written with."""
    from jax._src import compilation_cache

    standard = getattr(compilation_cache, "zstd", None)
    package = getattr(compilation_cache, "zstandard", None)
    return {
        "key_codec": "zstandard" if package is not None else "zlib",
        "written_codec": "zlib" if standard is None and package is None else "zstd",
    }


def compressed_bytes(executable: bytes) -> int:
    """Return the size of the entry of an executable."""
    from jax._src import compilation_cache

    return len(compilation_cache.compress_executable(bytes(4) + executable))


def make_cache(base: Any, layer: Any) -> Any:
    """JAX's cache class, with the layer in it; where the layer fails, JAX's own code answers."""

    class LiveCache(base):  # type: ignore[misc]
        """Looks up and writes through the layer."""

        jaxcache_live = layer
        _directory: Any = None

        def __init__(self, path: str, *args: Any, max_size: int = -1, **kwargs: Any) -> None:
            path, bucket = layer.locate(os.fspath(path))
            # Without a bound JAX takes no lock and scans nothing; the bound is the layer's.
            super().__init__(path, *args, max_size=-1, **kwargs)
            try:
                if "://" not in path:
                    self._directory = layer.open(path, max_size, bucket)
                    layer.preload.cache_opened(self._directory)
            except Exception as error:
                layer.trouble(error)
            if self._directory is None and max_size != -1:
                super().__init__(path, *args, max_size=max_size, **kwargs)

        def get(self, key: str) -> "bytes | None":
            if self._directory is not None and key:
                try:
                    entry: bytes | None = self._directory.get(key)
                    return entry
                except Exception as error:
                    layer.trouble(error)
            value: bytes | None = super().get(key)
            return value

        def put(self, key: str, value: bytes) -> None:
            if self._directory is not None and key:
                try:
                    self._directory.put(key, value)
                    return
                except OSError:
                    raise
                except Exception as error:
                    layer.trouble(error)
            super().put(key, value)

    LiveCache.__name__ = base.__name__
    LiveCache.__qualname__ = base.__qualname__
    return LiveCache


_ARGUMENTS = ("compile_options", "backend", "executable_devices", "host_callbacks")
_CLIENT_ARGUMENTS = ("serialized", "executable_devices", "compile_options", "host_callbacks")


class Load(NamedTuple):
    """What JAX gave to one load of an executable."""

    key: str
    options: bytes
    """The compile options, serialized."""
    devices: "tuple[int, ...]"
    """The ids of the devices, in order."""
    is_plain: bool
    """Whether nothing else was given: no host callbacks, and no argument that is not compared."""


class LoadCall(NamedTuple):
    """One call of ``deserialize_executable``."""

    load: Load
    serialized: bytes


class UnknownLoadError(Exception):
    """A JAX whose loads may depend on something that cannot be compared; the text names it."""


class _ClearedCache:
    """Something that JAX clears with its caches."""

    def __init__(self, call: "Callable[[], None]") -> None:
        self.cache_clear = call


class LoadSeam:
    """The parts of the imported jax that loading ahead needs.

    Args:
        on_gpu: whether to load ahead on a GPU, too; tried on one GPU, with JAX 0.11.2.

    Raises:
        UnknownLoadError
    """

    def __init__(self, *, on_gpu: bool) -> None:
        import jax

        self._on_gpu = on_gpu

        try:
            from jax._src import compilation_cache, util, xla_bridge
            from jax._src.lib import xla_client

            self._config = jax.config
            self._cache = compilation_cache
            self._register_cache = util.register_cache
            self._bridge = xla_bridge
            self._client = xla_client
            self._deserialize = xla_client.Client.deserialize_executable
            signatures = self._deserialize.__nb_signature__
        except (ImportError, AttributeError) as error:
            raise UnknownLoadError(f"jax {jax.__version__} is not 0.8 to 0.12 ({error})") from error
        names = {name for one in signatures for name in re.findall(r"(\w+): ", one[0])}
        if names != set(_CLIENT_ARGUMENTS):
            unknown = ", ".join(sorted(names ^ set(_CLIENT_ARGUMENTS)))
            raise UnknownLoadError(f"loads of jax {jax.__version__} differ in {unknown}")

    def call_when_cleared(self, call: "Callable[[], None]") -> None:
        """Call a function whenever ``jax.clear_caches()`` is called."""
        self._cleared = _ClearedCache(call)  # JAX holds it weakly
        self._register_cache(self._cleared, "executables that jaxcache has loaded ahead")

    def replace_load(self, answer: "Callable[[Any, Any, Any], Any]") -> None:
        """Have each load answered by a function of the client and its arguments, if it can."""

        def deserialize(original: Any, args: Any, kwargs: Any) -> Any:
            executable = answer(args[0], args[1:], kwargs)
            return original(*args, **kwargs) if executable is None else executable

        wrap(self._client.Client, "deserialize_executable", deserialize)

    def describe_request(
        self, key: str, args: "tuple[Any, ...]", kwargs: "dict[str, Any]"
    ) -> "tuple[Any, Load] | None":
        """The backend and the arguments of a request; None where they cannot all be compared."""
        values = {**dict(zip(_ARGUMENTS, args, strict=False)), **kwargs}
        if len(args) > len(_ARGUMENTS) or "backend" not in values:
            return None
        backend = values.pop("backend")
        load = self._describe(key, backend, values)
        return None if load is None else (backend, load)

    def describe_call(
        self, key: str, backend: Any, args: "tuple[Any, ...]", kwargs: "dict[str, Any]"
    ) -> "LoadCall | None":
        """The arguments of a call of the client; None where they cannot all be compared."""
        values = {**dict(zip(_CLIENT_ARGUMENTS, args, strict=False)), **kwargs}
        if len(args) > len(_CLIENT_ARGUMENTS) or not isinstance(values.get("serialized"), bytes):
            return None
        serialized = values.pop("serialized")
        load = self._describe(key, backend, values)
        return None if load is None else LoadCall(load, serialized)

    def _describe(self, key: str, backend: Any, values: "dict[str, Any]") -> "Load | None":
        callbacks = values.pop("host_callbacks", ())
        if set(values) != {"compile_options", "executable_devices"}:
            return None
        devices = values["executable_devices"]
        if (
            not self.loads_on(backend)
            or not isinstance(devices, self._client.DeviceList)
            or any(device.client is not backend for device in devices)
        ):
            return None
        options = values["compile_options"].SerializeAsString()
        return Load(key, options, tuple(device.id for device in devices), not callbacks)

    def loads_on(self, backend: Any) -> bool:
        """Whether executables are loaded ahead on this backend: the CPU, or one GPU."""
        one_gpu = backend.platform == "gpu" and len(backend.devices()) == 1
        return backend.platform == "cpu" or (self._on_gpu and one_gpu)

    def load(self, backend: Any, load: Load, serialized: bytes) -> Any:
        """Load an executable as JAX does.

        Raises:
            Exception: XLA cannot load it.
        """
        by_id = {device.id: device for device in backend.devices()}
        devices = self._client.DeviceList(tuple(by_id[number] for number in load.devices))
        options = self._client.CompileOptions.ParseFromString(load.options)
        return self._deserialize(backend, serialized, devices, options)

    def serialized(self, content: bytes) -> bytes:
        """Return the executable in the content of an entry."""
        executable: bytes = self._cache.extract_executable_and_time(content)[0]
        return executable

    def configured_directory(self) -> "tuple[str, int]":
        """Return the directory that JAX opens at its next load, or nothing, and its size limit."""
        config = self._config
        path = config.jax_compilation_cache_dir if config.jax_enable_compilation_cache else ""
        return str(path or ""), int(config.jax_compilation_cache_max_size)

    def backends(self) -> "dict[str, Any] | None":
        """Return the backends by platform; None before they are created. Creates none."""
        return self._bridge.backends() if self._bridge.backends_are_initialized() else None


def describe_devices(backend: Any) -> "list[list[Any]]":
    """Return id, kind and process index of each device."""
    return [[d.id, str(d.device_kind), d.process_index] for d in backend.devices()]
