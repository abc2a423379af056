"""Print the pairs of programs that other layers tell apart than those expected, as JSON."""

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


def sketch(function: Callable[..., Any], **options: Any) -> Sketch:
    """Sketch a function of two arrays, under the name that all of them have."""
    function.__name__ = "step"
    module = jax.jit(function, **options).lower(X, X).compiler_ir("stablehlo")
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


def multiply(a, b):
    return a * b


def split(mesh: Mesh, *axes: "str | None") -> NamedSharding:
    return NamedSharding(mesh, PartitionSpec(*axes))


#: Of each pair: the layers that are expected, and both programs.
PAIRS: "dict[str, tuple[str | None, Sketch, Sketch]]" = {
    "same": ("", sketch(step), sketch(step)),
    "result": ("names", sketch(step), sketch(renamed_result)),
    "constant": ("constants", sketch(step), sketch(other_constant)),
    "lines": ("order", sketch(two_lines), sketch(swapped_lines)),
    "arguments": ("names+order+arguments", sketch(two_lines), sketch(swapped_arguments)),
    "operands": (None, sketch(two_lines), sketch(swapped_operands)),
    "constants": ("constants", sketch(two_constants), sketch(swapped_constants)),
    "operation": (None, sketch(step), sketch(other_operation)),
    "loop": ("constants", sketch(in_loop(0.5)), sketch(in_loop(0.25))),
    "precision": ("precision", sketch(step), sketch(precise)),
    "donation": ("donation", sketch(multiply), sketch(multiply, donate_argnums=0)),
    "donated": (
        "donation",
        sketch(multiply, donate_argnums=0),
        sketch(multiply, donate_argnums=1),
    ),
    "array": (
        "constants",
        sketch(add_array(np.arange(16.0).reshape(4, 4))),
        sketch(add_array(np.ones((4, 4)))),
    ),
    "sharding": (
        "sharding",
        sketch(step, in_shardings=split(MESH, "d")),
        sketch(step, in_shardings=split(MESH, None, "d")),
    ),
    "mesh": (
        "sharding",
        sketch(step, in_shardings=split(MESH, "d")),
        sketch(step, in_shardings=split(OTHER_MESH, "e")),
    ),
}
found = {name: difference(left, right) for name, (_, left, right) in PAIRS.items()}
print(json.dumps({n: layers for n, layers in found.items() if layers != PAIRS[n][0]}))
