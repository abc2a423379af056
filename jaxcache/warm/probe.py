"""Ask a Python that has jax what its cache entries look like, by letting it write one."""

import os
import tempfile
from collections.abc import Mapping
from typing import Any

from jaxcache.cache.bundle.compat import Host
from jaxcache.cache.bundle.export import plan_export
from jaxcache.cache.bundle.pack import write_stream
from jaxcache.errors import NoJaxError
from jaxcache.store.local import LocalStore
from jaxcache.warm.child import ask_once
from jaxcache.warm.process import find_python

_TIMEOUT_SECONDS = 300


def probe_host(python: str | None, environment: Mapping[str, str]) -> Host:
    """Let a Python compile a trivial program into a directory of its own, and read the entry.

    Args:
        python: an interpreter that has jax; our own by default.
        environment: of the child, as the program that is to use the cache will have it.

    Raises:
        NoJaxError: no jax there, or one that writes no entry.
    """
    python = find_python(python)
    with tempfile.TemporaryDirectory(prefix="jaxcache-probe-") as folder:
        told = _run(python, environment, folder)
        exported = write_stream(LocalStore(folder), plan_export(LocalStore(folder), now_ns=0))
        exported.stream.close()
        items = exported.manifest.items
        if not items:
            raise NoJaxError(
                f"{python}: jax {told.get('jax_version')} on {told.get('platform')} wrote no entry",
                code="no-entry",
                hint="JAX up to 0.4.29 caches nothing on the CPU",
            )
        return Host(
            python,
            str(told.get("jax_version")),
            str(told.get("jaxlib_version")),
            items[0].codec,
            exported.manifest.origin_of(items[0]),
            str(told.get("device_kind", "")),
            str(told.get("platform_version", "")),
            items[0].key,
        )


def _run(python: str, environment: Mapping[str, str], folder: str) -> dict[str, Any]:
    env = {
        **environment,
        "JAX_COMPILATION_CACHE_DIR": folder,
        "JAX_ENABLE_COMPILATION_CACHE": "true",
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    env.pop("JAX_COMPILATION_CACHE_MAX_SIZE", None)
    return ask_once(python, "probe", seconds=_TIMEOUT_SECONDS, env=env, cwd=folder, folder=folder)


def has_jax(python: str | None = None) -> bool:
    """Whether a Python was named, or our own has jax; without importing it."""
    import importlib.util

    if python is not None:
        return True
    found = importlib.util.find_spec("jax")
    # A folder that is called so is no package: under `python -m` the current one is searched, too.
    return found is not None and found.origin is not None


def environment() -> Mapping[str, str]:
    """The environment of this process, for the command line."""
    return os.environ
