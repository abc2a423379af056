"""Compile one trivial program and describe this jax, for :mod:`jaxcache.warm.child.query`.

The parent names a fresh cache directory in the environment and reads the entry that appears there.

jaxlib reports the CPU's features: ``/proc/cpuinfo`` does not list every feature that LLVM uses.
Private names of JAX for that, tried on 0.4.30 to 0.12: ``xla_client.get_topology_for_devices`` and
``serialize`` of its result (all but 0.10), and those of :func:`sample`.
"""

import importlib.util
import os
import re
import sys
from typing import Any

from ..core import key_settings
from .adapter import hash_component, wrap
from .facts import describe_devices, describe_versions

#: A feature as LLVM spells it, inside serialized bytes of XLA; not the middle of a triple.
_FEATURE = re.compile(rb"(?<![\w-])[+-][a-z0-9][a-z0-9.-]*")


def features() -> "list[str] | None":
    """Return LLVM's features of this CPU, such as ``+avx2`` and ``-xop``; None if not known.

    Switches JAX's cache off in this process, because it may compile. If ``XLA_FLAGS`` limits the
    instruction set, the features of the CPU are unknown.
    """
    if "xla_cpu_max_isa" in os.environ.get("XLA_FLAGS", ""):
        return None
    try:
        import jax
        from jax._src.lib import xla_client

        jax.config.update("jax_enable_compilation_cache", False)
        devices = jax.local_devices(backend="cpu")
        topology = xla_client.get_topology_for_devices(devices)
        serialize = getattr(topology, "serialize", None)
        data = bytes(serialize()) if serialize else sample(devices[0])
    except Exception:
        return None
    names = {name.decode() for name in _FEATURE.findall(data)}
    return sorted(names) or None


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


def settings() -> "dict[str, Any]":
    """Return the settings of the environment and the defaults; none if JAX's are not known."""
    try:
        environment_settings = key_settings.settings_of_environment()
        return {"settings": environment_settings, "defaults": default_settings()}
    except Exception:
        return {}


def default_settings() -> "dict[str, Any]":
    """Return the settings that act on keys, as they are where the environment sets none.

    JAX keeps no defaults: its registry is made once more, without these variables.
    """
    current = key_settings.current_settings()
    chosen = [n for n in current if os.environ.pop(n.upper(), None) is not None]
    if not chosen:
        return current
    path = sys.modules["jax._src.config"].__file__
    spec: Any = importlib.util.spec_from_file_location("_jaxcache_defaults", path)
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    fresh = module.config._value_holders
    return {
        name: key_settings.plain_value(fresh[name].value) if name in fresh else value
        for name, value in current.items()
        if name in fresh or name not in chosen
    }


def main(parent: Any) -> None:
    """Answer with the versions, once the entry is written; with an argument, the features, too."""
    import jax
    from jax._src import cache_key

    hashes: dict[str, str] = {}

    def around_component(log: Any, args: Any, kwargs: Any) -> Any:
        hashes.setdefault(str(args[1]), hash_component(args[2]))
        return log(*args, **kwargs)

    wrap(cache_key, "_log_cache_key_hash", around_component)
    jax.jit(lambda x: x + 1)(1.0).block_until_ready()
    device = jax.devices()[0]
    described = {
        **describe_versions(),
        **describe_devices(device.client, device),
        **settings(),
        "cpu_features": features() if sys.argv[1:] else None,
        "topology": hashes.get("accelerator_config"),
        # This process is alone; the program that is to use the cache need not be.
        "process_count": int(os.environ.get("JAX_NUM_PROCESSES") or 1),
    }
    parent.answer(**described)
