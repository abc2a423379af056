"""Run two small functions under the cache, once or in a loop; prints what JAX reported.

A program for the Python that has jax, told by JAX_… variables, SALT and LOOP.
"""

import json
import os
import sys
import threading
import warnings

import jax
import jax.numpy as jnp

events = []
jax.monitoring.register_event_listener(lambda event, **_: events.append(event))
salt = float(os.environ.get("SALT", "1"))


def step(x):
    return jnp.tanh(x @ x.T).sum(axis=1) * salt + jnp.sort(x[:, 0])


def loss(x):
    return jnp.exp(-x * salt).mean()


def hits():
    return sum(e == "/jax/compilation_cache/cache_hits" for e in events)


x = jnp.sin(jnp.arange(512.0).reshape(16, 32))
rounds = expected = 0
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    if os.environ.get("LOOP"):
        stop = threading.Event()
        threading.Thread(target=lambda: (sys.stdin.readline(), stop.set()), daemon=True).start()
        float(jax.jit(loss)(x)), jax.jit(step)(x).block_until_ready()
        before = hits()
        while not stop.is_set():
            print("looping", flush=True)
            # Read two entries and write one that was never there.
            jax.clear_caches()
            jax.jit(step)(x).block_until_ready()
            jax.jit(loss)(x).block_until_ready()
            count = hits() - before
            expected += 2
            rounds += 1
            jax.jit(lambda x, n=rounds: x * (n + 0.5) + os.getpid())(x).block_until_ready()
            before += hits() - before - count
        got = hits() - before
    else:
        jax.jit(step)(x).block_until_ready()
        jax.jit(loss)(x).block_until_ready()
cache_warnings = [str(w.message) for w in caught if "ompilation cache" in str(w.message)]
for w in cache_warnings:
    print(w, file=sys.stderr)
result = {"warnings": len(cache_warnings)}
if os.environ.get("LOOP"):
    result |= {"rounds": rounds, "hits": got, "expected_hits": expected}
else:
    requests = sum(e == "/jax/compilation_cache/compile_requests_use_cache" for e in events)
    result |= {"hits": hits(), "requests": requests}
print(json.dumps(result))
