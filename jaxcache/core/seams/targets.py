"""A target profile brought to life: devices to compile for, and the keys that its host makes.

Tried on JAX 0.11.2 and 0.12.0.1, which rebuild a topology from bytes
(``DeviceTopology.deserialize`` and ``_make_compile_only_devices`` in jaxlib's ``_jax``); 0.10 has
neither. The device of a compile-only client knows its id and kind, and its client compiles.

Other private names: ``xla_client.get_topology_for_devices``, ``cache_key.get`` and
``cache_key._log_cache_key_hash``, ``config.remove_custom_partitioning_ptr_from_cache_key``.

It knows whether the result is what the real host would have made. A GPU's compiler
measures kernels on the GPU and keeps the fastest. Without the GPU it takes a default, which the
real host would then find in its cache and never tune. So the key is made of the stock options, and
what is compiled under it is chosen here:

* what needs no measurement, or finds it among the results of a real host, is ``tuned``: XLA itself
  refuses the rest under ``xla_gpu_require_complete_aot_autotune_results``;
* the rest is ``untuned``. Its matrix products go to cuBLAS, which chooses by itself; XLA's own
  kernels with default tiles took up to 34 times as long on an H200 (docs/evidence/gpu.md);
* a convolution that is not measured is not made: it loads, and fails when it runs.

Flags as of XLA in jaxlib 0.11.2 and 0.12 (xla/debug_options_flags.cc).

The private names that :class:`Hooks` replaces, tried on JAX 0.11.2 and 0.12.0.1, are attributes
that JAX looks up at each call:

* ``jax._src.interpreters.pxla.lower_sharding_computation(jaxpr, …)``: one lowering, for ``jit``,
  ``pmap`` and what is built on them. Called once more with the same arguments, it lowers for the
  target, while the next three answer for the target.
* ``pxla._get_and_check_device_assignment(…) -> (backend, devices, count)``.
* ``jax._src.xla_bridge.get_backend(platform)`` and ``canonicalize_platform(platform)``.
* ``pxla.MeshComputation.compile(options)``: the program wants what was lowered.
* ``jax._src.compiler.compile_or_get_cached(backend, computation, devices, options, …)``: JAX has
  made the compile options; from here on the work is ours.
* ``jax._src.compilation_cache.is_cache_used``: the program itself runs without a cache.

:class:`PlatformQueryDetector` finds functions that ask, while they are traced, which hardware they
run on. The answer is this machine's, so the program that comes out is not the one that the target
would trace: under its own key it never hits. Such functions are found and named, not guessed at.
``jax.default_backend``, ``devices`` and the like all go through ``xla_bridge.get_backend``
(jax/_src/xla_bridge.py, 0.11.2 and 0.12). Another private name: ``core.trace_state_clean``.
"""

import base64
import copy
import json
import os
import re
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from traceback import walk_stack
from types import SimpleNamespace
from typing import Any, NamedTuple

from . import describe_error, first_line, wrap
from .listening import hash_component, hear_components
from .tracing import each_jaxpr

_TRIED = "0.11.2 and 0.12"


class TargetError(Exception):
    """Nothing can be made for the target here.

    Args:
        code: kebab-case.
        hint: what to do about it.
    """

    def __init__(self, code: str, message: str, hint: "str | None" = None) -> None:
        super().__init__(message)
        self.code = code
        self.hint = hint


def unknown_jax(jax: Any, error: Exception) -> TargetError:
    """This jax lacks a private name that is needed for a target."""
    return TargetError(
        "unknown-jax",
        f"cannot compile for another host with jax {jax.__version__}: {error}",
        f"known are {_TRIED}; upgrade jaxcache, or use one of them",
    )


def check_names(jax: Any) -> None:
    """Look for the private names that this file uses, here or in a JAX that is new.

    Raises:
        TargetError: ``unknown-jax``, where one has moved.
    """
    try:
        from jax._src import cache_key, config
        from jax._src.lib import _jax, xla_client

        for owner, name in (
            (_jax.DeviceTopology, "deserialize"),
            (_jax.DeviceTopology, "_make_compile_only_devices"),
            (xla_client, "get_topology_for_devices"),
            (cache_key, "get"),
            (cache_key, "_log_cache_key_hash"),
            (config, "remove_custom_partitioning_ptr_from_cache_key"),
        ):
            getattr(owner, name)
    except (ImportError, AttributeError) as error:
        raise unknown_jax(jax, error) from error


