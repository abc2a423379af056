"""A recurrent network over a sequence, with lax.scan."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from parts import cell

BATCH = 4
DTYPE = np.float32
LAYERS = 2


@functools.partial(jax.jit, static_argnames="unroll")
def run(params, inputs, unroll):
    """Return the last state of each layer."""
    for weights in params:

        def step(state, x, weights=weights):
            state = cell(weights, state, x)
            return state, state

        start = jnp.zeros(inputs.shape[1:], inputs.dtype)
        last, inputs = jax.lax.scan(step, start, inputs, unroll=unroll)
        inputs = inputs * 0.5
    return last


@jax.jit
def score(state):
    """Return a number for each sequence."""
    return jnp.sum(jax.nn.relu(state), axis=-1)


rng = np.random.default_rng(0)
params = [rng.normal(size=(2, 8, 8)).astype(DTYPE) for _ in range(LAYERS)]
inputs = rng.normal(size=(6, BATCH, 8)).astype(DTYPE)
print(score(run(params, inputs, unroll=1)).sum())
