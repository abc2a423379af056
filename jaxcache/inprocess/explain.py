"""``jaxcache.explain_miss()``: why a call would compile, without compiling it."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from jaxcache.inprocess import watch

if TYPE_CHECKING:
    from jaxcache.cache.explain.cached_facts import CachedFacts
    from jaxcache.cache.explain.sides import Compile, Difference, Explanation
    from jaxcache.render.view import Block

#: Entries of the module, the newest ones, that the call is compared with.
_CANDIDATES = 20


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
    """Say why the call ``function(*args, **kwargs)`` would compile, or that it would not.

    >>> jaxcache.explain_miss(step, x).outcome
    'miss'

    The function is traced and lowered, which takes what tracing takes; it is neither compiled nor
    run, and the cache is only read. Arrays may be given as ``jax.ShapeDtypeStruct``.

    Args:
        function: what ``jax.jit`` or ``jax.pmap`` returned.

    Raises:
        UsageError: ``not-jitted``
        NoJaxError: ``unknown-jax`` where nobody here knows this jax.
    """
    from jaxcache.cache.explain.cached_facts import open_cached_facts
    from jaxcache.errors import NoJaxError

    require_jitted(function, "explain_miss")
    earlier = watch.last_compiles()
    with watch.watching() as observation:
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
    explanation = _compare(compile_, cache, earlier, directory)
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


def _compare(
    wanted: "Compile", cache: "CachedFacts | None", earlier: "Iterable[Compile]", directory: str
) -> "Explanation":
    """Compare it with the entries of its module, and with what this process has compiled."""
    from jaxcache.cache.explain.compare import explain
    from jaxcache.cache.explain.sides import Compile, Side

    def candidates() -> "Iterator[Compile]":
        yield from (c for c in earlier if c.module == wanted.module)
        if cache:
            for key in cache.keys_by_use(wanted.module)[:_CANDIDATES]:
                yield cache.complete(Compile(wanted.module, key))

    by_key = {c.key: c for c in candidates()}
    left = Side(directory or "no cache", tuple(by_key.values()), is_run=False)
    return explain(left, Side("this call", (cache.complete(wanted) if cache else wanted,)))


def _why(explanation: "Explanation", directory: str) -> str:
    from jaxcache.warm.report.causes import describe_comparison

    if not directory:
        return "JAX has no cache directory; jaxcache.enable() sets one"
    comparisons = [c for c in explanation.comparisons if c.left and c.differences]
    if not comparisons:
        return f"{directory} has no entry of that name"
    first = comparisons[0]
    if first.left and first.left.key == first.right.key:
        return first.differences[0].meaning
    return describe_comparison(first)
