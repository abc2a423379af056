"""``jaxcache.warm_up()``: compile or load for a signature before the first request needs it."""

import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from jaxcache.inprocess import watch
from jaxcache.inprocess.explain import require_jitted

if TYPE_CHECKING:
    from jaxcache.render.view import Block
    from jaxcache.warm.report.report import Report


@dataclass(frozen=True, repr=False)
class WarmUp(watch.Printable):
    """The warm-up of one signature of a function."""

    function: str
    outcome: str
    """``loaded`` from the cache, ``compiled``, or ``in-memory``, where nothing was left to do."""
    seconds: float
    executed: bool
    """Whether the program ran once, on zeros."""
    arguments: "dict[str, int]"
    """How many arrays of each kind: ``committed`` to devices, ``uncommitted``, and
    ``assumed-uncommitted``, which are the ``jax.ShapeDtypeStruct`` without a sharding."""
    report: "Report"
    """All compiles meanwhile, also those of operations that tracing runs; ``phases``."""

    def _blocks(self) -> "Iterable[Block]":
        from jaxcache.units import format_duration

        ran = ", and executed on zeros" if self.executed else ""
        yield f"{self.function}: {self.outcome} in {format_duration(self.seconds)}{ran}"
        if count := self.arguments.get("assumed-uncommitted"):
            yield (
                f"{count} of {sum(self.arguments.values())} arrays are assumed to be on no "
                "particular device; if calls pass committed arrays, give each "
                "jax.ShapeDtypeStruct its sharding"
            )


def warm_up(function: Any, *args: Any, execute: "str | None" = None, **kwargs: Any) -> WarmUp:
    """Fill JAX's caches in this process for calls like ``function(*args, **kwargs)``.

    >>> jaxcache.warm_up(step, jax.ShapeDtypeStruct((8, 128), "float32"))  # doctest: +SKIP
    step: loaded in 0.2 s

    The function is traced, lowered, and loaded from the cache or compiled; it is not run. Arrays
    may be given as ``jax.ShapeDtypeStruct``: with its sharding for arrays that are committed to
    devices, without for others. A call with arrays of the other kind compiles or loads again.

    Args:
        function: what ``jax.jit`` or ``jax.pmap`` returned.
        execute: ``zeros`` also calls the function once, with zeros in place of all arrays, and so
            with all its effects. Only this takes away the first execution of XLA, 20 to 25 ms.

    Raises:
        UsageError: ``not-jitted``, or zeros cannot be made of an argument.
    """
    import jax

    from jaxcache.errors import UsageError

    require_jitted(function, "warm_up")
    if execute not in (None, "zeros"):
        raise UsageError(f'execute must be None or "zeros" (got {execute!r})')
    with watch.watching() as observation:
        started = time.monotonic()
        lowered = function.lower(*args, **kwargs)
        events_before = len(observation.compiles())
        lowered.compile()
        requests = observation.compiles()[events_before:]
        if execute:
            zero_args, zero_kwargs = jax.tree_util.tree_map(_make_zeros, (args, kwargs))
            jax.block_until_ready(function(*zero_args, **zero_kwargs))
        seconds = time.monotonic() - started
    outcome = "in-memory"
    if requests:
        outcome = "loaded" if requests[-1].outcome == "hit" else "compiled"
    return WarmUp(
        function=getattr(function, "__name__", repr(function)),
        outcome=outcome,
        seconds=seconds,
        executed=execute is not None,
        arguments=dict(
            Counter(filter(None, map(_kind, jax.tree_util.tree_leaves((args, kwargs)))))
        ),
        report=observation.report,
    )


def _kind(leaf: Any) -> "str | None":
    """Return whether an array is committed to devices; None for what is no array."""
    if not hasattr(leaf, "dtype"):
        return None
    if hasattr(leaf, "committed"):
        return "committed" if leaf.committed else "uncommitted"
    if not hasattr(leaf, "sharding"):  # of NumPy
        return "uncommitted"
    return "committed" if leaf.sharding is not None else "assumed-uncommitted"


def _make_zeros(leaf: Any) -> Any:
    """Return zeros of the same shape, dtype, sharding and commitment."""
    import jax
    import numpy as np

    from jaxcache.errors import UsageError

    kind = _kind(leaf)
    if kind is None:
        return leaf
    if getattr(leaf, "weak_type", False) or jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.extended):
        raise UsageError(
            f"zeros cannot be made of {leaf!r}: it has a weak type or is a random key",
            hint="call the function yourself with such an argument",
        )
    zeros = np.zeros(leaf.shape, leaf.dtype)
    if not hasattr(leaf, "sharding"):
        return zeros
    return jax.device_put(zeros, leaf.sharding if kind == "committed" else None)
