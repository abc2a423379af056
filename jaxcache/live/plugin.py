"""The entry point in the group ``jax_plugins``: JAX imports it when its backends start.

An exception at import, other than ImportError, would reach the user at every compile
(``discover_pjrt_plugins`` in jax/_src/xla_bridge.py, 0.4.38 to 0.12), and every process with jax
pays for what is imported here. So this module imports nothing but ``core.configuration``, which is
cheap, until a setting switches the layer on.
"""

import os

from ..core.configuration import FALSE_WORDS, find_config_files, report_once


def initialize() -> None:
    """Do what is due when JAX starts its backends; never raises."""
    try:
        if os.environ.get("JAXCACHE_GUARD"):
            from ..injected.guard import start

            start()
        switch_on(backend_starts=True)
    except Exception as error:
        report_once(f"live is off: {type(error).__name__}: {error}")


def switch_on(*, backend_starts: bool = False) -> None:
    """Switch the layer on if the settings request it."""
    if _may_be_on():
        from .layer import start

        layer = start()
        if layer is not None and backend_starts:
            layer.backend_starts()


def _may_be_on() -> bool:
    """Return whether any setting requests the layer; cheap, because nearly always none does."""
    flag = os.environ.get("JAXCACHE_LIVE", "").strip().lower()
    if flag:
        return flag not in FALSE_WORDS
    return any(b"enabled" in f.text and b"live" in f.text for f in find_config_files())
