"""Print the layers that tell pairs of programs apart, as JSON."""

import json
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxcache.core.layers import LAYERS
from jaxcache.core.sketch import Sketch, make_sketch, read_sketch

X = jnp.ones((4, 4))
MESH = Mesh(np.array(jax.devices()[:2]), ("d",))
OTHER_MESH = Mesh(np.array(jax.devices()[:2]), ("e",))


def sketch(function: Callable[..., Any], *args: Any, **options: Any) -> Sketch:
    module = jax.jit(function, **options).lower(*args).compiler_ir("stablehlo")
    text = module.operation.get_asm(
        enable_debug_info=True, print_generic_op_form=True, large_elements_limit=8
    )
    read = read_sketch(make_sketch(text))
    assert read
    return read


def difference(left: Sketch, right: Sketch) -> "str | None":
    """Return the fewest layers without which both are equal; None where there are none."""
    return next((n for n in LAYERS if left.layers[n] == right.layers[n]), None)


def step(a, b):
    return {"loss": (jax.nn.relu(a @ b) * 0.5).sum()}


def renamed_result(a, b):
    return {"error": (jax.nn.relu(a @ b) * 0.5).sum()}


def other_constant(a, b):
    return {"loss": (jax.nn.relu(a @ b) * 0.25).sum()}


def two_lines(a, b):
    first = jnp.sin(a)
    second = jnp.cos(b)
    return {"loss": (first - second).sum()}


def swapped_lines(a, b):
    second = jnp.cos(b)
    first = jnp.sin(a)
    return {"loss": (first - second).sum()}


def swapped_arguments(b, a):
    return two_lines(a, b)


def swapped_operands(a, b):
    return {"loss": (jnp.cos(b) - jnp.sin(a)).sum()}


def two_constants(a, b):
    return (a * 2).sum() + (b * 3).sum()


def swapped_constants(a, b):
    return (a * 3).sum() + (b * 2).sum()


def other_operation(a, b):
    return {"loss": (jax.nn.gelu(a @ b) * 0.5).sum()}


def in_loop(constant: float) -> Callable[..., Any]:
    def step(a, b):
        return jax.lax.scan(lambda c, x: (jnp.tanh(c * constant + x), c), a[0], b)

    return step


def precise(a, b):
    return {"loss": (jax.nn.relu(jnp.matmul(a, b, precision="highest")) * 0.5).sum()}


def add_array(values: Any) -> Callable[..., Any]:
    return lambda a, b: a + b + values


def named(function: Callable[..., Any]) -> Callable[..., Any]:
    function.__name__ = "step"
    return function


PAIRS: "dict[str, tuple[Any, Any, dict[str, Any], dict[str, Any]]]" = {
    "same": (step, step, {}, {}),
    "result": (step, renamed_result, {}, {}),
    "constant": (step, other_constant, {}, {}),
    "lines": (two_lines, swapped_lines, {}, {}),
    "arguments": (two_lines, swapped_arguments, {}, {}),
    "operands": (two_lines, swapped_operands, {}, {}),
    "constants": (two_constants, swapped_constants, {}, {}),
    "operation": (step, other_operation, {}, {}),
    "loop": (in_loop(0.5), in_loop(0.25), {}, {}),
    "precision": (step, precise, {}, {}),
    "donation": (step_like := (lambda a, b: a * b), step_like, {}, {"donate_argnums": 0}),
    "donated": (step_like, step_like, {"donate_argnums": 0}, {"donate_argnums": 1}),
    "array": (add_array(np.arange(16.0).reshape(4, 4)), add_array(np.ones((4, 4))), {}, {}),
    "sharding": (
        step,
        step,
        {"in_shardings": NamedSharding(MESH, PartitionSpec("d"))},
        {"in_shardings": NamedSharding(MESH, PartitionSpec(None, "d"))},
    ),
    "mesh": (
        step,
        step,
        {"in_shardings": NamedSharding(MESH, PartitionSpec("d"))},
        {"in_shardings": NamedSharding(OTHER_MESH, PartitionSpec("e"))},
    ),
}
results = {
    name: difference(
        sketch(named(left), X, X, **left_options), sketch(named(right), X, X, **right_options)
    )
    for name, (left, right, left_options, right_options) in PAIRS.items()
}
print(json.dumps(results))
