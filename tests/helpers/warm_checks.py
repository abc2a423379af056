"""What the tests of ``warm`` and ``run`` ask of a report."""

from collections.abc import Callable
from typing import Any

STEP = """
import jax, jax.numpy as jnp
@jax.jit
def step(x):
    return jnp.sin(x) @ x
step(jnp.ones((8, 8)))
"""

Warm = Callable[..., dict[str, Any]]


def outcomes(document: dict[str, Any], module: str | None = None) -> set[tuple[str, str]]:
    """Outcome and reason of every module, or of those of one name."""
    modules = document["modules"]
    return {(m["outcome"], m["reason"]) for m in modules if module in (None, m["module"])}


def only(document: dict[str, Any], module: str) -> dict[str, Any]:
    """The one row about a module."""
    (found,) = [m for m in document["modules"] if m["module"] == module]
    return found


def assert_counts_are_jax_own(document: dict[str, Any]) -> None:
    """The report's sums equal the counters of JAX's monitoring."""
    summary = document["summary"]
    counters = [p["counters"] for p in document["processes"]]

    def rows(*counted: str) -> int:
        return sum(m["occurrences"] for m in document["modules"] if m["counted"] in counted)

    assert rows("hit") == sum(c["hits"] for c in counters) == summary["hits"]
    assert rows("miss") == sum(c["misses"] for c in counters)
    assert rows("hit", "miss", "request") == sum(c["requests"] for c in counters)
    assert {m["counted"] for m in document["modules"] if m["outcome"] == "written"} <= {"miss"}
    parts = ("hits", "written", "skipped", "uncacheable", "errors")
    assert summary["compile_requests"] == sum(summary[p] for p in parts)
