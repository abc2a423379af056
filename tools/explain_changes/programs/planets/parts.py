"""Forces."""

import jax.numpy as jnp


def attraction(a, b):
    """Return the attraction of one planet to another."""
    offset = b - a
    return offset / (jnp.sum(offset * offset) + 0.01) ** 1.5
