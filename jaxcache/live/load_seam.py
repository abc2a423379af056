"""What JAX gives to a load of an executable, and the same load before JAX requests it.

Tried on JAX 0.8.3, 0.10.2, 0.11.2 and 0.12.0.1. ``compilation_cache.get_executable_and_time(
cache_key, compile_options, backend, executable_devices[, host_callbacks])`` reads and decompresses
the entry, and gives the rest to ``deserialize_executable`` of the client, which is replaced. So
JAX's own code runs at each load, and whoever listens to it notices no difference.
"""

import functools
import re
from collections.abc import Callable
from typing import Any, NamedTuple

from .last_run import Load

_ARGUMENTS = ("compile_options", "backend", "executable_devices", "host_callbacks")
_CLIENT_ARGUMENTS = ("serialized", "executable_devices", "compile_options", "host_callbacks")


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
            from jax._src import compilation_cache, distributed, util, xla_bridge
            from jax._src.lib import xla_client

            self._config = jax.config
            self._cache = compilation_cache
            self._distributed = distributed
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
        deserialize = self._deserialize

        @functools.wraps(deserialize)
        def deserialize_executable(client: Any, *args: Any, **kwargs: Any) -> Any:
            executable = answer(client, args, kwargs)
            return deserialize(client, *args, **kwargs) if executable is None else executable

        self._client.Client.deserialize_executable = deserialize_executable

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

    def process_index(self) -> int:
        """Return the index of this process in a distributed program."""
        return int(self._distributed.global_state.process_id or 0)

    def backends(self) -> "dict[str, Any] | None":
        """Return the backends by platform; None before they are created. Creates none."""
        return self._bridge.backends() if self._bridge.backends_are_initialized() else None


def describe_devices(backend: Any) -> "list[list[Any]]":
    """Return id, kind and process index of each device."""
    return [[d.id, str(d.device_kind), d.process_index] for d in backend.devices()]
