"""The output."""

import haiku as hk
import jax


def head(x):
    """Return the output of the network."""
    return jax.nn.tanh(hk.Linear(1)(x))
