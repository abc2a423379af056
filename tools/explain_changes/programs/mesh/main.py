"""A matrix product on a mesh of four devices."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from parts import activate

BATCH = 8
DTYPE = np.float32


@functools.partial(jax.jit, static_argnames="steps")
def product(rows, weights, steps):
    """Multiply a few times."""
    for _ in range(steps):
        rows = activate(rows @ weights)
    return rows


@jax.jit
def total(rows):
    """Return the sum of the absolute values."""
    return jnp.sum(jnp.abs(rows))


mesh = Mesh(np.array(jax.devices()[:4]).reshape(4, 1), ("x", "y"))
rows = jax.device_put(np.ones((BATCH, 16), DTYPE), NamedSharding(mesh, PartitionSpec("x", "y")))
weights = jax.device_put(np.ones((16, 16), DTYPE), NamedSharding(mesh, PartitionSpec()))
print(total(product(rows, weights, steps=2)))
