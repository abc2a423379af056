"""A small transformer: a few training steps, then inference at several lengths.

Pure JAX, about ten seconds of compiling on two cores, and the same modules every time:

    jaxcache warm examples/train.py            # compiles and fills the cache
    jaxcache warm examples/train.py            # hits it
"""

import argparse
import functools

import jax
import jax.numpy as jnp

VOCABULARY, HEADS = 256, 4


def init(key, width, layers):
    """Random parameters of a decoder of ``layers`` blocks."""
    keys = iter(jax.random.split(key, 2 + 4 * layers))
    blocks = [
        {
            "qkv": 0.02 * jax.random.normal(next(keys), (width, 3 * width)),
            "out": 0.02 * jax.random.normal(next(keys), (width, width)),
            "up": 0.02 * jax.random.normal(next(keys), (width, 4 * width)),
            "down": 0.02 * jax.random.normal(next(keys), (4 * width, width)),
        }
        for _ in range(layers)
    ]
    embedding = 0.02 * jax.random.normal(next(keys), (VOCABULARY, width))
    return {"embedding": embedding, "blocks": blocks}


def normalize(x):
    """Scale each token to unit variance."""
    return x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-6)


def attend(block, x):
    """Causal self-attention over ``x`` of shape (batch, time, width)."""
    batch, time, width = x.shape
    q, k, v = jnp.split(x @ block["qkv"], 3, axis=-1)
    q, k, v = (t.reshape(batch, time, HEADS, width // HEADS) for t in (q, k, v))
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / (width // HEADS) ** 0.5
    scores = jnp.where(jnp.tril(jnp.ones((time, time), bool)), scores, -1e9)
    mixed = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), v)
    return mixed.reshape(batch, time, width) @ block["out"]


def forward(params, tokens):
    """Logits of shape (batch, time, vocabulary)."""
    x = params["embedding"][tokens]
    for block in params["blocks"]:
        x = x + attend(block, normalize(x))
        x = x + jax.nn.gelu(normalize(x) @ block["up"]) @ block["down"]
    return normalize(x) @ params["embedding"].T


def loss(params, tokens):
    """Mean cross-entropy of the next token."""
    logits = forward(params, tokens[:, :-1])
    chosen = jnp.take_along_axis(jax.nn.log_softmax(logits), tokens[:, 1:, None], axis=-1)
    return -chosen.mean()


@functools.partial(jax.jit, donate_argnums=0)
def train_step(params, tokens):
    """One step of gradient descent."""
    value, gradient = jax.value_and_grad(loss)(params, tokens)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradient), value


@jax.jit
def infer(params, tokens):
    """The most likely next token of each sequence."""
    return jnp.argmax(forward(params, tokens)[:, -1], axis=-1)


def main():
    """Train a little, then infer at a few lengths."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--lengths", type=int, nargs="*", default=[16, 32, 64, 128])
    args = parser.parse_args()
    params = jax.jit(init, static_argnums=(1, 2))(jax.random.key(0), args.width, args.layers)
    tokens = jnp.tile(jnp.arange(65, dtype=jnp.int32) % VOCABULARY, (4, 1))
    for step in range(args.steps):
        params, value = train_step(params, tokens)
        print(f"step {step}: loss {value:.3f}")
    for length in args.lengths:
        prompt = jnp.zeros((1, length), jnp.int32)
        print(f"length {length}: next token {int(infer(params, prompt)[0])}")


if __name__ == "__main__":
    main()
