"""Record what a program compiles, with ``--record``; with ``--collect-only`` without compiling it.

The bytes of a module go into a directory of the parent's, named by their SHA-256, so that a process
that dies leaves whole files; events refer to them by name.

A collector answers large compile requests with programs that return zeros. What is to be recorded
is then known at the price of tracing. Modules of few operations run for real: they are cheap, and
random keys, step counters and the like stay true.
"""

import functools
import hashlib
import io
import os
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

from ..core.seams import compiling, describe_versions, wrap
from ..core.seams.listening import describe_devices

_COLLECT = "JAXCACHE_COLLECT"
#: Methods by which a value steers the program; printing a number goes through none of them.
_STEERING = ("__bool__", "__index__", "__int__")
_MOST_REMARKS = 10


class Collect(BaseException):
    """Leaves JAX's own path once the key is made; JAX catches ``Exception`` alone there."""


class Collector:
    """Decides what is answered with zeros, makes such programs, and notes where that may show.

    Args:
        most: modules with no more operations than this run for real.
        send: sends an event to the parent.
    """

    def __init__(self, most: int, send: Any) -> None:
        self._most = most
        self._send = send
        self._programs = compiling.ZeroPrograms()
        self._lock = threading.RLock()
        self._local = threading.local()
        self._stubbed = False
        self._places: set[str] = set()
        array, handlers = compiling.array_and_constant_handlers()
        self._watch_constants(handlers, array)
        self._watch_values(array)

    # What is answered with zeros --------------------------------------------------------------

    def wants(self, module: Any) -> bool:
        """Whether a module is large enough to be worth it."""
        return self._programs.has_more_operations(module, self._most)

    def answer(self, request: "dict[str, Any]") -> Any:
        """A program with the same signature that returns zeros; None where that cannot be."""
        compiled = self._programs.make(request)
        self._stubbed = self._stubbed or compiled is not None
        return compiled

    # Where zeros may show ---------------------------------------------------------------------

    def doubts(self, lowering: "dict[str, Any]") -> "list[str]":
        """Why the program that really runs may ask for another module than this one."""
        doubts = list(lowering.get("doubts", ()))
        return [*doubts, "after-value-read"] if self._places else doubts

    def begin_lowering(self) -> None:
        """A module is going to be made, in this thread."""
        self._local.captured = False

    def end_lowering(self) -> "list[str]":
        """Return the doubts that were seen while it was made."""
        return ["captured-zeros"] if getattr(self._local, "captured", False) else []

    def _watch_constants(self, handlers: "dict[Any, Any]", array: Any) -> None:
        """Notice arrays that become constants of a module: zeros may be none in a real run."""
        original = handlers.get(array)
        if original is None:
            return

        @functools.wraps(original)
        def handle(value: Any, *args: Any, **kwargs: Any) -> Any:
            if self._stubbed and _is_zero(value):
                self._local.captured = True
            return original(value, *args, **kwargs)

        handlers[array] = handle

    def _watch_values(self, array: Any) -> None:
        """Notice values that steer the program, and where."""
        for name in _STEERING:
            if hasattr(array, name):
                wrap(array, name, self._notice)

    def _notice(self, original: Any, args: Any, kwargs: Any) -> Any:
        place = _place(sys._getframe(2)) if self._stubbed else None
        if place is not None:
            with self._lock:
                is_new = place not in self._places
                self._places.add(place)
            if is_new and len(self._places) <= _MOST_REMARKS:
                detail = (
                    f"{place} reads a computed value, which is zero in this mode; modules "
                    "that follow are marked, and some may be missing"
                )
                self._send({"event": "remark", "detail": detail})
        return original(*args, **kwargs)


def _is_zero(value: Any) -> bool:
    import numpy as np

    try:
        return value.size > 0 and not np.asarray(value).any()
    except Exception:  # not addressable here, or no numbers
        return False


def _place(frame: Any) -> "str | None":
    """File and line of the program's own code; None where jax asks for its own purposes."""
    name = frame.f_code.co_filename
    if name.startswith("<") or {"jax", "numpy"} & {*Path(name).parts}:
        return None
    return f"{name}:{frame.f_lineno}"


