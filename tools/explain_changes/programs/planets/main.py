"""Planets under gravity, with fori_loop and vmap."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from parts import attraction

BATCH = 6
DTYPE = np.float32
DT = 0.01


def accelerations(positions, masses):
    """Return the sum of all attractions of each planet."""
    pair = jax.vmap(jax.vmap(attraction, (None, 0)), (0, None))(positions, positions)
    return jnp.sum(pair * masses[None, :, None], axis=1)


def energy(state, masses):
    """Return the kinetic energy."""
    return 0.5 * jnp.sum(masses[:, None] * state[1] ** 2)


@functools.partial(jax.jit, static_argnames="steps")
def simulate(state, masses, steps):
    """Advance the planets with leapfrog."""

    def step(_, state):
        x, v = state
        v = v + DT * accelerations(x, masses)
        return x + DT * v, v

    return jax.lax.fori_loop(0, steps, step, state)


rng = np.random.default_rng(0)
masses = np.ones(BATCH, DTYPE)
state = (rng.normal(size=(BATCH, 3)).astype(DTYPE), np.zeros((BATCH, 3), DTYPE))
state = simulate(state, masses, steps=10)
print(jax.jit(energy)(state, masses))
