"""Programs whose speed depends on tuning, for ``tools/gpu_evidence.py``; runs beside the GPU.

``python gpu_workload.py [SIZE]`` prints, as one line of JSON, for each program the median seconds
of a run and a sum of its result. On a GPU take 4096, on a CPU 256.
"""

import json
import statistics
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np

SIZE = int(sys.argv[1]) if len(sys.argv) > 1 else 256
RUNS = 20


def ramp(*shape, dtype=np.float32):
    """Numbers between -1 and 1 that every host makes alike."""
    return (np.arange(np.prod(shape)).reshape(shape) % 251 / 125 - 1).astype(dtype)


@jax.jit
def product_bf16(a, b):
    """What the tile of a matrix product decides."""
    return (a.astype(jnp.bfloat16) @ b.astype(jnp.bfloat16)).astype(jnp.float32)


@jax.jit
def product_f32(a, b):
    """The same without tensor cores, or with TF32."""
    return a @ b


@jax.jit
def layer(x, w, v):
    """Products between fusions and reductions."""
    x = x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-6)
    return jax.nn.softmax(jax.nn.gelu(x @ w) @ v)


@jax.jit
def gradient(w, x):
    """A gradient, with its transposed products."""
    return jax.grad(lambda w: jnp.mean(jnp.tanh(x @ w) ** 2))(w)


@jax.jit
def fused(x):
    """Fusions alone."""
    return jnp.sum(jnp.exp(-jnp.square(x)) * jnp.sin(x), axis=0)


@jax.jit
def ordered(x):
    """A sort, for which XLA may lack CUB's data."""
    return jnp.sort(x, axis=-1)


@jax.jit
def convolved(image, kernel):
    """A convolution, for which cuDNN has many algorithms."""
    return jax.lax.conv(image, kernel, (1, 1), "SAME")


def main():
    """Run and time each."""
    square = ramp(SIZE, SIZE)
    side = max(16, SIZE // 16)
    calls = {
        product_bf16: (square, square),
        product_f32: (square, square),
        layer: (square, square, square),
        gradient: (square, square),
        fused: (square,),
        ordered: (square,),
        convolved: (ramp(8, 32, side, side), ramp(64, 32, 3, 3)),
    }
    found = {}
    for function, arguments in calls.items():
        arguments = jax.device_put(arguments)
        result = function(*arguments).block_until_ready()
        times = []
        for _ in range(RUNS):
            started = time.perf_counter()
            function(*arguments).block_until_ready()
            times.append(time.perf_counter() - started)
        total = float(np.abs(np.asarray(result, np.float64)).sum())
        found[function.__name__] = {"seconds": statistics.median(times), "sum": total}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
