"""A network with Haiku."""

import functools

import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
from parts import head

BATCH = 8
DTYPE = np.float32
LAYERS = 2
RATE = 0.1


def network(x):
    """Return one number for each row."""
    for _ in range(LAYERS):
        x = hk.Linear(8)(x)
        x = jax.nn.relu(x)
    return head(x)


model = hk.without_apply_rng(hk.transform(network))


def loss(params, x):
    """Return the mean of the squared outputs."""
    return jnp.mean(model.apply(params, x) ** 2)


@jax.jit
def start(key, x):
    """Return the parameters."""
    return model.init(key, x)


@functools.partial(jax.jit, static_argnames="steps")
def train(params, x, steps):
    """Take a few steps."""
    for _ in range(steps):
        gradient = jax.grad(loss)(params, x)
        params = jax.tree.map(lambda p, g: p - RATE * g, params, gradient)
    return params


params = start(jax.random.key(0), np.ones((1, 8), np.float32))
x = np.ones((BATCH, 8), DTYPE)
print(jax.tree.leaves(train(params, x, steps=1))[0].sum())
