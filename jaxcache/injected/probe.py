"""Compile one trivial program and describe this jax, for :mod:`jaxcache.warm.child.query`.

The parent names a fresh cache directory in the environment and reads the entry that appears there.
"""

from typing import Any

from . import cpu


def main(parent: Any) -> None:
    """Answer with the versions, once the entry is written."""
    import jax
    import jaxlib

    jax.jit(lambda x: x + 1)(1.0).block_until_ready()
    device = jax.devices()[0]
    parent.answer(
        jax_version=jax.__version__,
        jaxlib_version=getattr(jaxlib, "__version__", "") or jaxlib.version.__version__,
        platform=jax.default_backend(),
        device_kind=str(device.device_kind),
        platform_version=str(device.client.platform_version),
        cpu_features=cpu.features(),
    )
