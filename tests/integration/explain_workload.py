"""Compile one program, ``step``, with one thing changed: ``explain_workload.py CACHE JSON``."""

import json
import sys

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

cache, change = sys.argv[1], json.loads(sys.argv[2])
jax.config.update("jax_compilation_cache_dir", cache)
if "hook" in change:
    from jax._src import cache_key

    cache_key.custom_hook = lambda: change["hook"]

constant = np.float32(change.get("constant", 3))
x = np.ones(change.get("shape", (8, 16)), change.get("dtype", "float64"))
y = np.ones((x.shape[1], 32), change.get("dtype", "float64"))


def step(x, y):
    z = x @ y
    if change.get("callback"):
        z = z + jax.pure_callback(lambda v: v, jax.ShapeDtypeStruct((), np.float32), constant)
    if change.get("code"):
        z = z - z.sum()
    return z * constant.astype(z.dtype) + x.sum()


if change.get("address"):
    step.__name__ = f"step_at_{id(step):#x}"
options = {}
if change.get("donate"):
    options["donate_argnums"] = (0,)
    x = jax.numpy.asarray(x)

    def step(x, y):  # something that can live where x did
        return x * constant.astype(x.dtype)


if change.get("scale"):

    def step(x, y):
        return x * constant.astype(x.dtype)


if "sharding" in change:
    mesh = Mesh(np.array(jax.devices()[: change.get("devices", 4)]), ("d",))
    spec = PartitionSpec(*change["sharding"])
    options["in_shardings"] = (NamedSharding(mesh, spec), NamedSharding(mesh, PartitionSpec()))
jax.block_until_ready(jax.jit(step, **options)(x, y))
