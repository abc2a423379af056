"""Compile options, devices and executables, for those who make, load or describe them.

Tried on JAX 0.4.30 to 0.12 where a function names no other versions. Where a name is gone, they
raise ImportError or AttributeError, and the caller reports a JAX that it does not know.
"""

import base64
import contextlib
import functools
import inspect
import io
import threading
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

from . import is_hashed, wrap
from .cache import seal_writes
from .listening import or_none, topology_fingerprint


def compile_options() -> bytes:
    """Return the compile options of a program for one device, serialized."""
    from jax._src.compiler import get_compile_options

    options: bytes = get_compile_options(num_replicas=1, num_partitions=1).SerializeAsString()
    return options


def lowering_platform(client: Any) -> str:
    """Return the platform that JAX lowers for (``_raw_platform``, 0.10.2 to 0.12)."""
    return str(getattr(client, "_raw_platform", client.platform))


def sample(device: Any) -> bytes:
    """Return a small program for a device as this jax writes it.

    Private names of JAX, tried on 0.4.30 to 0.12: ``Compiled.runtime_executable`` and, up to
    0.8.3, ``client.serialize_executable``.
    """
    import jax

    with jax.default_device(device):
        executable = jax.jit(lambda x: x + 1).lower(1.0).compile().runtime_executable()
    serialize = getattr(executable, "serialize", None)
    return bytes(serialize() if serialize else device.client.serialize_executable(executable))


def serialize_topology(devices: "list[Any]") -> "bytes | None":
    """Return the topology of some devices; None from 0.10, which cannot serialize it."""
    from jax._src.lib import xla_client

    serialize = getattr(xla_client.get_topology_for_devices(devices), "serialize", None)
    return bytes(serialize()) if serialize else None


def topology_facts(devices: "list[Any]") -> "dict[str, Any]":
    """The topology of some devices: serialized if this jaxlib can, its fingerprint, its config.

    Versions before 0.10 have no fingerprint; 0.10 has it, but cannot serialize the topology.
    """
    try:
        from jax._src.lib import xla_client

        describe_topology = xla_client.get_topology_for_devices
    except (ImportError, AttributeError) as error:
        raise RuntimeError(
            f"it does not tell its topology as it used to ({error}); known are 0.10.2 to 0.12: "
            "upgrade jaxcache, or use another jax"
        ) from error
    topology = describe_topology(devices)
    return {
        "topology": or_none(lambda: base64.b64encode(topology.serialize()).decode()),
        "topology_fingerprint": topology_fingerprint(devices),
        "target_config": or_none(lambda: _text(topology.target_config)),
    }


def _text(value: Any) -> "str | None":
    value = value() if callable(value) else value
    return value.decode() if isinstance(value, bytes) else None if value is None else str(value)


def find_hlo_module() -> Any:
    """``HloModule``: jaxlib._hlo (0.10.2, 0.12), jaxlib._jax (0.8.3), xla_extension (0.4.30)."""
    for name in ("jaxlib._hlo", "jaxlib._jax", "jaxlib.xla_extension"):
        try:
            module_class = getattr(import_module(name), "HloModule", None)
        except ImportError:
            continue
        if module_class is not None:
            return module_class
    raise ImportError("no jaxlib that can print HLO")


