"""What changed between releases of JAX, in words: the table of ``docs/explain.md``."""

from typing import NamedTuple

from jaxcache.core.machine import (
    ATIME_REQUIRED,
    CACHE_PATH,
    KERNEL_CACHE_PATH,
    Release,
    Rule,
)

_KEY = "cache_key.py"
_COMPILER = "compiler.py"


class Change(NamedTuple):
    """A rule that some releases of JAX follow."""

    name: str
    part: str
    """The component of the key in JAX's own words, or ``files``."""
    rule: Rule
    text: str
    source: str
    """The file in ``jax/_src``."""

    @property
    def releases(self) -> str:
        """The releases as people write them, such as ``0.4.36 until 0.11.0``."""
        since = _spell(self.rule.since)
        before = _spell(self.rule.before)
        if not since:
            return f"before {before}" if before else "all"
        return f"{since} until {before}" if before else f"{since} and later"


def _spell(release: Release) -> str:
    return ".".join(map(str, release))


CHANGES = (
    Change(
        "mosaic-paths",
        "computation",
        Rule((), (0, 11, 0)),
        "the source files and lines of Pallas kernels for a TPU: another checkout misses",
        _KEY,
    ),
    Change(
        "mosaic-debug-locations",
        "computation",
        Rule((0, 12, 0), ()),
        "Pallas kernels keep their lines apart (`jax_mosaic_unzip_debug_locations`), and the key leaves them out",
        _KEY,
    ),
    Change(
        "platform-version",
        "backend version",
        Rule((0, 6, 0), ()),
        "the platform and its version (CUDA, ROCm, libtpu); before, only where the topology could not be serialized",
        _KEY,
    ),
    Change(
        "tpu-compiler-variant",
        "XLA flags",
        Rule((), (0, 11, 1)),
        "`--xla_tpu_compiler_variant`",
        _KEY,
    ),
    Change(
        "autotune-mode",
        "compile_options",
        Rule((), (0, 4, 36)),
        "`xla_gpu_experimental_autotune_cache_mode`",
        _KEY,
    ),
    Change(
        "cache-path",
        "compile_options",
        CACHE_PATH,
        "the path of the cache directory, through XLA's autotune directory",
        _KEY,
    ),
    Change(
        "kernel-cache-path",
        "compile_options",
        KERNEL_CACHE_PATH,
        "the path of the cache directory where XLA's kernel cache is on (`JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES=all`)",
        _COMPILER,
    ),
    Change(
        "effort",
        "compile_options",
        Rule((0, 4, 36), (0, 11, 1)),
        "`jax_exec_time_optimization_effort` and `jax_memory_fitting_effort`",
        _COMPILER,
    ),
    Change(
        "output-indices",
        "compile_options",
        Rule((0, 11, 2), ()),
        "`individually_defined_output_indices` of `compiler_options`",
        _COMPILER,
    ),
    Change(
        "profile-placeholder",
        "compile_options",
        Rule((), ()),
        "where profiles guide the compiler (PGLE), the words `pgle profiled` and not the profile: one key for all profiles",
        _COMPILER,
    ),
    Change(
        "topology-fingerprint",
        "accelerator_config",
        Rule((0, 10, 0), ()),
        "a fingerprint of the topology; before, the topology itself",
        _KEY,
    ),
    Change(
        "callbacks-uncached",
        "files",
        Rule((), (0, 11, 0)),
        "a program that calls back into Python is never written",
        _COMPILER,
    ),
    Change(
        "atime-required",
        "files",
        ATIME_REQUIRED,
        "with a size cap, an entry without its `-atime` file stops all writes",
        "lru_cache.py",
    ),
)
