"""A JAX on a machine: what its keys depend on, and whether they contain the cache's path."""

from .names import AUTOTUNE_DIR, KERNEL_CACHE
from .releases import CACHE_PATH, KERNEL_CACHE_PATH

#: The setting that names the caches of XLA's own that JAX places below its cache.
XLA_CACHES = "jax_persistent_cache_enable_xla_caches"


def hashes_path(
    version: "str | None", caches: object = None, *, kernel_cache: "bool | None" = False
) -> bool:
    """Return whether the keys of a JAX contain the path of its cache.

    JAX hands the paths of XLA's own caches to XLA as compile options, which it hashes.

    Args:
        version: of JAX; an unknown one counts as one that hashes the path.
        caches: the value of :data:`XLA_CACHES`; None for JAX's default.
        kernel_cache: whether the options of an entry name XLA's kernel cache.
    """
    version = version or "0.4.36"
    chosen = AUTOTUNE_DIR if caches is None else str(caches)
    is_every = chosen == "all"
    if (kernel_cache or is_every or KERNEL_CACHE in chosen) and KERNEL_CACHE_PATH.holds(version):
        return True
    return (is_every or AUTOTUNE_DIR in chosen) and CACHE_PATH.holds(version)