def start_collector(send: Any) -> "Collector | None":
    """Start to collect, where that is wanted."""
    most = os.environ.get(_COLLECT)
    if not most:
        return None
    try:
        return Collector(int(most), send)
    except (ImportError, AttributeError) as error:
        send(
            {
                "event": "remark",
                "detail": f"this jax cannot be collected without executing ({error}); known are "
                "0.5.3 to 0.12: everything was compiled for real",
            }
        )
        return None


_RECORD = "JAXCACHE_RECORD"
#: Settings of JAX that enter keys, and the values at which they do not.
_SETTINGS = {
    "jax_compilation_cache_include_metadata_in_key": (False, None),
    "jax_remove_custom_partitioning_ptr_from_cache_key": (False, None),
    "jax_mock_gpu_topology": ("", None),
    "jax_mock_num_gpu_processes": (0, 1, None),
}
#: XLA calls the pointer that such a call carries while it compiles.
_PARTITIONING = b"CustomSPMDPartitioning"


class ModuleRecorder:
    """Writes modules and options into one directory, and describes each request."""

    def __init__(self, directory: str, jax: Any) -> None:
        self._directory = directory
        self._jax = jax
        self._written: set[str] = set()

    def describe(self, request: "dict[str, Any]") -> "dict[str, Any]":
        """Keep one request; what a recipe has of it before it is compiled, which may change it.

        Args:
            request: see :meth:`adapter.Jax.asked`.
        """
        devices = request["devices"]
        compile_options = request["compile_options"]
        stream = io.BytesIO()
        request["computation"].operation.write_bytecode(stream)
        bytecode = stream.getvalue()
        ids = [int(d.id) for d in devices.flat]
        described: dict[str, Any] = {
            "bytecode": self._keep(bytecode),
            "options": self._keep(compile_options.SerializeAsString()),
            "device_ids": ids,
            "device_shape": [int(n) for n in devices.shape],
            "refusals": self._refusals(bytecode, compile_options),
        }
        if request.get("executable_devices") is not None:
            executable = [int(d.id) for d in request["executable_devices"]]
            if executable != ids:
                described["executable_device_ids"] = executable
        return described

    def _keep(self, data: bytes) -> str:
        """Write some bytes, once, whole or not at all; their SHA-256."""
        name = hashlib.sha256(data).hexdigest()
        if name not in self._written:
            path = os.path.join(self._directory, name)
            if not os.path.exists(path):
                fd, temp = tempfile.mkstemp(dir=self._directory)
                with os.fdopen(fd, "wb") as file:
                    file.write(data)
                os.replace(temp, path)
            self._written.add(name)
        return name

    def environment(self, backend: Any) -> "dict[str, Any]":
        """Return what the keys of this process depend on, and what starting another takes."""
        config = self._jax.config
        settings = {name: getattr(config, name, None) for name in _SETTINGS}
        return {
            "xla_flags": os.environ.get("XLA_FLAGS", "").split(),
            "libtpu_init_args": os.environ.get("LIBTPU_INIT_ARGS", "").split(),
            "argv_flags": [a for a in sys.argv if a.startswith("--xla")],
            "settings": {n: v for n, v in settings.items() if v not in _SETTINGS[n]},
            "cache_dir": config.jax_compilation_cache_dir,
            "python_version": sys.version.split()[0],
            **describe_versions(),
            **describe_devices(backend, backend.local_devices()[0]),
            "process_id": int(backend.process_index()),
        }

    def _refusals(self, bytecode: bytes, compile_options: Any) -> "list[str]":
        refusals = []
        if _PARTITIONING in bytecode:
            refusals.append("custom-partitioning")
        if is_profile_guided(self._jax, compile_options):
            refusals.append("pgle")
        return refusals


def is_profile_guided(jax: Any, compile_options: Any) -> bool:
    """Whether the key of a request follows a profile, or may (PGLE).

    ``_resolve_compilation_strategy`` in jax/_src/compiler.py, 0.4.30 to 0.12: the key has the words
    ``pgle profiled`` for the profile, and the first pass other options than without PGLE.
    """
    names = ("jax_enable_pgle", "jax_compilation_cache_expect_pgle")
    profile = getattr(compile_options.executable_build_options, "fdo_profile", b"")
    return bool(profile) or any(getattr(jax.config, name, False) for name in names)


def start_recorder(jax: Any) -> "ModuleRecorder | None":
    """Start to record, where that is wanted."""
    directory = os.environ.get(_RECORD)
    return ModuleRecorder(directory, jax) if directory else None
