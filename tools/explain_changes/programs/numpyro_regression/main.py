"""Variational inference with NumPyro."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.infer import SVI, Trace_ELBO
from numpyro.infer.autoguide import AutoNormal
from parts import design

BATCH = 8
DTYPE = np.float32
RATE = 0.01


def model(x, y):
    """Linear regression with three parameters."""
    slope = numpyro.sample("slope", dist.Normal(0.0, 1.0))
    intercept = numpyro.sample("intercept", dist.Normal(0.0, 2.0))
    noise = numpyro.sample("noise", dist.Exponential(1.0))
    mean = jnp.tanh(slope * design(x)) + intercept
    numpyro.sample("y", dist.Normal(mean, noise), obs=y)


svi = SVI(model, AutoNormal(model), numpyro.optim.SGD(RATE), Trace_ELBO())


@functools.partial(jax.jit, static_argnames="steps")
def train(seed, x, y, steps):
    """Take a few steps of inference."""
    state = svi.init(jax.random.key(seed), x, y)
    for _ in range(steps):
        state, _ = svi.update(state, x, y)
    return svi.get_params(state)


x = np.linspace(0.0, 1.0, BATCH).astype(DTYPE)
print(train(np.uint32(0), x, 2 * x, steps=1))
