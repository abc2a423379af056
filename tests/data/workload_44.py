"""Forty-four programs and more of every kind, over the devices that are there or the first N.

``python workload_44.py [N]``. Prints one number, by which two runs can be compared.
"""

import functools
import sys

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

DEVICES = jax.devices()[: int(sys.argv[1]) if len(sys.argv) > 1 else None]
MESH = Mesh(np.array(DEVICES), ("x",))
SPLIT = NamedSharding(MESH, P("x"))
WHOLE = NamedSharding(MESH, P())
RESULTS = []


def run(function, *args, **kwargs):
    RESULTS.append(jax.jit(function, **kwargs)(*args))


def arange(*shape):
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape) / 7


def loss(w, x):
    return jnp.mean(jnp.tanh(x @ w) ** 2)


def step(w, x):
    return w - 0.1 * jax.grad(loss)(w, x)


def newton(x):
    return lax.while_loop(lambda v: jnp.abs(v * v - x) > 1e-3, lambda v: (v + x / v) / 2, x)


def choose(x):
    return lax.cond(x.sum() > 0, jnp.sin, jnp.cos, x)


def switch(i, x):
    return lax.switch(i, [jnp.sin, jnp.cos, jnp.tan], x)


def cumulate(x):
    return lax.scan(lambda c, v: (c + v, c * v), x[0], x)


def here_or_there(x):
    return lax.platform_dependent(x, cpu=lambda x: x + 1, default=lambda x: x + 2)


@jax.custom_vjp
def clipped(x):
    return jnp.clip(x, 0, 1)


clipped.defvjp(lambda x: (clipped(x), x), lambda x, g: (g * (x > 0),))

key = jax.random.key(1)
x, w = arange(8, 16), arange(16, 4)
square = np.eye(4, dtype=np.float32) * 5 + arange(4, 4) / 9
image, kernel = arange(1, 3, 8, 8), arange(5, 3, 3, 3)

run(jnp.matmul, x, w)
run(jax.grad(loss), w, x)
run(step, w, x, donate_argnums=0)
run(jax.hessian(lambda v: jnp.sum(jnp.sin(v) ** 3)), arange(4))
run(jax.vmap(jax.jacfwd(jnp.sin)), arange(3))
run(newton, np.float32(9))
run(choose, x)
run(switch, 2, x)
run(cumulate, x)
run(functools.partial(jnp.einsum, "ij,jk->ki"), x, w)
run(lambda k: jax.random.normal(k, (8,)), key)
run(lambda k: jax.random.permutation(k, 16), key)
run(lambda k: jax.random.categorical(k, arange(4)), key)
run(lambda k: jax.random.split(k, 3), key)
run(jnp.linalg.qr, square)
run(jnp.linalg.svd, square)
run(jnp.linalg.eigh, square + square.T)
run(jnp.linalg.cholesky, square @ square.T)
run(jnp.linalg.solve, square, arange(4))
run(jnp.linalg.inv, square)
run(lambda a, k: lax.conv(a, k, (1, 1), "SAME"), image, kernel)
run(jax.grad(lambda k, a: lax.conv(a, k, (2, 2), "VALID").sum()), kernel, image)
run(jnp.fft.fft, x)
run(lambda v: jnp.fft.irfft(jnp.fft.rfft(v)), x)
run(jnp.sort, x)
run(jnp.argsort, x)
run(lambda v: lax.top_k(v, 3), x)
run(jnp.cumsum, x)
run(lambda v: v.at[2].set(0).at[::2].add(1), x)
run(lambda v: jnp.take(v, jnp.array([0, 2]), axis=1), x)
run(here_or_there, x)
run(jax.grad(lambda v: clipped(v).sum()), x)
run(jax.checkpoint(lambda v: jnp.sin(jnp.cos(v))), x)
run(lambda v: v.astype(jnp.bfloat16) @ v.T.astype(jnp.bfloat16), x)
run(lambda v, n: v * n, x, 3, static_argnums=1)
run(lambda t: jax.tree.map(jnp.exp, t), {"a": x, "b": (w, 2.0)})
scale = jnp.asarray(arange(16))
run(lambda v: v * scale, x)  # a constant of the closure
run(lambda v: jax.pure_callback(np.sin, jax.ShapeDtypeStruct(v.shape, v.dtype), v), x)
run(lambda v: (jax.debug.callback(lambda _: None, v), v + 1)[1], x)
run(jax.nn.softmax, jax.device_put(x, DEVICES[0]))  # committed
RESULTS.append(jax.pmap(lambda v: lax.psum(v, "i"), "i", devices=DEVICES)(arange(len(DEVICES), 4)))
spread = jax.device_put(arange(8, 4), SPLIT)
run(lambda v: v * 2 + v.sum(), spread)
run(lambda v: v @ v.T, spread, out_shardings=WHOLE)
run(lambda v: lax.with_sharding_constraint(v + 1, WHOLE), spread)
run(
    jax.shard_map(lambda v: v - lax.pmean(v, "x"), mesh=MESH, in_specs=P("x"), out_specs=P("x")),
    spread,
)
run(
    jax.shard_map(
        lambda v: lax.all_gather(v, "x").sum(0),
        mesh=MESH,
        in_specs=P("x"),
        out_specs=P(),
        check_vma=False,
    ),
    spread,
)
with jax.default_matmul_precision("float32"):
    run(lambda a, b: a @ b, x, w)

leaves = [leaf for leaf in jax.tree.leaves(RESULTS) if leaf.dtype != key.dtype]
print(sum(float(np.abs(np.asarray(leaf).astype(np.complex64)).sum()) for leaf in leaves))