def choose_loader(backend: Any) -> "Callable[[bytes, list[list[int]]], Any]":
    """Choose the call that deserializes in this jaxlib (``jax/_src/compilation_cache.py``).

    Two arguments up to 0.5.3, then three with the devices in the middle. Tried on 0.4.30, 0.4.38,
    0.5.3, 0.6.2, 0.8.3, 0.10.2, 0.11.2 and 0.12.0.1.

    Raises:
        Exception: no known call fits. That must not be reported of each entry.
    """
    from jax._src import compiler
    from jax._src.lib import xla_client

    devices = {device.id: device for device in backend.devices()}

    def with_devices(payload: bytes, chosen: "list[Any]", options: Any) -> None:
        backend.deserialize_executable(payload, xla_client.DeviceList(tuple(chosen)), options)

    def without_devices(payload: bytes, _: "list[Any]", options: Any) -> None:
        backend.deserialize_executable(payload, options)

    def make_options(assignment: "list[list[int]]") -> Any:
        return compiler.get_compile_options(
            num_replicas=len(assignment),
            num_partitions=len(assignment[0]),
            device_assignment=assignment,
            backend=backend,
        )

    first = next(iter(devices))
    for way in (with_devices, without_devices):
        try:
            way(b"no executable", [devices[first]], make_options([[first]]))
        except (AttributeError, TypeError) as error:
            misfit = error
        except Exception:  # understood, and refused
            break
    else:
        raise misfit

    def load(payload: bytes, assignment: "list[list[int]]") -> None:
        chosen = [devices[i] for row in assignment for i in row]
        way(payload, chosen, make_options(assignment))

    return load


#: Options with a path inside the cache directory (jax/_src/compiler.py), which JAX 0.4.36 to 0.10
#: hashes.
PATH_OPTIONS = ("xla_gpu_per_fusion_autotune_cache_dir", "xla_gpu_kernel_cache_file")


class CompileSteps:
    """JAX's own path from the bytes of a module into a cache.

    Tried on 0.5.3, 0.6.2, 0.8.3, 0.10.2, 0.11.2 and 0.12.0.1.

    Raises:
        ImportError, AttributeError: one of the names is gone.
    """

    def __init__(self, jax: Any) -> None:
        from jax._src import cache_key, compiler
        from jax._src.interpreters import mlir
        from jax._src.lib import xla_client
        from jax._src.lib.mlir import ir
        from numpy import array

        if not hasattr(cache_key, "xla_flags_to_exclude_from_cache_key"):
            raise AttributeError("xla_flags_to_exclude_from_cache_key")  # is_hashed() answers by it
        self.version = str(jax.__version__)
        self._compiler = compiler
        self._ir = ir
        self._make_context = mlir.make_ir_context
        self._client = xla_client
        self.array = functools.partial(array, dtype=object)
        signature = inspect.signature(compiler.compile_or_get_cached)
        self.has_executable_devices = "executable_devices" in signature.parameters

    def open(self, platform: str, around_read: Any, around_write: Any) -> Any:
        """Open a backend, with functions around each look-up and each write."""
        from jax._src import compilation_cache, distributed, xla_bridge

        self._cache = compilation_cache
        backend = xla_bridge.get_backend(platform)
        # JAX writes in process 0 alone, so that processes do not write the same names; here each
        # has a directory of its own.
        distributed.global_state.process_id = 0
        seal_writes(compilation_cache)
        wrap(compilation_cache, "get_executable_and_time", around_read)
        wrap(self._compiler, "_cache_write", around_write)
        return backend

    def caches_for(self, backend: Any) -> bool:
        """Whether JAX caches for a platform."""
        return bool(self._cache.is_cache_used(backend))

    @contextlib.contextmanager
    def context(self) -> "Iterator[None]":
        """A context to read modules in."""
        with self._make_context(), self._ir.Location.unknown():
            yield

    def parse(self, bytecode: bytes) -> Any:
        """Read a module."""
        return self._ir.Module.parse(bytecode)

    def custom_calls(self, module: Any) -> "set[str]":
        """Return what a module calls outside of itself."""
        targets: set[str] = set()

        def look(operation: Any) -> Any:
            attributes = operation.attributes
            if operation.name.endswith("custom_call") and "call_target_name" in attributes:
                targets.add(str(attributes["call_target_name"]).strip('"'))
            return self._ir.WalkResult.ADVANCE

        module.operation.walk(look)
        return targets

    def device_list(self, devices: "list[Any]") -> Any:
        """Return devices as JAX lists them."""
        return self._client.DeviceList(tuple(devices))

    def options(self, data: bytes, cache_dir: str) -> Any:
        """The recorded options, with every path in them made one of this host.

        Args:
            cache_dir: where the cache is used; empty leaves it out.
        """
        from pathlib import Path

        options = self._client.CompileOptions.ParseFromString(data)
        debug = options.executable_build_options.debug_options
        for name in PATH_OPTIONS:
            if getattr(debug, name, ""):
                # As jax/_src/compiler.py spells it, of its own directory.
                setattr(debug, name, str(Path(cache_dir) / name) if cache_dir else "")
        for name in (n for n in dir(debug) if n.startswith("xla_dump_")):
            if value := getattr(debug, name):
                setattr(debug, name, type(value)())  # as JAX does for keys
        if getattr(debug, "xla_gpu_cuda_data_dir", ""):
            from jax._src import lib

            debug.xla_gpu_cuda_data_dir = str(getattr(lib, "cuda_path", None) or "")
        overrides = options.env_option_overrides
        kept = [(name, value) for name, value in overrides if is_hashed(f"--{name}")]
        if len(kept) != len(overrides):
            options.env_option_overrides = kept
        return options

    def compile(self, arguments: "dict[str, Any]") -> None:
        """Compile, or get it from the cache."""
        self._compiler.compile_or_get_cached(**arguments)


