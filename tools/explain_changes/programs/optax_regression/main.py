"""Linear regression with Optax."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
from parts import features

BATCH = 8
DTYPE = np.float32
RATE = 1e-2

optimizer = optax.sgd(RATE)


def loss(params, x, y):
    """Return the error, with a penalty."""
    prediction = features(x) @ params["w"] + params["b"]
    return jnp.mean((prediction - y) ** 2) + 1e-4 * jnp.sum(params["w"] ** 2)


@functools.partial(jax.jit, static_argnames="steps")
def train(params, state, x, y, steps):
    """Take a few steps of the optimizer."""
    for _ in range(steps):
        gradient = jax.grad(loss)(params, x, y)
        updates, state = optimizer.update(gradient, state)
        params = optax.apply_updates(params, updates)
    return params, state


params = {"w": np.zeros(4, np.float32), "b": np.float32(0.0)}
x = np.ones((BATCH, 4), DTYPE)
params, state = train(params, optimizer.init(params), x, np.ones(BATCH, DTYPE), steps=2)
print(jax.jit(loss)(params, x, np.ones(BATCH, DTYPE)))
