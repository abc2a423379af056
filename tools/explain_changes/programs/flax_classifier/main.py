"""A classifier with Flax and Optax."""

import functools

import flax.linen as nn
import jax
import numpy as np
import optax
from parts import Block

BATCH = 8
DTYPE = np.float32
LAYERS = 2
RATE = 1e-3


class Classifier(nn.Module):
    """Blocks, then a layer of logits."""

    @nn.compact
    def __call__(self, x):
        for _ in range(LAYERS):
            x = Block()(x)
        x = nn.gelu(x)
        return nn.Dense(4)(x)


model = Classifier()
optimizer = optax.adam(RATE)


def loss(params, x, labels):
    """Return the mean cross-entropy."""
    logits = model.apply(params, x)
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


@jax.jit
def start(key, x):
    """Return parameters and the state of the optimizer."""
    params = model.init(key, x)
    return params, optimizer.init(params)


@functools.partial(jax.jit, static_argnames="steps")
def train(params, state, x, labels, steps):
    """Take a few steps of the optimizer."""
    for _ in range(steps):
        gradient = jax.grad(loss)(params, x, labels)
        updates, state = optimizer.update(gradient, state)
        params = optax.apply_updates(params, updates)
    return params, state


params, state = start(jax.random.key(0), np.ones((1, 8), np.float32))
x = np.ones((BATCH, 8), DTYPE)
params, state = train(params, state, x, np.zeros(BATCH, np.int32), steps=1)
print(jax.tree.leaves(params)[0].sum())
