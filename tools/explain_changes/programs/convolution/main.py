"""A convolutional network."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from parts import convolve, pool

BATCH = 2
DTYPE = np.float32
LAYERS = 2
RATE = 0.01


def forward(kernels, images):
    """Return the mean of each channel."""
    for kernel in kernels:
        images = pool(jax.nn.relu(convolve(images, kernel)))
    return images.mean(axis=(1, 2))


def loss(kernels, images):
    """Return the negative logarithm of the first channel."""
    return -jnp.log(1.0 + forward(kernels, images)[:, 0] ** 2).mean()


@functools.partial(jax.jit, static_argnames="steps")
def train(kernels, images, steps):
    """Take a few steps."""
    for _ in range(steps):
        gradient = jax.grad(loss)(kernels, images)
        kernels = jax.tree.map(lambda p, g: p - RATE * g, kernels, gradient)
    return kernels


rng = np.random.default_rng(0)
kernels = [rng.normal(size=(3, 3, 4, 4)).astype(DTYPE) for _ in range(LAYERS)]
images = rng.normal(size=(BATCH, 16, 16, 4)).astype(DTYPE)
kernels = train(kernels, images, steps=1)
print(jax.jit(forward)(kernels, images).sum())
