"""Compile a few programs with a cache directory; print how many were hits and how many misses."""

import json
import sys

import jax
import jax.numpy as jnp

jax.config.update("jax_compilation_cache_dir", sys.argv[1])
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
counts = {"cache_hits": 0, "cache_misses": 0}


def count(event: str, **_: object) -> None:
    name = event.rpartition("/")[2]
    if name in counts:
        counts[name] += 1


jax.monitoring.register_event_listener(count)
x = jnp.arange(12.0).reshape(3, 4)
value = jax.jit(lambda a: jnp.tanh(a @ a.T).sum())(x)
grad = jax.jit(jax.grad(lambda a: jnp.sin(a).sum()))(x)
result = float(value) + float(grad.sum())
print(json.dumps({**counts, "result": result}))
