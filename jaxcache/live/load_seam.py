"""What JAX gives to a load of an executable, and the same load without JAX asking for it.

Tried on JAX 0.8.3, 0.10.2, 0.11.2 and 0.12.0.1. The body of ``compilation_cache.
get_executable_and_time(cache_key, compile_options, backend, executable_devices[, host_callbacks])``
there decompresses the entry and calls ``backend.deserialize_executable`` with the other arguments.
A JAX that gives or uses anything else is not imitated.
"""

import inspect
import re
from collections.abc import Callable
from typing import Any

from .last_run import Load

#: What the function takes, what the client takes, and the names in the body of the function.
#: Anything else may make a difference between two loads.
_ARGUMENTS = ("cache_key", "compile_options", "backend", "executable_devices", "host_callbacks")
_CLIENT_ARGUMENTS = {"serialized", "executable_devices", "compile_options", "host_callbacks"}
_NAMES = {
    *("_get_cache", "logger", "debug", "get", "decompress_executable"),
    *("extract_executable_and_time", "deserialize_executable"),
}


class UnknownLoadError(Exception):
    """A JAX whose loads may depend on something that cannot be compared; the text names it."""


class _ClearedCache:
    """Something that JAX clears with its caches."""

    def __init__(self, call: "Callable[[], None]") -> None:
        self.cache_clear = call


class LoadSeam:
    """The parts of the imported jax that loading ahead needs.

    Raises:
        UnknownLoadError
    """

    def __init__(self) -> None:
        import jax

        try:
            from jax._src import compilation_cache, distributed, util, xla_bridge
            from jax._src.lib import xla_client

            self._config = jax.config
            self._cache = compilation_cache
            self._distributed = distributed
            self._register_cache = util.register_cache
            self._bridge = xla_bridge
            self._client = xla_client
            signatures = xla_client.Client.deserialize_executable.__nb_signature__
        except (ImportError, AttributeError) as error:
            raise UnknownLoadError(f"jax {jax.__version__} is not 0.8 to 0.12 ({error})") from error
        function = inspect.unwrap(compilation_cache.get_executable_and_time)
        taken = {name for one in signatures for name in re.findall(r"(\w+): ", one[0])}
        unknown = {
            *(set(inspect.signature(function).parameters) ^ set(_ARGUMENTS)) - {"host_callbacks"},
            *taken ^ _CLIENT_ARGUMENTS,
            *set(function.__code__.co_names) - _NAMES,
        }
        if unknown:
            names = ", ".join(sorted(unknown))
            raise UnknownLoadError(f"loads of jax {jax.__version__} differ in {names}")

    def call_when_cleared(self, call: "Callable[[], None]") -> None:
        """Call a function whenever ``jax.clear_caches()`` is called."""
        self._cleared = _ClearedCache(call)  # JAX holds it weakly
        self._register_cache(self._cleared, "executables that jaxcache has loaded ahead")

    def describe_load(
        self, key: str, args: "tuple[Any, ...]", kwargs: "dict[str, Any]"
    ) -> "tuple[Any, Load] | None":
        """Return the backend and the arguments of a load; None where not all can be compared."""
        values = {**dict(zip(_ARGUMENTS[1:], args, strict=False)), **kwargs}
        callbacks = values.pop("host_callbacks", ())
        if len(args) >= len(_ARGUMENTS) or set(values) != set(_ARGUMENTS[1:4]):
            return None
        backend = values["backend"]
        devices = values["executable_devices"]
        if (
            backend.platform != "cpu"
            or not isinstance(devices, self._client.DeviceList)
            or any(device.client is not backend for device in devices)
        ):
            return None
        options = values["compile_options"].SerializeAsString()
        return backend, Load(key, options, tuple(d.id for d in devices), not callbacks)

    def load(self, backend: Any, load: Load, content: bytes) -> "tuple[Any, int]":
        """Load an executable as ``get_executable_and_time`` does; it, and its compile seconds.

        Raises:
            Exception: XLA cannot load it.
        """
        by_id = {device.id: device for device in backend.devices()}
        devices = self._client.DeviceList(tuple(by_id[number] for number in load.devices))
        options = self._client.CompileOptions.ParseFromString(load.options)
        executable, seconds = self._cache.extract_executable_and_time(content)
        return backend.deserialize_executable(executable, devices, options), seconds

    def opened_directory(self, backend: Any) -> Any:
        """Return the directory from which JAX loads; None where it loads otherwise."""
        return getattr(self._cache._get_cache(backend), "_directory", None)

    def configured_directory(self) -> "tuple[str, int]":
        """Return the directory that JAX opens at its next load, or nothing, and its size limit."""
        config = self._config
        path = config.jax_compilation_cache_dir if config.jax_enable_compilation_cache else ""
        return str(path or ""), int(config.jax_compilation_cache_max_size)

    def process_index(self) -> int:
        """Return the index of this process in a distributed program."""
        return int(self._distributed.global_state.process_id or 0)

    def backends(self) -> "dict[str, Any] | None":
        """Return the backends by platform; None before they are created. Creates none."""
        return self._bridge.backends() if self._bridge.backends_are_initialized() else None


def describe_devices(backend: Any) -> "list[list[Any]]":
    """Return id, kind and process index of each device."""
    return [[d.id, str(d.device_kind), d.process_index] for d in backend.devices()]
