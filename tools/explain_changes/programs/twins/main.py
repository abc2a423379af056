"""Functions of one name: of a factory, and lambdas."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from parts import bend

BATCH = 8
DTYPE = np.float32
POWERS = (1.5, 2.5, 3.5, 4.5)


def make(power):
    """Return a layer with a power of its own."""

    @jax.jit
    def layer(x):
        return jnp.abs(x) ** power

    return layer


@functools.partial(jax.jit, static_argnames="steps")
def fold(x, steps):
    """Bend a few times."""
    for _ in range(steps):
        x = bend(x)
    return x


layers = [make(power) for power in POWERS]
double = jax.jit(lambda x: jnp.sin(x) * 2.0)
triple = jax.jit(lambda x: jnp.cos(x) * 3.0)
x = np.linspace(0.0, 1.0, BATCH).astype(DTYPE)
for layer in layers:
    print(layer(x).shape)
print(double(x).shape, triple(x).shape)
print(fold(x, steps=2).shape)
