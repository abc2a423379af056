"""Every private name of JAX that listening to a program touches, in one place.

Tried on JAX 0.4.30, 0.5.3, 0.6.2, 0.8.3, 0.10.2 and 0.12.0.1. All are module attributes that JAX
itself looks up at each call, so that replacing the attribute is enough:

* ``jax._src.compiler.compile_or_get_cached(backend, computation, devices, options, callbacks…)``:
  one compile request; called by ``jax/_src/interpreters/pxla.py``.
* ``jax._src.compilation_cache.get_executable_and_time(key, …)`` and
  ``put_executable_and_time(key, module, …)``, which calls ``compress_executable(bytes)`` right
  before it writes: what is between JAX and the store. JAX turns an
  exception here into a warning, which the script may have silenced; here it is seen anyway.
* ``jax._src.compilation_cache.get_cache_key(…)``: JAX logs a failure of it and goes on uncached.
* ``jax._src.cache_key._log_cache_key_hash(hash, name, hash_component)``: the key's components.
* ``jax._src.compiler._cache_write(key, seconds, module, …)``: JAX's own measure of the compile.
* ``jax._src.monitoring.get_event_listeners()`` and ``get_event_duration_listeners()``: a program
  may have cleared them (``clear_event_listeners``), and with them ours.
* ``jax._src.interpreters.mlir.lower_jaxpr_to_module(name, jaxpr, …)``: which function, from which
  line, with which arguments became a module.
* ``jax._src.xla_bridge.backends()``: the first call starts the devices. It is measured as a phase
  of a start, and so are most of the above and ``compiler.backend_compile_and_load(…)``
  (``backend_compile`` below 0.6.2); tried on JAX 0.4.38 to 0.12.0.1.
"""

import functools
import hashlib
import inspect
import os
import sys
import weakref
from collections.abc import Callable, Iterable
from traceback import walk_stack
from typing import Any, TypeVar

from .. import seams, sketching
from ..call_site import find_call_site
from ..configuration import JAX_DEFAULTS
from . import describe_versions, hide_frames, known_to, wrap

_Fact = TypeVar("_Fact")
TRIED = "0.4.30 to 0.12"
#: File and name of what ``jax.pmap`` puts around the user's function.
_PMAP_WRAPPERS = {("pmap.py", "_fun"), ("linear_util.py", "call_wrapped")}


