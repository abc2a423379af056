"""Changes between releases of JAX: what a key holds, and what JAX does with its cache.

Each was read in JAX's source at the release named and at the one before, and is asked of every JAX
of the test matrix (``tests/integration/test_releases.py``).
"""

import re
from typing import NamedTuple

Release = tuple[int, ...]


def read_release(version: str) -> Release:
    """Read the leading numbers of a version: ``0.12.0.dev1`` is (0, 12, 0), ``main`` is ()."""
    # A bundle may hold any text, and Python refuses to read numbers of thousands of digits.
    match = re.match(r"\d{1,9}(?:\.\d{1,9})*", version)
    return tuple(map(int, match[0].split("."))) if match else ()


class Rule(NamedTuple):
    """A rule that some releases of JAX follow."""

    name: str
    part: str
    """The component of the key in JAX's own words, or ``files``."""
    since: Release
    """The first release that follows it; () for all before."""
    before: Release
    """The first release that no longer does; () for none so far."""
    text: str
    source: str
    """The file in ``jax/_src``."""

    def holds(self, version: str) -> bool:
        """Whether this version follows it; an unreadable version counts as the oldest."""
        release = read_release(version)
        return self.since <= release and not (self.before and self.before <= release)

    @property
    def releases(self) -> str:
        """The releases as people write them, such as ``0.4.36 to 0.10``."""
        since = _spell(self.since)
        before = _spell(self.before)
        if not self.since:
            return f"before {before}" if before else "all"
        return f"{since} and later" if not self.before else f"{since} until {before}"


def _spell(release: Release) -> str:
    return ".".join(map(str, release))


_KEY = "cache_key.py"
_COMPILER = "compiler.py"

MOSAIC_PATHS = Rule(
    "mosaic-paths",
    "computation",
    (),
    (0, 11, 0),
    "the source files and lines of Pallas kernels for a TPU: another checkout misses",
    _KEY,
)
CACHE_PATH = Rule(
    "cache-path",
    "compile_options",
    (0, 4, 36),
    (0, 11, 0),
    "the path of the cache directory, through XLA's autotune directory",
    _KEY,
)
KERNEL_CACHE_PATH = Rule(
    "kernel-cache-path",
    "compile_options",
    (0, 4, 36),
    (),
    "the path of the cache directory where XLA's kernel cache is on "
    "(`JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES=all`)",
    _COMPILER,
)
CALLBACKS_UNCACHED = Rule(
    "callbacks-uncached",
    "files",
    (),
    (0, 11, 0),
    "a program that calls back into Python is never written",
    _COMPILER,
)
ATIME_REQUIRED = Rule(
    "atime-required",
    "files",
    (),
    (0, 11, 2),
    "with a size cap, an entry without its `-atime` file stops all writes",
    "lru_cache.py",
)
RULES = (
    MOSAIC_PATHS,
    Rule(
        "mosaic-debug-locations",
        "computation",
        (0, 12, 0),
        (),
        "Pallas kernels keep their lines apart (`jax_mosaic_unzip_debug_locations`), "
        "and the key leaves them out",
        _KEY,
    ),
    Rule(
        "platform-version",
        "backend version",
        (0, 6, 0),
        (),
        "the platform and its version (CUDA, ROCm, libtpu); before, only where the topology "
        "could not be serialized",
        _KEY,
    ),
    Rule(
        "tpu-compiler-variant",
        "XLA flags",
        (),
        (0, 11, 1),
        "`--xla_tpu_compiler_variant`",
        _KEY,
    ),
    Rule(
        "autotune-mode",
        "compile_options",
        (),
        (0, 4, 36),
        "`xla_gpu_experimental_autotune_cache_mode`",
        _KEY,
    ),
    CACHE_PATH,
    KERNEL_CACHE_PATH,
    Rule(
        "effort",
        "compile_options",
        (0, 4, 36),
        (0, 11, 1),
        "`jax_exec_time_optimization_effort` and `jax_memory_fitting_effort`",
        _COMPILER,
    ),
    Rule(
        "output-indices",
        "compile_options",
        (0, 11, 2),
        (),
        "`individually_defined_output_indices` of `compiler_options`",
        _COMPILER,
    ),
    Rule(
        "profile-placeholder",
        "compile_options",
        (),
        (),
        "where profiles guide the compiler (PGLE), the words `pgle profiled` and not the profile: "
        "one key for all profiles",
        _COMPILER,
    ),
    Rule(
        "topology-fingerprint",
        "accelerator_config",
        (0, 10, 0),
        (),
        "a fingerprint of the topology; before, the topology itself",
        _KEY,
    ),
    CALLBACKS_UNCACHED,
    ATIME_REQUIRED,
)
