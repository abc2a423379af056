"""Constants: of arrays, of the environment, of a library."""

import functools
import os

import jax
import jax.numpy as jnp
import numpy as np
import smallmath
from parts import interpolate

BATCH = 8
DTYPE = np.float32
TABLE = np.array([0.1, 0.2, 0.4, 0.8], np.float32)
CURVE = np.linspace(0.0, 1.0, 2000, dtype=np.float32)
GAIN = float(os.environ.get("APP_GAIN", "1.5"))


@functools.partial(jax.jit, static_argnames="steps")
def look_up(index, steps):
    """Return rows of a table."""
    value = jnp.asarray(TABLE)[index]
    for _ in range(steps):
        value = value * 0.5
    return interpolate(value)


@jax.jit
def amplify(x):
    """Multiply by the gain of the environment."""
    return jnp.tanh(x * GAIN)


@jax.jit
def follow(x):
    """Return the distance to a curve."""
    return x - jnp.asarray(CURVE)


def stamp(x):
    """Add a number."""
    return jnp.cos(x) + 2.0


@jax.jit
def smooth(x):
    """Smooth by the library."""
    return smallmath.smooth(x, 3)


x = np.ones(BATCH, DTYPE)
print(look_up(np.arange(BATCH) % 4, steps=2).shape)
print(amplify(x).shape, follow(DTYPE(1.0)).shape)
print(jax.jit(stamp)(x).shape)
print(smooth(x).shape)
