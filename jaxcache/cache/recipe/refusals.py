"""Which requests of a recipe cannot be compiled again, and why."""

import re
from collections.abc import Callable, Iterable

from jaxcache.cache.bundle.compat import version_tuple
from jaxcache.cache.recipe.model import Environment, Request
from jaxcache.entry.options import read_options
from jaxcache.entry.wire import Budget, WireError

#: Flags that JAX leaves out of keys (``xla_flags_to_exclude_from_cache_key`` in
#: jax/_src/cache_key.py): they do not reach a worker, so what they say does not matter.
_LEFT_OUT = re.compile(
    r"-*(xla_dump_\w+|xla_gpu_cuda_data_dir|xla_force_host_platform_device_count)"
)
#: Paths that a worker sets anew.
_REPLACED = frozenset({
    "xla_gpu_cuda_data_dir", "xla_gpu_per_fusion_autotune_cache_dir", "xla_gpu_kernel_cache_file",
    "xla_dump_to",
})  # fmt: skip
#: The first JAX whose executables may have host callbacks that are given to them when loaded.
_CALLBACKS_SINCE = (0, 12)

#: Why a request cannot be compiled from a recipe, in a sentence.
REFUSALS = {
    "host-callbacks": "it calls back into the Python that recorded it; compiled without, it would "
    "make later runs crash on JAX before 0.12",
    "custom-partitioning": "it holds a pointer to a partitioner of the process that recorded it",
    "pgle": "it was compiled with a profile (PGLE), which is not in the recipe",
    "flags-file": "XLA_FLAGS names a file, which is not in the recipe",
    "path-in-flags": "its XLA flags name a path, which need not mean the same here",
    "unreadable-options": "its compile options cannot be read",
}


def refuse(request: Request, environment: Environment, blob: Callable[[str], bytes]) -> str | None:
    """Why a request cannot be compiled; a key of :data:`REFUSALS`, or None if it can.

    Args:
        blob: gives the bytes of the options.
    """
    for reason in request.refusals:
        if reason in REFUSALS:
            return reason
    if request.callbacks and version_tuple(environment.jax_version) < _CALLBACKS_SINCE:
        return "host-callbacks"
    flags = (*environment.xla_flags, *environment.libtpu_init_args, *environment.argv_flags)
    if not all(f.startswith("--") for f in flags):
        return "flags-file"
    if any("/" in f and not _LEFT_OUT.match(f) for f in flags):
        return "path-in-flags"
    try:
        options = read_options(memoryview(blob(request.options)), None, Budget()).flags or {}
    except (WireError, ValueError):
        return "unreadable-options"
    paths = (n for n, v in options.items() if isinstance(v, str) and "/" in v)
    if any(n not in _REPLACED and not _LEFT_OUT.match(n) for n in paths):
        return "path-in-flags"
    return None


def kept_flags(flags: Iterable[str]) -> list[str]:
    """The flags that a worker is given: those that enter keys."""
    return [f for f in flags if not _LEFT_OUT.match(f)]
