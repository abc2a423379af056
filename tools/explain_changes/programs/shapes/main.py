"""Calls of several shapes, with a weak type and dictionaries."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from parts import center

BATCH = 8
DTYPE = np.float32
SIZES = (4, 6)


@jax.jit
def scale(x, factor):
    """Multiply by a factor, which has a weak type."""
    return x * factor


@jax.jit
def update(state, rate):
    """Take one step."""
    weight = state["weight"] * (1.0 - rate)
    bias = state["bias"] - rate
    return {"weight": weight, "bias": bias}


@functools.partial(jax.jit, static_argnames="steps")
def combine(rows, columns, steps):
    """Multiply two matrices after a function of each."""
    low = jnp.tanh(rows)
    high = jnp.exp(columns)
    for _ in range(steps):
        low = low + 1.0
    return {"score": low @ high}


print(scale(np.ones(BATCH, jnp.bfloat16), 2.0).shape)
state = {"weight": np.ones((BATCH, 4), DTYPE), "bias": np.zeros(4, DTYPE)}
print(update(state, DTYPE(0.1))["weight"].shape)
rows = np.ones((BATCH, 5), DTYPE)
columns = np.ones((5, 3), DTYPE)
print(len(combine(rows, columns, steps=2)))
for size in SIZES:
    print(jax.jit(center)(np.arange(size, dtype=DTYPE)).shape)
