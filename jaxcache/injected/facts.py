"""The facts of a machine that JAX itself reports, under the names of ``core/machine.py``."""

import hashlib
from typing import Any


def jaxlib_digest() -> "str | None":
    """Return the SHA-256 of the lines for binaries in jaxlib's list of files; None without one."""
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        record = distribution("jaxlib").read_text("RECORD")
    except PackageNotFoundError:
        return None
    lines = sorted(x for x in (record or "").splitlines() if x.split(",")[0].endswith(".so"))
    return hashlib.sha256("\n".join(lines).encode()).hexdigest() if lines else None


def describe_versions() -> "dict[str, str]":
    """Return the releases of JAX and jaxlib."""
    import jax
    import jaxlib

    jaxlib_version = getattr(jaxlib, "__version__", "") or jaxlib.version.__version__
    return {"jax_version": str(jax.__version__), "jaxlib_version": str(jaxlib_version)}


def describe_devices(backend: Any, device: Any) -> "dict[str, Any]":
    """Return what keys depend on, of a backend and the kind of one of its devices."""
    return {
        "platform": str(backend.platform),
        "platform_version": str(backend.platform_version),
        "device_kind": str(device.device_kind),
        "device_count": len(backend.local_devices()),
        "process_count": len({d.process_index for d in backend.devices()}),
    }


def topology_fingerprint(devices: Any) -> str | None:
    """The fingerprint that JAX 0.10 and later put into the key; None before."""
    try:
        from jax._src.lib import xla_client

        topology = xla_client.get_topology_for_devices(list(devices.flat))
        value = getattr(topology, "fingerprint", None)
        value = value() if callable(value) else value  # a method on 0.10.2
    except Exception:
        return None
    return None if value is None else str(value)
