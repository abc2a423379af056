"""Describe what the keys of this host depend on: the body of a target profile (docs/target.md).

Opens the devices, compiles nothing.

Private names of JAX, tried on 0.10.2, 0.11.2 and 0.12: ``xla_client.get_topology_for_devices`` and
what its result knows (``serialize`` from 0.11, ``target_config`` on GPU); the client's
``_raw_platform``, which is the platform that JAX lowers for; those of ``settings.py``.
"""

import base64
import os
import platform
import sys
from collections.abc import Callable
from typing import Any

from . import multiprocess, probe, settings
from .channel import first_line

#: Configuration that enters keys through the program or the compile options, not by itself.
_NOT_IN_KEYS = (
    *("JAX_COMPILATION_CACHE", "JAX_PERSISTENT_CACHE_MIN", "JAX_ENABLE_COMPILATION_CACHE"),
    *("JAX_LOG", "JAX_DUMP", "JAX_PLATFORMS", "JAX_RAISE", "JAX_EXPLAIN", "JAX_DEBUG_LOG"),
    *("JAX_COORDINATOR", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID", "JAX_TRACEBACK"),
)
_FLAGS = ("XLA_FLAGS", "LIBTPU_INIT_ARGS")


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
        "topology": _try(lambda: base64.b64encode(topology.serialize()).decode()),
        "topology_fingerprint": _try(lambda: str(topology.fingerprint())),
        "target_config": _try(lambda: _text(topology.target_config)),
    }


def _try(read: "Callable[[], str | None]") -> "str | None":
    """Read something that some versions lack; None if they raise anything."""
    try:
        return read()
    except Exception:
        return None


def _text(value: Any) -> "str | None":
    value = value() if callable(value) else value
    return value.decode() if isinstance(value, bytes) else None if value is None else str(value)


def plugin_versions() -> "dict[str, str]":
    """Versions of what is installed beside jaxlib and compiles: PJRT plugins, libtpu, CUDA."""
    from importlib.metadata import distributions

    versions = {}
    for distribution in distributions():
        name = str(distribution.metadata["Name"] or "").lower().replace("_", "-")
        plugin = name.startswith("jax-") and name.endswith(("-plugin", "-pjrt"))
        if plugin or name.startswith(("libtpu", "nvidia-cu", "nvidia-nccl", "jax-rocm")):
            versions[name] = distribution.version
    return dict(sorted(versions.items()))


def cpu_facts() -> "dict[str, Any]":
    """The host's processor: its name as Linux prints it, its features as jaxlib reports them."""
    name = None
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            for line in file:
                if line.startswith("model name"):
                    name = line.partition(":")[2].strip()
                    break
    except OSError:
        pass
    return {"machine": platform.machine(), "name": name, "features": probe.features() or []}


def environment(environ: Any) -> "dict[str, str]":
    """Select the variables that enter keys: flags literally, settings through the program."""
    import jax

    variables = {name: environ[name] for name in _FLAGS if environ.get(name)}
    for name, value in environ.items():
        is_jax_setting = name.startswith("JAX_") and hasattr(jax.config, name.lower())
        if is_jax_setting and not name.startswith(_NOT_IN_KEYS):
            variables[name] = value
    return dict(sorted(variables.items()))


def describe() -> "dict[str, Any]":
    """Everything that a key made here depends on, and what it takes to make it elsewhere."""
    import jax

    devices = jax.devices()
    client = devices[0].client
    return {
        "platform": str(client.platform),
        "lowering_platform": str(getattr(client, "_raw_platform", client.platform)),
        "platform_version": str(client.platform_version),
        "device_kinds": [str(device.device_kind) for device in devices],
        "device_ids": [int(device.id) for device in devices],
        "device_processes": [int(device.process_index) for device in devices],
        "process_count": int(jax.process_count()),
        "process_index": int(jax.process_index()),
        **topology_facts(devices),
        **settings.describe(
            ["jax_compilation_cache_dir", "jax_persistent_cache_enable_xla_caches"]
        ),
        "plugins": plugin_versions(),
        "cpu": cpu_facts(),
        "environment": environment(os.environ),
    }


def main(parent: Any) -> None:
    """Answer with the body of a target profile (docs/target.md).

    With the argument ``pod``, as one process of the program of several hosts that runs here.
    """
    if sys.argv[1:] != ["pod"]:
        parent.answer(**describe())
        return
    import jax

    try:
        multiprocess.join_pod(jax)
    except Exception as error:
        parent.answer(no_pod=first_line(error))
        return
    facts = describe()
    jax.distributed.shutdown()  # waits for the others, which cannot go on without process 0
    parent.answer(**facts)
