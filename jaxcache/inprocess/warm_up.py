"""``jaxcache.warm_up()`` and ``explain_miss()``: compile, load or explain one call beforehand."""

import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from jaxcache.inprocess import watch

if TYPE_CHECKING:
    from jaxcache.cache.explain.sides import Difference, Explanation
    from jaxcache.render.view import Block
    from jaxcache.warm.report.report import Report


@dataclass(frozen=True, repr=False)
class Prediction(watch.Printable):
    """The outcome that a call of a function would have."""

    outcome: str
    """``in-memory``, ``hit`` or ``miss``."""
    module: str | None
    key: str | None
    summary: str
    """The same as one sentence."""
    explanation: "Explanation | None" = None
    """For a miss, what differs from the nearest entry or earlier compile."""

    @property
    def differences(self) -> "tuple[Difference, ...]":
        """The parts of the key that differ from the nearest one known, if there is any."""
        comparisons = self.explanation.comparisons if self.explanation else ()
        return tuple(d for c in comparisons if c.left for d in c.differences)

    def _blocks(self) -> "Iterable[Block]":
        yield self.summary
        if self.differences and self.explanation:
            from jaxcache.render.explain import explain_view

            yield from explain_view(self.explanation, "").page or ()


def explain_miss(function: Any, *args: Any, **kwargs: Any) -> Prediction:
    """Explain why the call ``function(*args, **kwargs)`` would compile, or why not.

    >>> jaxcache.explain_miss(step, x).outcome
    'miss'

    The function is traced and lowered, which takes what tracing takes; it is neither compiled nor
    run, and the cache is only read. Arrays may be given as ``jax.ShapeDtypeStruct``.

    Args:
        function: what ``jax.jit`` or ``jax.pmap`` returned.

    Raises:
        UsageError: ``not-jitted``
        NoJaxError: ``unknown-jax`` if no adapter supports this jax.
    """
    from jaxcache.cache.explain.answer import compare_with_nearest
    from jaxcache.cache.explain.sides import Explanation, open_cached_facts
    from jaxcache.errors import NoJaxError

    require_jitted(function, "explain_miss")
    earlier = watch.last_compiles()
    with watch.Observation() as observation:
        listener = observation.listener
        if listener is None:
            raise NoJaxError(observation.unobserved[0], code="unknown-jax")
        lowered = function.lower(*args, **kwargs)
        event = listener.ask(lowered.compile)
        if event is None:
            text = "this process has compiled it already, and keeps it in memory"
            return Prediction("in-memory", None, None, text)
        observation.take(event)
        (compile_,) = (c for c in observation.compared() if c.reason == "not-compiled")
        directory = observation.cache_dir
    cache = open_cached_facts(directory) if directory else None
    module = compile_.module
    key = compile_.key or ""
    if cache and key in cache.keys_of(module):
        text = f"{module} is in {directory}, and would be retrieved"
        return Prediction("hit", module, key, text)
    own = [c for c in earlier if c.module == module and c.source == compile_.source]
    if own:
        new = cache.complete(compile_) if cache else compile_
        comparisons = [compare_with_nearest(own, new)]
    else:
        comparisons = observation.explain(key, cache)
    explanation = Explanation(directory or "no cache", "this call", 0, tuple(comparisons))
    text = f"{module} would be compiled: {_why(explanation, directory)}"
    return Prediction("miss", module, key, text, explanation)


def require_jitted(function: Any, caller: str) -> None:
    """Refuse a function that JAX cannot lower.

    Raises:
        UsageError: ``not-jitted``
    """
    from jaxcache.errors import UsageError

    if not hasattr(function, "lower"):
        raise UsageError(
            f"{function!r} is not jitted: it has no lower()",
            code="not-jitted",
            hint=f"jaxcache.{caller}(jax.jit(function), …)",
        )


def _why(explanation: "Explanation", directory: str) -> str:
    from jaxcache.warm.report.causes import describe_comparison

    if not directory:
        return "JAX has no cache directory; jaxcache.enable() sets one"
    (first,) = explanation.comparisons
    return describe_comparison(first)


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
    with watch.Observation() as observation:
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
    """Return whether an array is committed to devices; None if it is not an array."""
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
