"""Compile some functions under the cache and print what came out and what JAX counted.

A program for the Python that has jax, told by JAX_… variables.
"""

import json
import warnings

import jax
import jax.numpy as jnp

events = []
jax.monitoring.register_event_listener(lambda event, **_: events.append(event.rpartition("/")[2]))


def mlp(x):
    return jnp.tanh(x @ x.T) @ x


def loss(x):
    return jnp.exp(-x).mean()


def sharded_sum(x):
    return jnp.cumsum(x, axis=0)


def sort(x):
    return jnp.sort(x, axis=1) * 2


with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    x = jnp.sin(jnp.arange(64.0)).reshape(8, 8)
    results = [float(jax.jit(f)(x).sum()) for f in (mlp, loss, sharded_sum, sort)]
print(
    json.dumps(
        {
            "results": results,
            "hits": events.count("cache_hits"),
            "requests": events.count("compile_requests_use_cache"),
            "warnings": [str(w.message) for w in caught if "ompilation cache" in str(w.message)],
        }
    )
)
