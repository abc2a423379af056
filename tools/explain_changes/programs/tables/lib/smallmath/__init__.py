"""A library of one function."""

import jax.numpy as jnp


def smooth(x, width):
    """Return the running mean."""
    total = jnp.zeros_like(x)
    for shift in range(width):
        total = total + jnp.roll(x, shift)
    return total / width
