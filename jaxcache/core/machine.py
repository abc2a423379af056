"""A JAX on a machine: what its keys depend on, and whether they contain the cache's path.

A rule names the releases of JAX that follow it. Each was read in JAX's source at the release named
and at the one before, and is asked of every JAX of the test matrix
(``tests/integration/test_machine_jax.py``). ``tools/generate/releases.py`` has the words for each,
and the changes that nothing here depends on.
"""

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from .names import AUTOTUNE_DIR, KERNEL_CACHE

Release = tuple[int, ...]


@lru_cache(maxsize=64)
def read_release(version: str) -> Release:
    """Read the leading numbers of a version: ``0.12.0.dev1`` is (0, 12, 0), ``main`` is ()."""
    # A bundle may hold any text, and Python refuses to read numbers of thousands of digits.
    match = re.match(r"\d{1,9}(?:\.\d{1,9})*", version)
    return tuple(map(int, match[0].split("."))) if match else ()


class Rule(NamedTuple):
    """A rule that some releases of JAX follow."""

    since: Release
    """The first release that follows it; () for all before."""
    before: Release
    """The first release that no longer does; () for none so far."""

    def holds(self, version: str) -> bool:
        """Whether this version follows it; an unreadable version counts as the oldest."""
        release = read_release(version)
        return self.since <= release and not (self.before and self.before <= release)


#: A key holds the path of the cache directory, through XLA's autotune directory.
CACHE_PATH = Rule((0, 4, 36), (0, 11, 0))
#: A key holds the path of the cache directory where XLA's kernel cache is on.
KERNEL_CACHE_PATH = Rule((0, 4, 36), ())
#: With a size cap, an entry without its ``-atime`` file stops all writes.
ATIME_REQUIRED = Rule((), (0, 11, 2))

DIFFERS = "differs"
SAME = "same"
UNKNOWN = "unknown"


class FactDifference(NamedTuple):
    """One fact of two machines."""

    fact: str
    """The name of a field of :class:`Machine`."""
    answer: str
    """``differs``, ``same``, or ``unknown`` where one side has not recorded it."""
    left: Any = None
    right: Any = None


class Machine(NamedTuple):  # a dataclass takes 2 ms to make, in every process that has jax
    """The facts on which keys depend; None where nothing has recorded one.

    Their order is that in which a difference is named: the first explains the others.
    """

    jaxlib_version: "str | None" = None
    platform: "str | None" = None
    """As keys have it: ``cpu``, ``gpu``, ``tpu``."""
    device_kind: "str | None" = None
    """As JAX names it, such as ``NVIDIA H200`` or ``TPU v5e``."""
    platform_version: "str | None" = None
    """As the backend reports it; on GPUs it holds the versions of driver and toolkit."""
    cpu_features: "tuple[str, ...] | None" = None
    """As LLVM names them, such as ``+avx2`` and ``-xop``."""
    device_count: "int | None" = None
    """Devices of this platform in the process."""
    process_count: "int | None" = None
    """Processes of the program."""
    topology: "str | None" = None
    """JAX's own hash of all devices of the program (``accelerator_config`` of a key)."""
    codec: "str | None" = None
    xla_flags: "tuple[str, ...] | None" = None
    """The flags that JAX hashes, as they are spelled, sorted."""
    settings: "Mapping[str, Any] | None" = None
    """Those that the environment sets and that act on keys: see :mod:`.key_settings`."""
    jax_version: "str | None" = None
    """Not hashed, but another release traces most programs otherwise."""
    defaults: "Mapping[str, Any] | None" = None
    """The values of all settings that act on keys where the environment sets none."""

    @property
    def changed_settings(self) -> "dict[str, Any]":
        """The settings that the environment sets to another value than JAX's default."""
        defaults = self.defaults or {}
        settings = self.settings or {}
        return {n: v for n, v in settings.items() if n not in defaults or defaults[n] != v}

    def differences(self, other: "Machine") -> "Iterator[FactDifference]":
        """Yield each fact in the order of the fields, with whether it differs."""
        for fact in self._fields:
            own_value = getattr(self, fact)
            other_value = getattr(other, fact)
            is_known = own_value is not None and other_value is not None
            if fact == "settings" and is_known:
                own_value, other_value = self._set_otherwise(other)
            if fact != "defaults":
                answer = DIFFERS if own_value != other_value else SAME
                yield FactDifference(fact, answer if is_known else UNKNOWN, own_value, other_value)

    def _set_otherwise(self, other: "Machine") -> "tuple[dict[str, Any], dict[str, Any]]":
        """Return the settings that differ; a default that is not known is None."""
        defaults = self.defaults or other.defaults or {}
        sides = [{**defaults, **(side.settings or {})} for side in (self, other)]
        names = {*(self.settings or ()), *(other.settings or ())}
        apart = sorted(n for n in names if sides[0].get(n) != sides[1].get(n))
        return tuple({n: side.get(n) for n in apart} for side in sides)  # type: ignore[return-value]


def hashes_path(
    version: "str | None", caches: object = None, *, kernel_cache: "bool | None" = False
) -> bool:
    """Return whether the keys of a JAX contain the path of its cache.

    JAX hands the paths of XLA's own caches to XLA as compile options, which it hashes.

    Args:
        version: of JAX; an unknown one counts as one that hashes the path.
        caches: the value of :data:`jaxcache.core.names.XLA_CACHES`; None for JAX's default.
        kernel_cache: whether the options of an entry name XLA's kernel cache.
    """
    version = version or "0.4.36"
    chosen = AUTOTUNE_DIR if caches is None else str(caches)
    is_every = chosen == "all"
    if (kernel_cache or is_every or KERNEL_CACHE in chosen) and KERNEL_CACHE_PATH.holds(version):
        return True
    return (is_every or AUTOTUNE_DIR in chosen) and CACHE_PATH.holds(version)
