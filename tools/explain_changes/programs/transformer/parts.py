"""Attention and normalization."""

import jax
import jax.numpy as jnp

HEADS = 4


def normalize(x):
    """Scale each token to unit variance."""
    return x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-6)


def attend(block, x):
    """Apply causal attention."""
    batch, time, width = x.shape
    q, k, v = jnp.split(x @ block["qkv"], 3, axis=-1)
    q, k, v = (t.reshape(batch, time, HEADS, width // HEADS) for t in (q, k, v))
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / (width // HEADS) ** 0.5
    scores = jnp.where(jnp.tril(jnp.ones((time, time), bool)), scores, -1e9)
    mixed = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), v)
    return mixed.reshape(batch, time, width) @ block["out"]
