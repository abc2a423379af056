"""Fill a cache with the entries of a small GPT, by running JAX: forward, loss, training step.

``python benchmarks/gpt_cache.py DIR --lengths 64 96 128 --layers 4 6`` needs a Python with jax
and nothing else. Every sequence length and depth is compiled anew, as in a curriculum.
"""

import argparse
import functools

import jax
import jax.numpy as jnp

WIDTH, HEADS, VOCABULARY = 64, 4, 256


def init(layers):
    """Parameters of all layers, as nested dictionaries."""
    keys = iter(jax.random.split(jax.random.PRNGKey(0), 2 + 6 * layers))
    normal = lambda *shape: 0.02 * jax.random.normal(next(keys), shape)  # noqa: E731
    return {
        "embed": normal(VOCABULARY, WIDTH),
        "blocks": [
            {
                "qkv": normal(WIDTH, 3 * WIDTH),
                "out": normal(WIDTH, WIDTH),
                "up": normal(WIDTH, 4 * WIDTH),
                "down": normal(4 * WIDTH, WIDTH),
                "norm1": jnp.ones(WIDTH),
                "norm2": jnp.ones(WIDTH),
            }
            for _ in range(layers)
        ],
        "head": normal(WIDTH, VOCABULARY),
    }


def norm(x, scale):
    """Layer norm without bias."""
    return scale * (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-5)


def attend(x, block):
    """Causal attention."""
    batch, length, _ = x.shape
    q, k, v = jnp.split(x @ block["qkv"], 3, -1)
    headers = lambda t: t.reshape(batch, length, HEADS, -1).swapaxes(1, 2)  # noqa: E731
    q, k, v = headers(q), headers(k), headers(v)
    scores = q @ k.swapaxes(-1, -2) / jnp.sqrt(q.shape[-1])
    mask = jnp.tril(jnp.ones((length, length), bool))
    weights = jax.nn.softmax(jnp.where(mask, scores, -1e9))
    return (weights @ v).swapaxes(1, 2).reshape(batch, length, WIDTH) @ block["out"]


def forward(params, tokens):
    """Logits."""
    x = params["embed"][tokens]
    for block in params["blocks"]:
        x = x + attend(norm(x, block["norm1"]), block)
        x = x + jax.nn.gelu(norm(x, block["norm2"]) @ block["up"]) @ block["down"]
    return x @ params["head"]


def loss(params, tokens):
    """Cross-entropy of the next token."""
    logits = jax.nn.log_softmax(forward(params, tokens[:, :-1]))
    return -jnp.take_along_axis(logits, tokens[:, 1:, None], -1).mean()


def train_step(params, moments, tokens, rate):
    """One step of Adam, nearly."""
    value, grads = jax.value_and_grad(loss)(params, tokens)
    moments = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, moments, grads)
    return jax.tree.map(lambda p, m: p - rate * m, params, moments), moments, value


def main():
    """Compile every combination."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("directory")
    parser.add_argument("--lengths", type=int, nargs="+", default=[32, 48, 64, 96, 128])
    parser.add_argument("--layers", type=int, nargs="+", default=[2, 4])
    args = parser.parse_args()
    jax.config.update("jax_compilation_cache_dir", args.directory)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    for layers in args.layers:
        shapes = jax.eval_shape(functools.partial(init, layers))
        for length in args.lengths:
            tokens = jax.ShapeDtypeStruct((2, length + 1), jnp.int32)
            jax.jit(forward).lower(shapes, tokens).compile()
            jax.jit(loss).lower(shapes, tokens).compile()
            jax.jit(train_step).lower(shapes, shapes, tokens, 0.1).compile()


if __name__ == "__main__":
    main()
