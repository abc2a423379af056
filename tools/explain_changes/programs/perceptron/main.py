"""A perceptron, trained with gradient descent written by hand."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from parts import dense, squared_error

BATCH = 8
DTYPE = np.float32
LAYERS = 2
RATE = 0.1


def forward(params, x):
    """Return the prediction for each row of ``x``."""
    for weights in params[:-1]:
        x = jax.nn.gelu(dense(weights, x))
    return dense(params[-1], x)


def loss(params, x, y):
    """Return the mean squared error."""
    return squared_error(forward(params, x), y)


@functools.partial(jax.jit, static_argnames="steps")
def train(params, x, y, steps):
    """Take a few steps of gradient descent."""
    for _ in range(steps):
        gradient = jax.grad(loss)(params, x, y)
        params = jax.tree.map(lambda p, g: p - RATE * g, params, gradient)
    return params


@jax.jit
def predict(params, x):
    """Return the index of the largest output."""
    return jnp.argmax(forward(params, x), axis=-1)


rng = np.random.default_rng(0)
params = [rng.normal(size=(16, 16)).astype(np.float32) for _ in range(LAYERS)]
x = rng.normal(size=(BATCH, 16)).astype(DTYPE)
params = train(params, x, np.ones_like(x), steps=2)
print(predict(params, x).sum())
