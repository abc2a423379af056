"""Layers and losses."""

import jax.numpy as jnp


def dense(weights, x):
    """Multiply with a matrix of weights."""
    return x @ weights


def squared_error(prediction, target):
    """Return the mean squared error."""
    return jnp.mean((prediction - target) ** 2)