class Jax:
    """The parts of one imported jax that are listened to.

    Args:
        is_new: whether the program has not run since jax was imported.
    """

    def __init__(self, jax: Any, *, is_new: bool = True) -> None:
        self.jax = jax
        self._is_new = is_new
        self.version = str(jax.__version__)
        with known_to("listen to", jax, TRIED):
            from jax._src import compilation_cache, compiler, monitoring, xla_bridge
            from jax._src.interpreters import mlir

            self.cache = compilation_cache
            self._monitoring = monitoring
            self._steps = (
                (mlir, "lower_jaxpr_to_module", "around_lowering"),
                (compiler, "compile_or_get_cached", "around_request"),
                (compilation_cache, "get_cache_key", "around_key"),
                (compilation_cache, "get_executable_and_time", "around_read"),
                (compiler, "_cache_write", "around_decision"),
                (compilation_cache, "put_executable_and_time", "around_write"),
                (compilation_cache, "compress_executable", "around_compressing"),
            )
            for module, name, _ in self._steps:
                getattr(module, name)
            #: Owner, function, phase of the process and step of a compile request.
            self.measured = (
                (xla_bridge, "backends", "backend", "backend"),
                (mlir, "lower_jaxpr_to_module", "lower", "lower"),
                (compilation_cache, "get_cache_key", "key", "key"),
                (compilation_cache, "get_executable_and_time", "load", "retrieve"),
                (compiler, "backend_compile_and_load", "compile", "compile"),
                (compiler, "backend_compile", "compile", "compile"),
                (compilation_cache, "put_executable_and_time", "compile", "write"),
            )
            self._listeners = monitoring.get_event_listeners
            self._duration_listeners = monitoring.get_event_duration_listeners
        self.refuses_callbacks = (
            "host_callbacks" in inspect.signature(compiler._cache_write).parameters
        )
        self._lowered: dict[int, tuple[Any, Any]] = {}
        self._request = inspect.signature(compiler.compile_or_get_cached)
        self._first_settings = or_none(seams.current_settings)

    def asked(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """The arguments of one request by their names; ``executable_devices`` since 0.6."""
        return self._request.bind(*args, **kwargs).arguments

    def make_key(self, request: "dict[str, Any]") -> str:
        """The key of one request, without a profile that JAX may add (PGLE)."""
        names = ("computation", "devices", "compile_options", "backend")
        return str(self.cache.get_cache_key(*(request[name] for name in names)))

    def listen(self, observer: Any) -> None:
        """Put ``observer`` around every step; see :class:`listener.Listener` for its methods."""
        hide_frames()
        self.hear_events(observer)
        for module, name, around in self._steps:
            wrap(module, name, getattr(observer, around))
        hear_components(observer.take_component)

    def hear_events(self, observer: Any) -> None:
        """Register for JAX's events; again where the program has cleared all listeners."""
        if observer.on_event not in self._listeners():
            self._monitoring.register_event_listener(observer.on_event)
        if observer.on_duration not in self._duration_listeners():
            self._monitoring.register_event_duration_secs_listener(observer.on_duration)

    @staticmethod
    def module_name(computation: Any) -> str:
        """The name of an MLIR module, as in the cache key."""
        return str(computation.operation.attributes["sym_name"].value)

    def remember_lowering(self, module: Any, info: dict[str, Any]) -> None:
        """Keep what is known of a lowered module until JAX forgets the module."""
        number = id(module)
        lowered = self._lowered
        gone = weakref.ref(module, lambda _: lowered.pop(number, None))
        lowered[number] = (gone, info)

    def lowering_of(self, computation: Any) -> dict[str, Any]:
        """The facts that :meth:`remember_lowering` keeps of this module, or none."""
        lowering = self._lowered.get(id(computation))
        return lowering[1] if lowering and lowering[0]() is computation else {}

    def describe_for_sketch(self, computation: Any) -> dict[str, Any]:
        """The facts of the process and of the call that the sketch of a lowered module holds."""
        call = self.lowering_of(computation).get("call") or {}
        return {**sketching.describe_process(), **call}

    @staticmethod
    def describe_lowering(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """Function, source line and arguments of one call of ``lower_jaxpr_to_module``."""
        jaxpr = args[1]
        info = getattr(jaxpr.jaxpr, "_debug_info", None) or getattr(jaxpr.jaxpr, "debug_info", None)
        place = place_of(getattr(info, "func_src_info", None))
        avals = kwargs.get("in_avals") or jaxpr.in_avals
        names = kwargs.get("arg_names") or [""] * len(avals)
        described = {
            **place,
            "kind": getattr(info, "traced_for", None),
            "constant_bytes": sum(map(_size, getattr(jaxpr, "consts", ()))),
            "arguments": [
                {
                    "name": str(name or ""),
                    "dtype": str(getattr(aval, "dtype", "") or ""),
                    "shape": [
                        d if isinstance(d, int) else str(d) for d in getattr(aval, "shape", ())
                    ],
                }
                for name, aval in zip(names, avals, strict=False)
            ],
        }
        call = sketching.describe_call()
        site = find_call_site(call, {**kwargs, **described})
        mapped = _find_mapped(place["function"], place["file"])
        return {**described, **mapped, "call": call, "site": site}

    @staticmethod
    def are_alike(request: tuple[Any, ...], error: Any) -> bool:
        """Whether two executables of other bytes hold the same optimized HLO; on CPU alone.

        There XLA's machine code differs between two compiles of one program.

        Args:
            request: key, compile options, backend and devices of the look-up.
            error: JAX's ``CacheVerificationError`` (0.9.1 to 0.12).
        """
        _, options, backend, devices = request[:4]
        if backend.platform != "cpu":
            return False

        def program(executable: bytes) -> list[str]:
            loaded = backend.deserialize_executable(executable, devices, options)
            return [module.to_string() for module in loaded.hlo_modules()]

        try:
            return program(error.executable_on_disk) == program(error.executable_new)
        except Exception:  # it cannot be loaded: they differ
            return False

    def settings(self) -> dict[str, Any]:
        """The settings of the cache that hold at this moment."""
        return {name: getattr(self.jax.config, name, None) for name in JAX_DEFAULTS}

    def changed_settings(self) -> dict[str, Any]:
        """Value and origin of each setting that acts on keys and is not JAX's default."""
        first = self._first_settings
        if first is None:
            return {}
        return seams.changed_settings(first, are_defaults_known=self._is_new)

    def opened_directory(self) -> str | None:
        """The directory that JAX has opened, which later settings no longer change.

        JAX resolves a relative one at each access, so a program that changes its working directory
        moves it. ``~`` has no meaning there.
        """
        path = self.opened_setting()
        return None if path is None else _absolute(path)

    def opened_setting(self) -> str | None:
        """The setting that JAX opened a directory with, perhaps a relative path."""
        cache = getattr(self.cache, "_cache", None)
        path = getattr(cache, "path", None) or getattr(cache, "_path", None)
        return None if path is None else str(path)

    def next_directory(self) -> str | None:
        """The directory that JAX has opened, or would open now."""
        path = self.jax.config.jax_compilation_cache_dir
        return self.opened_directory() or (_absolute(str(path)) if path else None)

    def divert_writes(self, directory: "str | None") -> None:
        """Make the cache that JAX has opened write its entries into ``directory``, or nowhere."""
        if (cache := getattr(self.cache, "_cache", None)) is None:
            return

        def put(key: str, value: bytes) -> None:
            if directory is not None:
                with open(os.path.join(directory, f"{key}-cache"), "wb") as file:
                    file.write(value)

        cache.put = put

    def force_directory(self, path: str) -> None:
        """Make JAX use ``path`` in place of the script's directory, as long as no cache is open."""
        config = self.jax.config
        if config.jax_compilation_cache_dir != path:
            config.update("jax_compilation_cache_dir", path)
        if not config.jax_enable_compilation_cache:
            config.update("jax_enable_compilation_cache", True)

    def describe(self) -> dict[str, Any]:
        """Return the versions, a digest that differs between builds, and settings as they began."""
        hashed = (flag for _, flag in seams.flags() if seams.is_hashed(flag))
        return {
            "jax": self.version,
            "jaxlib": describe_versions()["jaxlib_version"],
            "jaxlib_digest": jaxlib_digest(),
            "xla_flags": " ".join(sorted(hashed)),
            "key_settings": or_none(seams.settings_of_environment),
            "hash_seed": sketching.hash_seed(),
        }

    @staticmethod
    def describe_backend(backend: Any, devices: Any) -> dict[str, Any]:
        """Describe the hardware as it enters the key: by the first device."""
        return {
            **describe_devices(backend, devices.flat[0]),
            "topology_fingerprint": topology_fingerprint(devices.flat),
        }


def _absolute(path: str) -> str:
    """A path as the system takes it at this moment; a URL as it is."""
    if "://" in path:
        return path
    try:
        return os.path.abspath(path)
    except OSError:  # the working directory is gone
        return path


def _size(array: Any) -> int:
    """Return the bytes of an array of any kind; 0 for other objects."""
    return int(getattr(array, "size", 0)) * int(
        getattr(getattr(array, "dtype", None), "itemsize", 0)
    )


def hear_components(take: "Callable[[str, Callable[[Any], None]], None]") -> None:
    """Give name and hasher of each component of a key that JAX makes to a function."""
    from jax._src import cache_key

    def around(log: Any, args: Any, kwargs: Any) -> Any:
        if len(args) > 2:
            take(str(args[1]), args[2])
        return log(*args, **kwargs)

    if hasattr(cache_key, "_log_cache_key_hash"):
        wrap(cache_key, "_log_cache_key_hash", around)


def hash_component(component: Callable[[Any], None]) -> str:
    """The hash of one component of a key, as JAX itself would log it."""
    digest = hashlib.sha256()
    component(digest)
    return digest.hexdigest()


def _find_mapped(function: str | None, file: str | None) -> dict[str, Any]:
    """Return function, file, line and kind of the user's function under a ``pmap``; or nothing.

    From 0.8 on ``jax.pmap`` is ``jit`` of ``shard_map`` over a wrapper of its own (``_fun`` in
    jax/_src/pmap.py, ``call_wrapped`` in jax/_src/linear_util.py), and the module is named after
    the wrapper. The call of the ``pmap``, which is running, holds the user's function.
    """
    if not file or (os.path.basename(file), function) not in _PMAP_WRAPPERS:
        return {}
    for frame, _ in walk_stack(sys._getframe()):
        infer = frame.f_locals.get("infer_params")
        if inspect.isfunction(infer):
            held = inspect.getclosurevars(infer).nonlocals
            if "wrapped_fun" in held:
                return {"kind": "pmap", **place_of(held["wrapped_fun"].debug_info.func_src_info)}
            if "f" in held:  # before 0.10
                from jax._src.api_util import fun_sourceinfo

                return {"kind": "pmap", **place_of(fun_sourceinfo(held["f"]))}
    return {"kind": "pmap"}


def place_of(source: Any) -> dict[str, Any]:
    """Function, file and line in the text ``FUNCTION at FILE:LINE``."""
    function, _, place = str(source or "").partition(" at ")
    file, _, line = place.rpartition(":")
    return {
        "function": function or None,
        "file": file or None,
        "line": int(line) if line.isdigit() else None,
    }


def or_none(read: "Callable[[], _Fact]") -> "_Fact | None":
    """Return what a function reads; None where this JAX does not have it."""
    try:
        return read()
    except Exception:
        return None


def jaxlib_digest() -> "str | None":
    """Return the SHA-256 of the lines for binaries in jaxlib's list of files; None without one."""
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        record = distribution("jaxlib").read_text("RECORD")
    except PackageNotFoundError:
        return None
    lines = sorted(x for x in (record or "").splitlines() if x.split(",")[0].endswith(".so"))
    return hashlib.sha256("\n".join(lines).encode()).hexdigest() if lines else None


def describe_devices(backend: Any, device: Any) -> "dict[str, Any]":
    """Return what keys depend on, of a backend and the kind of one of its devices."""
    return {
        "platform": str(backend.platform),
        "platform_version": str(backend.platform_version),
        "device_kind": str(device.device_kind),
        "device_count": len(backend.local_devices()),
        "process_count": len({d.process_index for d in backend.devices()}),
    }


def topology_fingerprint(devices: "Iterable[Any]") -> str | None:
    """The fingerprint that JAX 0.10 and later put into the key; None before."""
    try:
        from jax._src.lib import xla_client

        topology = xla_client.get_topology_for_devices(list(devices))
        value = getattr(topology, "fingerprint", None)
        value = value() if callable(value) else value  # a method on 0.10.2
    except Exception:
        return None
    return None if value is None else str(value)


#: ``host:port,number of processes,this process``
_TOGETHER = "JAXCACHE_TOGETHER"


def join_processes(jax: Any) -> int:
    """Join the other processes, as soon as jax is imported and before anything is computed.

    Returns:
        Which process this is; 0 where it is the only one.
    """
    place = os.environ.pop(_TOGETHER, None)  # children are not members themselves
    if not place:
        return 0
    address, count, number = place.split(",")
    original = jax.distributed.initialize
    original(coordinator_address=address, num_processes=int(count), process_id=int(number))

    @functools.wraps(original)
    def initialize(*args: Any, **kwargs: Any) -> None:
        """Done already, by ``jaxcache warm --processes``."""

    jax.distributed.initialize = initialize
    return int(number)


def join_pod(jax: Any) -> None:
    """Join the program of several hosts that a cluster manager or the environment describes.

    Raises:
        Exception: as ``jax.distributed.initialize``; a ValueError where nothing describes it.
    """
    count, number = (os.environ.get(n) for n in ("JAX_NUM_PROCESSES", "JAX_PROCESS_ID"))
    jax.distributed.initialize(
        num_processes=int(count) if count else None, process_id=int(number) if number else None
    )
