"""A scanned network with a frozen configuration."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
from parts import block, soft

BATCH = 8
DTYPE = np.float32


@dataclasses.dataclass(frozen=True)
class Config:
    """What the network is made of."""

    depth: int = 3
    gain: float = 0.5


def forward(params, x, config):
    """Return the result of all blocks."""

    def step(x, weights):
        return block(weights, x), None

    x, _ = jax.lax.scan(step, x, params[: config.depth])
    return soft(x) * config.gain


@functools.partial(jax.jit, static_argnames="config")
def train(params, x, config):
    """Take one step of gradient descent."""
    gradient = jax.grad(lambda p: jnp.sum(forward(p, x, config) ** 2))(params)
    return params - 0.1 * gradient


@jax.jit
def measure(params):
    """Return the size of the weights."""
    return jnp.sqrt(jnp.sum(params**2))


params = np.full((4, 6, 6), 0.1, DTYPE)
params = train(params, np.ones((BATCH, 6), DTYPE), config=Config(depth=3))
print(measure(params))
