"""Describe what jax in this Python would do with its cache, for :mod:`jaxcache.warm.child.query`.

No device but the CPU is opened.

Private names of JAX, tried on 0.4.30 to 0.12: ``jax._src.compilation_cache.{zstd,zstandard}``
(its codecs) and its ``compress_executable``, ``jax._src.compiler.get_compile_options``.
"""

import sys
from typing import Any

from . import probe
from .facts import describe_versions, jaxlib_digest


def has_module(name: str) -> bool:
    """Whether a module imports here."""
    try:
        __import__(name)
    except ImportError:
        return False
    return True


def describe(names: "list[str]") -> "dict[str, Any]":
    """Describe the imported jax: versions, settings, codecs."""
    import jax
    from jax._src import compilation_cache

    standard = getattr(compilation_cache, "zstd", None)
    package = getattr(compilation_cache, "zstandard", None)
    return {
        "python_version": sys.version.split()[0],
        **describe_versions(),
        "jaxlib_digest": jaxlib_digest(),
        "key_codec": "zstandard" if package is not None else "zlib",
        "written_codec": "zlib" if standard is None and package is None else "zstd",
        "has_filelock": has_module("filelock"),
        "has_epath": has_module("etils.epath"),
        "settings": {n: getattr(jax.config, n) for n in names if hasattr(jax.config, n)},
    }


def resolve_live() -> "dict[str, Any]":
    """Return the live layer's settings in this Python, by its own code."""
    from . import hook

    hook.make_private_package()
    from _jaxcache.live.settings import describe as describe_live

    described: dict[str, Any] = describe_live()
    return described


def compile_options() -> bytes:
    """The compile options of a program for one device, serialized."""
    from jax._src.compiler import get_compile_options

    options: bytes = get_compile_options(num_replicas=1, num_partitions=1).SerializeAsString()
    return options


def smallest_entry_bytes() -> "int | None":
    """Return the size of the entry of a trivial program; None where no setting limits sizes."""
    import jax
    from jax._src import compilation_cache

    least = jax.config.jax_persistent_cache_min_entry_size_bytes
    if least <= 0 and getattr(jax.config, "jax_compilation_cache_max_size", -1) == -1:
        return None
    try:
        entry = probe.sample(jax.local_devices(backend="cpu")[0])
        return len(compilation_cache.compress_executable(bytes(4) + entry))
    except Exception:
        return None


def main(parent: Any) -> None:
    """Answer three times: a wrong ``XLA_FLAGS`` ends the process after the first answer."""
    parent.answer(**describe(sys.argv[1:]), live=resolve_live())
    parent.answer(compile_options=compile_options().hex())
    import jax

    jax.config.update("jax_platforms", "cpu")
    parent.answer(cpu_features=probe.features(), smallest_entry_bytes=smallest_entry_bytes())
