"""Three modules, and what JAX itself counted of its cache, as one line of JSON.

Nothing here imports jaxcache. ``ORACLE_COUNTS`` names a directory that gets the same counts, one
file a process, for launchers that swallow standard output. Code in ``ORACLE_BEFORE`` runs after jax
is imported and before anything is compiled.
"""

import json
import os
import sys

import jax
import numpy as np

COUNTS = {"cache_hits": 0, "cache_misses": 0}


def count(event, **_):
    name = event.rpartition("/")[2]
    if name in COUNTS:
        COUNTS[name] += 1


def first(x):
    return jax.numpy.sin(x) @ x


def second(x):
    return jax.numpy.cos(x) + 2


def third(x):
    return jax.numpy.tanh(x).sum()


def main():
    jax.monitoring.register_event_listener(count)
    exec(os.environ.get("ORACLE_BEFORE", ""))
    for function in (first, second, third):
        jax.jit(function)(np.ones((4, 4), np.float32)).block_until_ready()
    print("counted " + json.dumps(COUNTS), flush=True)
    if directory := os.environ.get("ORACLE_COUNTS"):
        with open(os.path.join(directory, str(os.getpid())), "w") as file:
            json.dump({**COUNTS, "jaxcache": "_jaxcache_hook" in sys.modules}, file)


def test_counts():
    main()


if __name__ == "__main__":
    main()