class Target:
    """One target. Making it is cheap; :meth:`open` builds the devices.

    Args:
        request: the files with the target profiles of a pod (docs/target.md), and the tuning.
        process: the number of the profile that is the target.

    Raises:
        TargetError: ``other-jax``, ``other-jaxlib``, ``no-topology`` or ``unknown-jax``.
    """

    def __init__(self, jax: Any, request: "dict[str, Any]", process: int = 0) -> None:
        import jaxlib

        self._jax = jax
        self._others = []
        for path in request["profiles"]:
            with open(path, encoding="utf-8") as file:
                self._others.append(json.load(file))
        profile = self.profile = self._others.pop(process)
        self._tuning = Tuning(**request["tuning"])
        self._own: set[Any] = set()
        for name, here in (("jax", jax.__version__), ("jaxlib", jaxlib.__version__)):
            target_version = profile[f"{name}_version"]
            if str(here) != target_version:
                raise TargetError(
                    f"other-{name}",
                    f"the target has {name} {target_version}, and here is {here}",
                )
        if not (profile["topology"] and profile["topology_fingerprint"]):
            raise TargetError(
                "no-topology",
                f"jax {profile['jax_version']} does not record enough of the target's topology",
                f"jax 0.11 or newer on the target, and capture it again; tried are {_TRIED}",
            )
        check_names(jax)
        #: What JAX's key takes from the backend: the host's own words, not the compiler's.
        self.identity = SimpleNamespace(
            platform=profile["platform"], platform_version=profile["platform_version"]
        )
        self.devices: list[Any] = []
        self._making = threading.RLock()
        self._hashers: dict[str, Any] = {}
        hear_components(self._hashers.__setitem__)

    def describe(self) -> "dict[str, Any]":
        """Return what records name of the backend of one process."""
        profile = self.profile
        process_count = profile.get("process_count", 1)
        return {
            **{name: profile[name] for name in ("platform", "platform_version")},
            "topology_fingerprint": profile["topology_fingerprint"],
            "device_kind": profile["device_kinds"][0],
            "device_count": len(profile["device_ids"]) // process_count,
            "process_count": process_count,
        }

    @property
    def platforms(self) -> "set[str]":
        """Every name of the target's platform."""
        return {self.profile["platform"], self.lowering_platform}

    @property
    def lowering_platform(self) -> str:
        """The platform that lowering rules are registered for."""
        return str(self.profile["lowering_platform"])

    def open(self) -> None:
        """Build the devices, and make sure that they are the ones that were captured.

        Raises:
            TargetError: ``no-compiler``, ``bad-topology``, ``lost-fingerprint``.
        """
        if self.devices:
            return
        _open_compiler(self.lowering_platform, self.profile["plugins"])
        by_id = self._rebuild(self.profile)
        self._own = set(by_id.values())
        for other in self._others:
            if not by_id.keys() >= set(self.profile["device_ids"]):  # as on CPU: its own alone
                by_id = {**self._rebuild(other), **by_id}
        try:
            self.devices = [by_id[i] for i in self.profile["device_ids"]]
        except KeyError as error:
            raise TargetError(
                "bad-topology", f"device {error} is not in the target's topology"
            ) from error
        here = self._jax.devices()[0].client.devices()
        here = sorted(here, key=lambda d: (d.process_index, d.id))
        self._positions = {int(device.id): number for number, device in enumerate(here)}

    def _rebuild(self, profile: "dict[str, Any]") -> "dict[int, Any]":
        """Build the devices of one topology, by id."""
        from jax._src.lib import _jax, xla_client

        try:
            topology = _jax.DeviceTopology.deserialize(base64.b64decode(profile["topology"]))
            devices = topology._make_compile_only_devices()
            fingerprints = {
                str(topology.fingerprint()),
                str(xla_client.get_topology_for_devices(devices).fingerprint()),
            }
        except Exception as error:
            raise TargetError(
                "bad-topology",
                f"jaxlib cannot rebuild the target's topology: {describe_error(error)}",
                "use the very wheels of the target",
            ) from error
        if not {str(devices[0].client.platform), str(devices[0].platform)} & self.platforms:
            raise TargetError(
                "bad-topology", f"the topology is one of {devices[0].client.platform} devices"
            )
        if fingerprints != {profile["topology_fingerprint"]}:
            raise TargetError(
                "lost-fingerprint",
                "the target's topology has another fingerprint here: no key would be right",
                "use the very wheels of the target",
            )
        return {int(device.id): device for device in devices}

    @property
    def client(self) -> Any:
        """The client that compiles; after :meth:`open`."""
        return next(d for d in self.devices if d in self._own).client

    def device(self, here: Any) -> Any:
        """The target's device that stands where a CPU device stands here.

        Raises:
            LookupError: the target has fewer.
        """
        if here in self.devices:
            return here
        try:
            return self.devices[self._positions[int(here.id)]]
        except (IndexError, KeyError):
            raise LookupError(
                f"the target has {len(self.devices)} devices, and the program uses number {here.id}"
            ) from None

    def key(self, module: Any, devices: Any, options: Any) -> "tuple[str, dict[str, str]]":
        """The key that the target's host makes, and the hash of each component.

        ``get_cache_key`` in jax/_src/compilation_cache.py, with the target's identity and codec.
        """
        import numpy
        from jax._src import cache_key, config

        with self._making:
            self._hashers.clear()
            key = cache_key.get(
                module,
                numpy.array(list(self.own(list(devices.flat)))),
                options,
                self.identity,
                self.profile["key_codec"],
                config.remove_custom_partitioning_ptr_from_cache_key.value,
            )
            return key, {name: hash_component(hasher) for name, hasher in self._hashers.items()}

    def compile(self, request: "CompileArguments") -> "CompiledExecutable":
        """Compile a request.

        Raises:
            UntunedError: nothing was made; ``reason`` and the text say why.
            Exception: what the compiler raises.
        """
        started = time.monotonic()
        own = self.own(request.executable_devices)

        def compile_(*overrides: "tuple[str, Any]") -> Any:
            options = copy.deepcopy(request.options)
            _aim_autotuning(options, self._tuning.autotune_from)
            options.env_option_overrides = [*options.env_option_overrides, *overrides]
            # Host callbacks matter when an executable is loaded, and only then.
            return self.client.compile(
                request.module, executable_devices=own, compile_options=options
            )

        def finish(executable: Any, state: "str | None") -> CompiledExecutable:
            return CompiledExecutable(executable.serialize(), time.monotonic() - started, state)

        if self.profile["platform"] != "gpu":
            return finish(compile_(), None)
        try:
            return finish(compile_(_COMPLETE), "tuned")
        except Exception as error:
            if self._tuning.require_tuned:
                raise UntunedError(first_line(error)) from error
        executable = compile_(_CUBLAS)
        if any(_UNMEASURED.search(module.to_string()) for module in executable.hlo_modules()):
            raise UnmeasuredConvolutionError(
                "cuDNN cannot run its convolution until a real host has measured it; "
                "--autotune-from DIR takes such measurements"
            )
        return finish(executable, "untuned")

    def own(self, devices: Any) -> Any:
        """Return what of a list of devices this process compiles for.

        On CPU the topology of a process has its own devices alone, also in keys; the others of a
        pod are of another client, and stand in the compile options only.
        """
        if all(device in self._own for device in devices):
            return devices
        from jax._src.lib import xla_client

        own = tuple(device for device in devices if device in self._own)
        return xla_client.DeviceList(own or tuple(self._own))


