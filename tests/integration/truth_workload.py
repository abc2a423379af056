"""Compile functions with JAX's cache on, and print as JSON what JAX says of each; run by a test."""

import json
import os
import re
import sys

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

jax.config.update("jax_compilation_cache_dir", sys.argv[1])
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)

INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?[\w.-]+ = ", re.MULTILINE)
COMPUTATION = re.compile(r"^(?:ENTRY )?%?[\w.-]+ (?:\(.*)?\{(?:\s*//.*)?$", re.MULTILINE)
LAYOUT = re.compile(r"entry_computation_layout=\{(.*?)->(.*?)\}(?:, [a-z_]+=|\n)")
ARRAY = re.compile(r"(\w+)\[([\d,]*)\]")
BIG = np.random.RandomState(0).standard_normal((128, 128)).astype(np.float32)
F32 = jnp.float32


def spec(shape, dtype=F32, sharding=None):
    if sharding is None:
        return jax.ShapeDtypeStruct(shape, dtype)
    return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)


def truth_matmul(a, b):
    return jnp.tanh(a @ b) @ b.T


def truth_scan(x):
    return jax.lax.scan(lambda c, _: (jnp.sin(c) * 1.01, c.sum()), x, None, length=17)


def truth_sharded(x):
    return (x * 2).sum(axis=0)


def truth_donated(x, y):
    return x + y, y * 2


def truth_dtypes(a, b, c, d, e):
    return a + 1, ~b, c * c, d.astype(jnp.bfloat16), e.astype(jnp.float32) @ jnp.ones((4, 2))


def truth_constant(x):
    return x @ BIG


def truth_control(x):
    y = jax.lax.cond(x.sum() > 0, jnp.sin, jnp.cos, x)
    return jax.lax.while_loop(lambda s: s.sum() < 100, lambda s: s * 1.5 + 1, y)


def truth_svd(x):
    return jnp.linalg.svd(x)


def truth_grad(w, x):
    return jax.grad(lambda w: jnp.sum(jax.nn.softmax(x @ w) ** 2))(w)


def truth_nothing():
    return jnp.arange(5)


def count(compiled):
    text = compiled.as_text()
    memory = compiled.memory_analysis()
    layout = LAYOUT.search(text)
    return {
        "module": re.match(r"HloModule ([\w.-]+)", text)[1],
        "instructions": len(INSTRUCTION.findall(text)),
        "computations": len(COMPUTATION.findall(text)),
        "parameters": ARRAY.findall(layout[1]),
        "results": ARRAY.findall(layout[2]),
        "memory": memory
        and {
            name: getattr(memory, f"{name}_size_in_bytes")
            for name in ("argument", "output", "temp", "alias")
        },
    }


mesh = Mesh(np.array(jax.devices()), ("i",))
rows = NamedSharding(mesh, PartitionSpec("i"))
jobs = [
    (jax.jit(truth_matmul), (spec((8, 16)), spec((16, 32)))),
    (jax.jit(truth_scan), (spec((3, 5)),)),
    (jax.jit(truth_sharded), (spec((8, 16), F32, rows),)),
    (jax.jit(truth_donated, donate_argnums=0), (spec((64,)), spec((64,)))),
    (
        jax.jit(truth_dtypes),
        (
            spec((4,), jnp.int8),
            spec((4,), jnp.bool_),
            spec((2, 2), jnp.complex64),
            spec((3,), jnp.float16),
            spec((2, 4), jnp.bfloat16),
        ),
    ),
    (jax.jit(truth_constant), (spec((4, 128)),)),
    (jax.jit(truth_control), (spec((7,)),)),
    (jax.jit(truth_svd), (spec((8, 8)),)),
    (jax.jit(truth_grad), (spec((16, 4)), spec((8, 16)))),
    (jax.jit(truth_nothing), ()),
]
print(json.dumps([count(f.lower(*args).compile()) for f, args in jobs]))