def read_options(data: bytes) -> Any:
    """Return compile options that were serialized."""
    from jax._src.lib import xla_client

    return xla_client.CompileOptions.ParseFromString(data)


def hash_options(digest: Any, options: Any, platform: str) -> None:
    """Hash compile options as JAX does for a key; tried on 0.6.2, 0.10.2 and 0.12.0.1."""
    from jax._src import cache_key

    is_gpu = platform == "gpu"
    cache_key._hash_serialized_compile_options(digest, options, strip_device_assignment=is_gpu)


def hash_cpus(digest: Any, count: int) -> None:
    """Hash a CPU that shows so many devices; tried on 0.6.2, 0.10.2 and 0.12.0.1."""
    import numpy as np
    from jax._src import cache_key

    cache_key._hash_accelerator_config(digest, np.array(make_cpus(count), dtype=object))


def make_cpus(count: int) -> "list[Any]":
    """Make so many devices of the CPU; tried on 0.6.2, 0.10.2 and 0.12.0.1."""
    from jaxlib import xla_client

    devices: list[Any] = xla_client.make_cpu_client(num_devices=count).local_devices()
    return devices


def describe_topology(devices: "list[Any]") -> bytes:
    """Return what JAX hashes of the devices of a process; tried on 0.6.2, 0.10.2 and 0.12.0.1."""
    fingerprint = topology_fingerprint(devices)
    if fingerprint is None:  # up to 0.9
        return serialize_topology(devices) or b""
    return int(fingerprint).to_bytes(8, byteorder="big")


def array_and_constant_handlers() -> "tuple[Any, dict[Any, Any]]":
    """Return the class of arrays, and what makes constants of a module, by class.

    ``array.ArrayImpl`` and ``mlir._constant_handlers``, tried on 0.5.3 to 0.12.
    """
    from jax._src import array
    from jax._src.interpreters import mlir

    return array.ArrayImpl, mlir._constant_handlers


