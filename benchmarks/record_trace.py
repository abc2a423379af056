"""Record which cache entries a day of work on a small model asks for, with a real JAX.

``python benchmarks/record_trace.py OUT.jsonl`` (under an interpreter that has jax) runs a small
transformer many times, each run in a process of its own with an empty in-memory cache: training,
evaluation at bucketed lengths, sampling, and edits to the model between the runs. Each line of
the output is one request of one run: ``{"run", "key", "compile_seconds", "size_bytes"}``.
"""

import json
import logging
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path

RUNS = 70


def plan_day(seed: int = 7) -> list[dict]:
    """What is run one after the other: mostly the same again, now and then something edited."""
    chance = random.Random(seed)
    config = {"width": 64, "layers": 2, "batch": 8, "length": 32, "act": "gelu", "rate": 1e-3}
    edits = {
        "width": [32, 64, 96, 128], "layers": [1, 2, 3, 4], "batch": [4, 8, 16],
        "length": [32, 48, 64], "act": ["gelu", "relu", "tanh"],
    }  # fmt: skip
    runs, best = [], dict(config)
    for _ in range(RUNS):
        draw = chance.random()
        if draw < 0.45:
            field = chance.choice(list(edits))
            config = config | {field: chance.choice(edits[field])}
        elif draw < 0.6:
            config = dict(best)
        elif draw < 0.65:
            best = dict(config)
        kind = chance.choices(["train", "evaluate", "sample"], [6, 3, 2])[0]
        runs.append(config | {"kind": kind, "seed": chance.randrange(1000)})
    return runs


def run_one(config: dict) -> None:
    """Run the model once in this process and print one line per cache request."""
    requests: list[dict] = []

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            text = str(record.msg)
            if text.startswith(("Persistent compilation cache hit", "PERSISTENT COMPILATION")):
                requests.append({"key": record.args[1]})

    for name in ("jax._src.compiler", "jax._src.compilation_cache"):
        logger = logging.getLogger(name)
        logger.setLevel(logging.DEBUG)
        logger.propagate = False
        logger.addHandler(Listener())
    import jax

    def on_duration(event: str, seconds: float, **_: object) -> None:
        if event.endswith("backend_compile_duration") and requests:
            requests[-1].setdefault("compile_seconds", round(seconds, 4))

    jax.monitoring.register_event_duration_secs_listener(on_duration)
    _work(jax, config)
    print("\n".join(json.dumps(r) for r in requests))


def _work(jax, config: dict) -> None:  # type: ignore[no-untyped-def]
    import jax.numpy as jnp

    width, act = config["width"], getattr(jax.nn, config["act"])
    keys = jax.random.split(jax.random.key(config["seed"]), config["layers"] + 2)

    def layer(key):  # type: ignore[no-untyped-def]
        shapes = {"q": (width, width), "k": (width, width), "v": (width, width),
                  "up": (width, 4 * width), "down": (4 * width, width)}  # fmt: skip
        names = jax.random.split(key, len(shapes))
        return {n: 0.02 * jax.random.normal(k, shapes[n]) for n, k in zip(shapes, names)}  # noqa: B905

    params = {
        "embed": 0.02 * jax.random.normal(keys[0], (256, width)),
        "layers": [layer(k) for k in keys[2:]],
    }

    def block(x, p):  # type: ignore[no-untyped-def]
        scores = (x @ p["q"]) @ (x @ p["k"]).swapaxes(-1, -2) / width**0.5
        mask = jnp.tril(jnp.ones(scores.shape[-2:], bool))
        x = x + jax.nn.softmax(jnp.where(mask, scores, -1e9)) @ (x @ p["v"])
        return x + act(x @ p["up"]) @ p["down"]

    def logits(params, tokens):  # type: ignore[no-untyped-def]
        x = params["embed"][tokens]
        for p in params["layers"]:
            x = block(x, p)
        return x @ params["embed"].T

    def loss(params, tokens):  # type: ignore[no-untyped-def]
        logp = jax.nn.log_softmax(logits(params, tokens[:, :-1]))
        return -jnp.take_along_axis(logp, tokens[:, 1:, None], -1).mean()

    @jax.jit
    def train_step(params, state, tokens):  # type: ignore[no-untyped-def]
        value, grads = jax.value_and_grad(loss)(params, tokens)
        state = jax.tree.map(lambda m, g: 0.9 * m + g, state, grads)
        return jax.tree.map(lambda p, m: p - config["rate"] * m, params, state), state, value

    def batch(length):  # type: ignore[no-untyped-def]
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


def main() -> None:
    """Run the day against one cache and write the requests with the sizes of their entries."""
    if sys.argv[1] == "--one":
        run_one(json.loads(sys.argv[2]))
        return
    sizes, seconds, trace = {}, {}, []
    with tempfile.TemporaryDirectory() as cache:
        env = os.environ | {
            "JAX_COMPILATION_CACHE_DIR": cache, "JAX_PLATFORMS": "cpu",
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        }  # fmt: skip
        for number, config in enumerate(plan_day()):
            done = subprocess.run(
                [sys.executable, __file__, "--one", json.dumps(config)],
                env=env, capture_output=True, text=True, check=True,
            )  # fmt: skip
            for line in filter(None, done.stdout.splitlines()):
                request = json.loads(line)
                # The first request of a key is the compile; later ones are retrievals.
                seconds.setdefault(request["key"], request.get("compile_seconds", 0.0))
                trace.append((number, request["key"]))
        for path in Path(cache).glob("*-cache"):
            sizes[path.name.removesuffix("-cache")] = path.stat().st_size
    with open(sys.argv[1], "w") as out:
        for number, key in trace:
            if key in sizes:
                row = {"run": number, "key": key, "compile_seconds": seconds[key],
                       "size_bytes": sizes[key]}  # fmt: skip
                out.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
