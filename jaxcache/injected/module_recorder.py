"""Keeps each module, with all it takes to compile it again, if ``--record`` is given.

The bytes go into a directory of the parent's, named by their SHA-256, so that a process that dies
leaves whole files; events refer to them by name.
"""

import hashlib
import io
import os
import sys
import tempfile
from typing import Any

from .adapter import describe_devices, describe_versions

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


def start(jax: Any) -> "ModuleRecorder | None":
    """Start to record, where that is wanted."""
    directory = os.environ.get(_RECORD)
    return ModuleRecorder(directory, jax) if directory else None
