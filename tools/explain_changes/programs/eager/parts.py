"""A distance."""

import jax.numpy as jnp


def distance(x):
    """Return the distance to one."""
    return jnp.sum((x - 1.0) ** 2)
