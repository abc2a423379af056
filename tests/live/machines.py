"""A program that is three machines in turn, which share tiers."""

#: Leaves everything to ``enable()``.
FREE = {"JAXCACHE_LIVE": None, "JAX_COMPILATION_CACHE_DIR": None}
#: Keys of every JAX without the path of the cache.
PORTABLE = {"JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES": "none"}

#: Three machines are three directories of one process; ``on`` goes to another one.
MACHINES = """
import json, os, sys, time
import jax, jax.numpy as jnp
import jaxcache

@jax.jit
def first(x):
    return jnp.sin(x) @ x.T + 1

@jax.jit
def second(x):
    return jax.lax.fori_loop(0, 3, lambda i, y: jnp.cos(y) * i, x)

def on(machine, tiers, seconds=5.0, **settings):
    jaxcache.enable(machine, tiers=tiers, portable=True, flush=seconds, **settings)
    layer = sys.modules["jaxcache.live.layer"].LAYER
    layer.counters.reset()
    jax.clear_caches()
    x = jax.device_put(jnp.asarray([[0.5, 1.5], [2.5, 3.5]]))
    started = time.perf_counter()
    values = [first(x).tolist(), second(x).tolist()]
    took = time.perf_counter() - started
    return {"values": values, "seconds": took, **layer.counters.snapshot()}

def leave():
    "Flush, as the end of the process does."
    layer = sys.modules["jaxcache.live.layer"].LAYER
    started = time.monotonic()
    directories = list(layer.directories.values())
    for directory in directories:
        directory.close(started + layer.settings["flush"])
    layer.directories.clear()
    layer.adapter.reset()
    flushed_in = time.monotonic() - started
    # Listed before the uploads are counted: one that ends in between is in both, none in neither.
    directories = [os.path.join(d.root, ".jaxcache", "live", "spool") for d in directories]
    notes = [n for f in directories for _, _, names in os.walk(f) for n in names]
    waiting = sum(n.startswith("jit_") for n in notes)
    return {"flushed_in": flushed_in, "waiting": waiting, **layer.counters.snapshot()}

result = {}
"""