def _open_compiler(platform: str, plugins: "dict[str, str]") -> None:
    """Load and initialise the plugin that compiles for a platform; jaxlib itself does for CPU.

    Raises:
        TargetError: ``no-compiler``, with the pip command.
    """
    if platform == "cpu":
        return
    from jax._src import xla_bridge
    from jax._src.lib import xla_client

    wanted = [
        f"{name}=={version}"
        for name, version in plugins.items()
        if name == "libtpu" or name.endswith(("-pjrt", "-plugin"))
    ]
    hint = f"install {' '.join(wanted) or f'jax[{platform}]'} in this Python"
    try:
        if platform == "tpu":
            path = xla_bridge.get_tpu_library_path()
            if path is None:
                raise TargetError("no-compiler", "libtpu is not installed", hint)
            if not xla_client.pjrt_plugin_loaded("tpu"):
                xla_client.load_pjrt_plugin_dynamically("tpu", path)
        else:
            xla_bridge._discover_and_register_pjrt_plugins()
        if not xla_client.pjrt_plugin_loaded(platform):
            raise TargetError("no-compiler", f"no PJRT plugin for {platform}", hint)
        if not xla_client.pjrt_plugin_initialized(platform):
            xla_client.initialize_pjrt_plugin(platform)
    except TargetError:
        raise
    except Exception as error:
        message = f"the compiler for {platform} does not start: {describe_error(error)}"
        raise TargetError("no-compiler", message, hint) from error


