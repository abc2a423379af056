"""An oscillator, solved with Diffrax."""

import functools

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
from parts import force

BATCH = 3
DTYPE = np.float32
DAMPING = 0.1


def derivative(_, state, stiffness):
    """Return the derivative of position and speed."""
    position, speed = state
    return speed, force(position, stiffness) - DAMPING * speed


@functools.partial(jax.jit, static_argnames="steps")
def solve(position, stiffness, steps):
    """Return the position at the end."""
    solution = diffrax.diffeqsolve(
        diffrax.ODETerm(derivative),
        diffrax.Heun(),
        t0=0.0,
        t1=1.0,
        dt0=0.1,
        y0=(position, jnp.zeros_like(position)),
        args=stiffness,
        max_steps=steps,
    )
    return solution.ys[0][-1]


@jax.jit
def measure(position):
    """Return the size of the motion."""
    return jnp.sqrt(jnp.sum(position**2))


position = np.ones(BATCH, DTYPE)
print(measure(solve(position, np.full(BATCH, 2.0, DTYPE), steps=64)))
