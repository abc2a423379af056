"""The cell."""

import jax.numpy as jnp


def cell(weights, state, x):
    """Return the next state."""
    return jnp.tanh(x @ weights[0] + state @ weights[1])
