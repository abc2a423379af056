"""Five programs whose entries a GPU made: cuBLAS, cuDNN, cuSOLVER, a callback, and attention.

``corpus/0.11.2-cuda13-h200-zlib`` is the cache that this filled on an H200.
"""

import sys

import jax
import jax.numpy as jnp
import numpy as np

x = np.arange(64 * 64, dtype=np.float32).reshape(64, 64) / 4096


@jax.jit
def product(a):
    return a @ a


@jax.jit
def convolved(a, k):
    return jax.lax.conv(a, k, (1, 1), "SAME")


@jax.jit
def cholesky(a):
    return jnp.linalg.cholesky(a)


@jax.jit
def printed(v):
    jax.debug.print("sum {s:.3f}", s=v.sum())
    return v * 2


@jax.jit
def attention(q):
    return jax.nn.dot_product_attention(q, q, q, implementation="cudnn")


product(x)
convolved(np.ones((2, 3, 32, 32), np.float32), np.ones((4, 3, 3, 3), np.float32))
cholesky(x @ x.T + 5 * np.eye(64, dtype=np.float32))
printed(x)
if "--attention" in sys.argv:  # which JAX traces only where cuDNN is
    attention(np.ones((1, 64, 4, 64), np.float16))
