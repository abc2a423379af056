"""Compile two programs, one of them with pmap, into the cache given; ``JAX_`` settings apply."""

import os
import sys

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"

import jax
import jax.numpy as jnp

jax.config.update("jax_compilation_cache_dir", sys.argv[1])
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def scale(x):
    return x * 2 + 1


jax.pmap(scale)(jnp.ones((2, 3)))
jax.jit(scale)(jnp.ones(3))
