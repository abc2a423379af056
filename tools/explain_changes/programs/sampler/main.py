"""A Metropolis sampler with JAX's random numbers."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from parts import log_density

BATCH = 16
DTYPE = np.float32
SCALE = 0.5


def propose(key, x):
    """Return a random step."""
    return x + SCALE * jax.random.normal(key, x.shape, x.dtype)


@functools.partial(jax.jit, static_argnames="steps")
def sample(seed, x, steps):
    """Take Metropolis steps of all chains."""
    key = jax.random.key(seed)
    for number in range(steps):
        first, second = jax.random.split(jax.random.fold_in(key, number))
        proposed = propose(first, x)
        ratio = jnp.exp(log_density(proposed) - log_density(x))
        accepted = jax.random.uniform(second, ratio.shape) < ratio
        x = jnp.where(accepted[:, None], proposed, x)
    return x


@jax.jit
def summarize(x):
    """Return the mean and a quantile of all chains."""
    return x.mean(axis=0), jnp.tanh(x).max(axis=0)


x = np.zeros((BATCH, 3), DTYPE)
print(summarize(sample(np.uint32(1), x, steps=2)))
