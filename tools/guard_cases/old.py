"""A guard below JAX 0.6, where an exception would make every later call compile."""

import contextlib
import io
import warnings

import jax
from harness import case, equal, guard, main, ones, xla_compiles


@case("raise becomes warn, and one line says so")
def warns() -> None:
    step = jax.jit(lambda x: x * 2)
    step(ones(2))
    errors = io.StringIO()
    with warnings.catch_warnings(record=True) as caught, contextlib.redirect_stderr(errors):
        warnings.simplefilter("always")
        for _ in range(2):
            with guard():
                equal(xla_compiles(lambda: step(ones(3))) <= 1, True, "at most one compile")
    equal(len(caught), 1, "warnings")
    equal(errors.getvalue().count("guard warns instead of raising"), 1, "lines")
    with guard(action="count"):
        equal(xla_compiles(lambda: step(ones(3))), 0, "compiles of a warm call")


if __name__ == "__main__":
    main()
