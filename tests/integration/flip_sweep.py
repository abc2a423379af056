"""Damage one entry in many ways and run real JAX on each; a program for the Python that has jax.

Arguments: cache directory, trials, seed. Prints one JSON object: how often what happened.
"""

import json
import os
import random
import sys
import warnings
from pathlib import Path

os.environ.update(
    JAX_PLATFORMS="cpu",
    JAX_COMPILATION_CACHE_DIR=sys.argv[1],
    JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS="0",
    JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES="0",
)
import jax
import jax.numpy as jnp


def step(x):
    return jnp.tanh(x @ x.T).sum(axis=1) * 2 + jnp.sort(x[:, 0])


def run() -> tuple[list[float], int]:
    """The result, and how many warnings there were."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = jax.jit(step)(jnp.sin(jnp.arange(512.0).reshape(16, 32)))
    return [float(v) for v in result], sum("compilation cache" in str(w.message) for w in caught)


def in_child() -> tuple[int, tuple[list[float], int] | None]:
    """Run in a process of its own: its exit status, and what it found."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        os.write(writing, json.dumps(run()).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        text = pipe.read()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return status, json.loads(text) if text and not status else None


def main() -> None:
    cache, trials, chance = Path(sys.argv[1]), int(sys.argv[2]), random.Random(int(sys.argv[3]))
    status, right = in_child()
    assert status == 0 and right
    if not trials:
        return
    # JAX 0.4.30 names the file by the key alone.
    (entry,) = (p for p in cache.glob("jit_step-*") if not p.name.endswith("-atime"))
    good = entry.read_bytes()
    seen = {"trials": trials, "died": 0, "wrong": 0, "warned": 0, "unnoticed": 0}
    for trial in range(trials):
        if trial % 4 == 3:
            bad = good[: chance.randrange(len(good))]
        else:
            bad = bytearray(good)
            bit = chance.randrange(8 * len(good))
            bad[bit >> 3] ^= 1 << (bit & 7)
        entry.write_bytes(bytes(bad))
        status, found = in_child()
        if status or not found:
            seen["died"] += 1
        elif found[0] != right[0]:
            seen["wrong"] += 1
        elif found[1]:
            seen["warned"] += 1
        else:
            seen["unnoticed"] += 1
    entry.write_bytes(good)
    print(json.dumps(seen))


main()