_CUBLAS = ("xla_gpu_enable_triton_gemm", False)
_COMPLETE = ("xla_gpu_require_complete_aot_autotune_results", True)
#: A call of a cuDNN convolution with algorithm -1: XLA writes it where it has no measurement, and
#: cuDNN refuses it (``CudnnBackend::GetDefaultConfig``, xla/backends/gpu/autotuner/cudnn.cc).
_UNMEASURED = re.compile(r'custom_call_target="__cudnn\$conv.*"algo_id":"-1"')


class CompiledExecutable(NamedTuple):
    """One executable."""

    payload: bytes
    seconds: float
    tuning: "str | None"
    """``tuned``, ``untuned``, or None where nothing is ever tuned."""


class UntunedError(Exception):
    """Only an untuned executable could be made, and a tuned one is required.

    The text is that of the compiler.
    """

    reason = "untuned"


class UnmeasuredConvolutionError(UntunedError):
    """The module has a convolution without a measurement; the GPU would load and not run it."""

    reason = "unmeasured-convolution"


class Tuning(NamedTuple):
    """The way in which the caller wants kernels to be chosen."""

    autotune_from: "str | None" = None
    """A real host's autotune directory."""
    require_tuned: bool = False


def _aim_autotuning(options: Any, directory: "str | None") -> None:
    """Read measurements from a real host, or from nowhere: none of ours are to be kept."""
    from jax._src.lib import xla_client

    debug = options.executable_build_options.debug_options
    debug.xla_gpu_per_fusion_autotune_cache_dir = directory or ""
    debug.xla_gpu_kernel_cache_file = ""
    if directory:
        debug.xla_gpu_experimental_autotune_cache_mode = xla_client.AutotuneCacheMode.READ


class CompileArguments(NamedTuple):
    """The arguments of one compile for the target."""

    module: Any
    devices: Any
    """NumPy array of devices."""
    options: Any
    executable_devices: Any


class _Caught(BaseException):
    """Carries a request out of JAX; no handler of JAX or of the program is to see it."""

    def __init__(self, request: CompileArguments) -> None:
        super().__init__()
        self.request = request


class Hooks:
    """Puts an observer around lowering and compiling; see :class:`observer.CrossObserver`.

    Raises:
        TargetError: ``unknown-jax``.
    """

    def __init__(self, jax: Any, target: Target, observer: Any) -> None:
        self._target = target
        self._observer = observer
        self._local = threading.local()
        try:
            from jax._src import compilation_cache, compiler, xla_bridge
            from jax._src.interpreters import mlir, pxla

            for owner, name, around in (
                (pxla, "lower_sharding_computation", observer.around_lowering),
                (pxla.MeshComputation, "compile", observer.around_compile),
                (pxla, "_get_and_check_device_assignment", self._assign),
                (xla_bridge, "get_backend", self._backend),
                (xla_bridge, "canonicalize_platform", self._canonicalize),
                (compiler, "compile_or_get_cached", self._request),
                (compilation_cache, "is_cache_used", lambda *_: False),
                (mlir, "lower_jaxpr_to_module", self._lower_module),
            ):
                wrap(owner, name, around)
        except (ImportError, AttributeError) as error:
            raise unknown_jax(jax, error) from error

    @contextmanager
    def crossing(self) -> Any:
        """In this thread, JAX is on the target."""
        before = self.is_crossing
        self._local.crossing = True
        try:
            yield
        finally:
            self._local.crossing = before

    @property
    def is_crossing(self) -> bool:
        """Whether JAX is on the target, in this thread."""
        return getattr(self._local, "crossing", False)

    def request(self, computation: Any, args: Any = (), kwargs: Any = None) -> CompileArguments:
        """Return what JAX would compile of something that was lowered for the target."""
        try:
            with self.crossing():
                computation.compile(*args, **(kwargs or {}))
        except _Caught as caught:
            return caught.request
        raise TargetError(
            "unknown-jax", "jax did not compile the module that it lowered for the target"
        )

    # The answers ------------------------------------------------------------------------------

    def _assign(self, assign: Any, args: Any, kwargs: Any) -> Any:
        backend, devices, count = assign(*args, **kwargs)
        if not self.is_crossing:
            return backend, devices, count
        if devices is not None:
            devices = tuple(self._target.device(d) for d in devices)
        return self._target.client, devices, count

    def _backend(self, get: Any, args: Any, kwargs: Any) -> Any:
        platform = args[0] if args else kwargs.get("platform")
        if self.is_crossing and (platform is None or platform in self._target.platforms):
            return self._target.client
        self._observer.platform_queries.see(platform)
        return get(*args, **kwargs)

    def _canonicalize(self, canonicalize: Any, args: Any, kwargs: Any) -> Any:
        platform = args[0] if args else kwargs.get("platform")
        if self.is_crossing and platform in self._target.platforms:
            return self._target.lowering_platform
        return canonicalize(*args, **kwargs)

    def _request(self, compile_: Any, args: Any, kwargs: Any) -> Any:
        if not self.is_crossing:
            return compile_(*args, **kwargs)
        request = self._observer.asked(args, kwargs)
        names = ("computation", "devices", "compile_options", "executable_devices")
        raise _Caught(CompileArguments(*(request[name] for name in names)))

    def _lower_module(self, lower: Any, args: Any, kwargs: Any) -> Any:
        result = lower(*args, **kwargs)
        if self.is_crossing:
            self._observer.lowered(result.module, args, kwargs)
        return result


