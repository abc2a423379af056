"""A bend."""

import jax.numpy as jnp


def bend(x):
    """Return a bent line."""
    return jnp.minimum(x, 0.5) + 0.25 * x
