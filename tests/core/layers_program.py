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


def step(
    activation: Callable[..., Any] = jax.nn.relu,
    *,
    result: str = "loss",
    factor: float = 0.5,
    precision: Any = None,
) -> Callable[..., Any]:
    def step(a, b):
        return {result: (activation(jnp.matmul(a, b, precision=precision)) * factor).sum()}

    return step


def two_lines(a, b):
    first = jnp.sin(a)
    second = jnp.cos(b)
    return {"loss": (first - second).sum()}


def swapped_lines(a, b):
    second = jnp.cos(b)
    first = jnp.sin(a)
    return {"loss": (first - second).sum()}


def swapped_operands(a, b):
    return {"loss": (jnp.cos(b) - jnp.sin(a)).sum()}


def two_constants(left: float, right: float) -> Callable[..., Any]:
    return lambda a, b: (a * left).sum() + (b * right).sum()


def in_loop(constant: float) -> Callable[..., Any]:
    return lambda a, b: jax.lax.scan(lambda c, x: (jnp.tanh(c * constant + x), c), a[0], b)


def add_array(values: Any) -> Callable[..., Any]:
    return lambda a, b: a + b + values


def multiply(a, b):
    return a * b


def split(name: str, *before: None) -> Sketch:
    """Sketch it with an argument that is split along one axis of a mesh."""
    mesh = Mesh(np.array(jax.devices()[:2]), (name,))
    return sketch(step(), in_shardings=NamedSharding(mesh, PartitionSpec(*before, name)))


STEP, LINES = sketch(step()), sketch(two_lines)
DONATES = [sketch(multiply, donate_argnums=number) for number in (0, 1)]
#: Of each pair: the layers that are expected, and both programs.
PAIRS: "dict[str, tuple[str | None, Sketch, Sketch]]" = {
    "same": ("", STEP, sketch(step())),
    "result": ("names", STEP, sketch(step(result="error"))),
    "constant": ("constants", STEP, sketch(step(factor=0.25))),
    "operation": (None, STEP, sketch(step(jax.nn.gelu))),
    "precision": ("precision", STEP, sketch(step(precision="highest"))),
    "lines": ("order", LINES, sketch(swapped_lines)),
    "arguments": ("names+order+arguments", LINES, sketch(lambda b, a: two_lines(a, b))),
    "operands": (None, LINES, sketch(swapped_operands)),
    "constants": ("constants", sketch(two_constants(2, 3)), sketch(two_constants(3, 2))),
    "loop": ("constants", sketch(in_loop(0.5)), sketch(in_loop(0.25))),
    "array": ("constants", sketch(add_array(np.eye(4))), sketch(add_array(np.ones((4, 4))))),
    "donation": ("donation", sketch(multiply), DONATES[0]),
    "donated": ("donation", DONATES[0], DONATES[1]),
    "sharding": ("sharding", split("d"), split("d", None)),
    "mesh": ("sharding", split("d"), split("e")),
}
told = {}
for name, (expected, left, right) in PAIRS.items():
    # The fewest layers without which both are equal; None where there are none.
    found = next((n for n in LAYERS if left.layers[n] == right.layers[n]), None)
    if found != expected:
        told[name] = found
print(json.dumps(told))