#: Parts of JAX that build programs; queries of other parts do not depend on what is traced.
_LIBRARIES = ("random", "nn", "numpy", "lax", "scipy", "pallas", "cudnn", "ops", "image")
_LIBRARY_FILES = tuple(
    os.path.join("_src", library + end) for library in _LIBRARIES for end in (os.sep, ".py")
)
#: Questions whose answer does not depend on the kind of hardware.
_HARMLESS = frozenset({"process_index", "process_count", "process_indices", "host_id"})
_PACKAGE = str(Path(__file__).absolute().parents[2])

#: File and first line of a function.
CodePlace = tuple[str, int]


class PlatformQueryDetector:
    """Remembers what asked: every function that was being traced at that moment.

    Args:
        same_platform: the target's platform is the one of this process; then what JAX itself
            asks gets the right answer.

    Raises:
        TargetError: ``unknown-jax``.
    """

    def __init__(self, jax: Any, *, same_platform: bool) -> None:
        try:
            from jax._src import core, xla_bridge

            self._is_clean = core.trace_state_clean
        except (ImportError, AttributeError) as error:
            raise unknown_jax(jax, error) from error
        self._bridge = os.path.abspath(xla_bridge.__file__)
        self._jax = os.path.dirname(os.path.abspath(jax.__file__)) + os.sep
        self._same = same_platform
        self._local = threading.local()
        self._asked: dict[CodePlace, str] = {}
        self.outside: dict[str, None] = {}
        """``file:line`` where the program queried the platform while nothing was traced."""

    def suspended(self, work: Any) -> Any:
        """Do something in which questions do not count: lowering, which is done twice."""
        before = getattr(self._local, "suspended", False)
        self._local.suspended = True
        try:
            return work()
        finally:
            self._local.suspended = before

    def see(self, platform: Any) -> None:
        """Note a query for a backend by this name; None means the default backend."""
        if platform is not None or getattr(self._local, "suspended", False):
            return
        frames = list(self._frames())
        if not frames or frames[0][2] in _HARMLESS:
            return
        asker = next((f for f in frames if f[0] != self._bridge), None)
        user = next((f for f in frames if not self._is_jax(f[0])), None)
        if asker is None or user is None:
            return
        by_jax = self._is_jax(asker[0])
        if by_jax and (self._same or not self._is_library(asker[0])):
            return
        place = f"{user[0]}:{user[3]}"
        if self._is_clean():
            if frames[0][2] == "default_backend" and not by_jax:
                self.outside[place] = None
            return
        for file, start_line, _, _ in frames:
            self._asked.setdefault((file, start_line), place)

    def find(self, jaxpr: Any) -> "str | None":
        """Return where it was asked, if a function of this program was being traced then."""
        for inner in each_jaxpr(jaxpr) if self._asked else ():
            info = getattr(inner, "debug_info", None)
            source = str(getattr(info, "func_src_info", None) or "").rpartition(" at ")[2]
            file, _, line = source.rpartition(":")
            if line.isdigit() and (place := self._asked.get((file, int(line)))):
                return place
        return None

    def _frames(self) -> "Iterator[tuple[str, int, str, int]]":
        """File, first line of the function, its name and the line, from the asker outwards."""
        for frame, line in walk_stack(sys._getframe(1)):
            code = frame.f_code
            if not code.co_filename.startswith((_PACKAGE, "<frozen")):
                yield code.co_filename, code.co_firstlineno, code.co_name, line

    def _is_jax(self, file: str) -> bool:
        return file.startswith((self._jax, "<")) or os.sep + "contextlib.py" in file

    def _is_library(self, file: str) -> bool:
        inside = file[len(self._jax) :]
        return inside.startswith((f"experimental{os.sep}", *_LIBRARY_FILES))
