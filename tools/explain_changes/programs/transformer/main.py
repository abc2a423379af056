"""A decoder with causal attention."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from parts import attend, normalize

BATCH = 2
DTYPE = np.int32
LAYERS = 2
WIDTH = 16


def forward(params, tokens):
    """Return the logits."""
    x = params["embedding"][tokens]
    for block in params["blocks"]:
        x = x + attend(block, normalize(x))
        x = x + jax.nn.gelu(normalize(x) @ block["up"]) @ block["down"]
    return normalize(x) @ params["embedding"].T


def loss(params, tokens):
    """Return the mean cross-entropy of the next token."""
    logits = jax.nn.log_softmax(forward(params, tokens[:, :-1]))
    return -jnp.take_along_axis(logits, tokens[:, 1:, None], axis=-1).mean()


@functools.partial(jax.jit, static_argnames="steps")
def train(params, tokens, steps):
    """Take a few steps of gradient descent."""
    for _ in range(steps):
        gradient = jax.grad(loss)(params, tokens)
        params = jax.tree.map(lambda p, g: p - 0.1 * g, params, gradient)
    return params


@jax.jit
def infer(params, tokens):
    """Return the most likely next token."""
    return jnp.argmax(forward(params, tokens)[:, -1], axis=-1)


rng = np.random.default_rng(0)


def weights(*shape):
    """Return random weights."""
    return 0.02 * rng.normal(size=shape).astype(np.float32)


def block():
    """Return the weights of one block."""
    return {
        "qkv": weights(WIDTH, 3 * WIDTH),
        "out": weights(WIDTH, WIDTH),
        "up": weights(WIDTH, 4 * WIDTH),
        "down": weights(4 * WIDTH, WIDTH),
    }


params = {"embedding": weights(32, WIDTH), "blocks": [block() for _ in range(LAYERS)]}
tokens = (np.arange(BATCH * 9) % 32).reshape(BATCH, 9).astype(DTYPE)
params = train(params, tokens, steps=1)
for length in (4, 8):
    print(infer(params, tokens[:, :length]).sum())
