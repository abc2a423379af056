"""Operations without jit, and a gradient."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from parts import distance

BATCH = 8
DTYPE = np.float32


@functools.partial(jax.jit, static_argnames="steps")
def advance(x, steps):
    """Move a few steps."""
    for _ in range(steps):
        x = x - 0.1 * jax.grad(distance)(x)
    return x


def loss(x):
    """Return the sum of squares."""
    return jnp.sum(jnp.sin(x) ** 2)


x = np.linspace(0.1, 1.0, BATCH).astype(DTYPE)
print(jax.grad(loss)(x).shape)
print(jnp.sqrt(advance(x, steps=2)).shape)
print(jax.vmap(jnp.tanh)(x).shape)
