"""A small transformer; its one argument, a JSON object, says whether it trains or is used."""

import json
import sys

import jax
import jax.numpy as jnp


def work(config: dict) -> None:
    """Train, evaluate or sample as ``config`` says."""
    width, act = config["width"], getattr(jax.nn, config["act"])
    keys = jax.random.split(jax.random.key(config["seed"]), config["layers"] + 2)

    def layer(key):
        shapes = {
            "q": (width, width),
            "k": (width, width),
            "v": (width, width),
            "up": (width, 4 * width),
            "down": (4 * width, width),
        }
        names = jax.random.split(key, len(shapes))
        return {n: 0.02 * jax.random.normal(k, shapes[n]) for n, k in zip(shapes, names)}  # noqa: B905

    params = {
        "embed": 0.02 * jax.random.normal(keys[0], (256, width)),
        "layers": [layer(k) for k in keys[2:]],
    }

    def block(x, p):
        scores = (x @ p["q"]) @ (x @ p["k"]).swapaxes(-1, -2) / width**0.5
        mask = jnp.tril(jnp.ones(scores.shape[-2:], bool))
        x = x + jax.nn.softmax(jnp.where(mask, scores, -1e9)) @ (x @ p["v"])
        return x + act(x @ p["up"]) @ p["down"]

    def logits(params, tokens):
        x = params["embed"][tokens]
        for p in params["layers"]:
            x = block(x, p)
        return x @ params["embed"].T

    def loss(params, tokens):
        logp = jax.nn.log_softmax(logits(params, tokens[:, :-1]))
        return -jnp.take_along_axis(logp, tokens[:, 1:, None], -1).mean()

    @jax.jit
    def train_step(params, state, tokens):
        value, grads = jax.value_and_grad(loss)(params, tokens)
        state = jax.tree.map(lambda m, g: 0.9 * m + g, state, grads)
        return jax.tree.map(lambda p, m: p - config["rate"] * m, params, state), state, value

    def batch(length):
        return jax.random.randint(keys[1], (config["batch"], length), 0, 256)

    if config["kind"] == "train":
        state = jax.tree.map(jnp.zeros_like, params)
        for _ in range(3):
            params, state, value = train_step(params, state, batch(config["length"]))
        value.block_until_ready()
    elif config["kind"] == "evaluate":
        evaluate = jax.jit(loss)
        for length in range(16, config["length"] + 1, 8):
            evaluate(params, batch(length)).block_until_ready()
    else:
        pick = jax.jit(lambda p, t, k: jax.random.categorical(k, logits(p, t)[:, -1]))
        tokens = batch(8)
        for step in range(6):
            token = pick(params, tokens, jax.random.fold_in(keys[1], step))
            tokens = jnp.concatenate([tokens, token[:, None]], axis=1)
        tokens.block_until_ready()


if __name__ == "__main__":
    work(json.loads(sys.argv[1]))
