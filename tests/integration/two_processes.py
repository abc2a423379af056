"""Fill a cache from two processes of one program: ``two_processes.py PORT NUMBER CACHE``."""

import sys

import jax
import numpy as np

jax.config.update("jax_compilation_cache_dir", sys.argv[3])
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.distributed.initialize(f"localhost:{sys.argv[1]}", 2, int(sys.argv[2]))


def total(x):
    """Add up what both processes have."""
    return (x * 2).sum()


def single(x):
    """Use one device alone."""
    return x + 1


mesh = jax.sharding.Mesh(np.array(jax.devices()), ("x",))
split = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x"))
data = np.arange(8, dtype=np.float32)
print(jax.jit(total)(jax.make_array_from_callback((8,), split, lambda index: data[index])))
print(jax.jit(single)(np.ones(3, dtype=np.float32)))