class ZeroPrograms:
    """Programs with the signature of others that return zeros.

    Tried on 0.5.3, 0.6.2, 0.8.3, 0.10.2, 0.11.2 and 0.12.0.1.

    Raises:
        ImportError: one of the names is gone.
    """

    def __init__(self) -> None:
        from jax._src import compiler
        from jax._src.lib.mlir import ir, passmanager
        from jax._src.lib.mlir.dialects import func, hlo

        self._ir = ir
        self._func = func
        self._hlo = hlo
        self._passes = passmanager
        self._compiler = compiler
        self._made: dict[Any, Any] = {}
        self._lock = threading.RLock()

    def has_more_operations(self, module: Any, most: int) -> bool:
        """Return whether a module has more than so many operations."""
        count = 0

        def look(_: Any) -> Any:
            nonlocal count
            count += 1
            result = self._ir.WalkResult
            # The module and its function count too.
            return result.ADVANCE if count <= most + 2 else result.INTERRUPT

        module.operation.walk(look)
        return count > most + 2

    def make(self, request: "dict[str, Any]") -> Any:
        """Compile such a program for the arguments of a request; None where that cannot be."""
        module = request["computation"]
        options = request["compile_options"]
        with module.context, self._ir.Location.unknown():
            stub = self._zeros(module, options)
            if stub is None:
                return None
            stream = io.BytesIO()
            stub.operation.write_bytecode(stream)
            devices = [int(d.id) for d in request["devices"].flat]
            name = (stream.getvalue(), options.SerializeAsString(), tuple(devices))
            with self._lock:
                compiled = self._made.get(name)
            if compiled is None:
                compiled = self._compile(request, stub)
                with self._lock:
                    self._made[name] = compiled
        return compiled

    def _compile(self, request: "dict[str, Any]", stub: Any) -> Any:
        backend = request["backend"]
        options = request["compile_options"]
        if "executable_devices" in request:
            return self._compiler.backend_compile_and_load(
                backend, stub, request["executable_devices"], options, []
            )
        return self._compiler.backend_compile(backend, stub, options, [])

    def _zeros(self, module: Any, options: Any) -> Any:
        """The module with a body that makes zeros, if all that JAX reads off it stays the same."""
        ir = self._ir
        main = self._main(module)
        if options.executable_build_options.num_partitions > 1 and self._is_open(main):
            # XLA would choose the shardings of the results: have them chosen the same way.
            if not any(op.operation.name == "sdy.mesh" for op in module.body):
                return None  # GSPMD chooses while it compiles
            stream = io.BytesIO()
            module.operation.write_bytecode(stream)
            module = ir.Module.parse(stream.getvalue())
            pipeline = "builtin.module(sdy-propagation-pipeline)"
            self._passes.PassManager.parse(pipeline).run(module.operation)
            main = self._main(module)
        stub = ir.Module.create()
        attributes = module.operation.attributes
        for number in range(len(attributes)):  # iterating gives names or pairs, by version
            stub.operation.attributes[attributes[number].name] = attributes[number].attr
        stub.operation.attributes["sym_name"] = ir.StringAttr.get("jit_zeros")
        with ir.InsertionPoint(stub.body):
            for operation in module.body:
                if operation.operation.name == "sdy.mesh":
                    operation.operation.clone()
            function = self._func.FuncOp("main", main.type, visibility="public")
            for name in ("arg_attrs", "res_attrs"):
                if name in main.attributes:
                    function.attributes[name] = main.attributes[name]
        with ir.InsertionPoint(function.add_entry_block()):
            self._func.ReturnOp([self._zero(t) for t in main.type.results])
        return stub

    def _main(self, module: Any) -> Any:
        for operation in module.body:
            if (
                operation.operation.name == "func.func"
                and operation.attributes["sym_name"].value == "main"
            ):
                return operation
        raise ValueError("a module without a function main")

    def _is_open(self, main: Any) -> bool:
        """Whether a result has no sharding of its own."""
        if not main.type.results:
            return False
        if "res_attrs" not in main.attributes:
            return True
        return any(
            "sdy.sharding" not in attributes and "mhlo.sharding" not in attributes
            for attributes in map(self._ir.DictAttr, main.attributes["res_attrs"])
        )

    def _zero(self, type_: Any) -> Any:
        ir = self._ir
        hlo = self._hlo
        if "token" in str(type_):
            return hlo.create_token()
        shaped = ir.RankedTensorType(type_)
        element = str(shaped.element_type)
        if element.startswith("complex"):
            part = ir.RankedTensorType.get(
                shaped.shape, ir.ComplexType(shaped.element_type).element_type
            )
            return hlo.complex(self._zero(part), self._zero(part))
        text = "false" if element == "i1" else "0.0" if element[0] in "fb" else "0"
        constant = hlo.constant(ir.Attribute.parse(f"dense<{text}> : {shaped}"))
        return constant.result if hasattr(constant, "result") else constant
