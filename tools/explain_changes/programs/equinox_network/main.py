"""A network with Equinox."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from parts import Residual

BATCH = 8
DTYPE = np.float32
LAYERS = 2
RATE = 0.05


class Network(eqx.Module):
    """Residual layers and an output."""

    layers: list
    output: eqx.nn.Linear

    def __init__(self, key):
        keys = jax.random.split(key, LAYERS + 1)
        self.layers = [Residual(k) for k in keys[1:]]
        self.output = eqx.nn.Linear(8, 2, key=keys[0])

    def __call__(self, x):
        for layer in self.layers:
            x = layer(x)
        x = jax.nn.softplus(x)
        return self.output(x)


def loss(network, x):
    """Return the mean of the squared outputs."""
    return jnp.mean(jax.vmap(network)(x) ** 2)


@eqx.filter_jit
def evaluate(network, x):
    """Return the loss."""
    return loss(network, x)


@functools.partial(jax.jit, static_argnames="steps")
def train(network, x, steps):
    """Take a few steps."""
    for _ in range(steps):
        gradient = jax.grad(loss)(network, x)
        network = jax.tree.map(lambda p, g: p - RATE * g, network, gradient)
    return network


network = jax.jit(Network)(jax.random.key(0))
x = np.ones((BATCH, 8), DTYPE)
network = train(network, x, steps=1)
print(evaluate(network, x))
