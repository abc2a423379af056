"""The programs of :mod:`benchmarks.preload`: each prints its seconds, and those of its loads.

The seconds are those from after the imports to the last result. The seconds of the loads are JAX's
own: the sum of its ``cache_retrieval_time_sec`` events. With the argument ``half`` a program uses a
part of what it uses with ``all``.
"""

BEGIN = """
import sys, time
import jax, jax.numpy as jnp
from jax import monitoring
is_half = sys.argv[1] == "half"
loads = []
def listen(name, seconds, **_):
    if name.endswith("/cache_retrieval_time_sec"):
        loads.append(seconds)
monitoring.register_event_duration_secs_listener(listen)
"""
END = """
print(time.perf_counter() - started, sum(loads))
"""
#: An unrolled transformer: value and gradient, for each number of rows.
TRANSFORMER = """
started = time.perf_counter()
layers, width = map(int, sys.argv[2:])

def init(key):
    normal = lambda *shape: jax.random.normal(key, shape) * 0.02
    d = width
    return [dict(a=normal(d, 3 * d), o=normal(d, d), u=normal(d, 4 * d), d=normal(4 * d, d))
            for _ in range(layers)]

def loss(p, x):
    for b in p:
        q, k, v = jnp.split(x @ b["a"], 3, -1)
        x = x + jax.nn.softmax(q @ k.T / 8) @ v @ b["o"]
        x = x + jax.nn.gelu(x @ b["u"]) @ b["d"]
    return (x ** 2).mean()

parameters = jax.jit(init)(jax.random.key(0))
step = jax.jit(jax.value_and_grad(loss))
for rows in (32,) if is_half else (32, 48, 64):
    step(parameters, jnp.ones((rows, width)))[0].block_until_ready()
"""
#: A training step over stacked layers, and an evaluation.
SCAN = """
started = time.perf_counter()
layers, width = map(int, sys.argv[2:])

def block(x, p):
    x = x + jax.nn.softmax(x @ p["a"] @ x.swapaxes(-1, -2) / 8) @ x
    return x + jax.nn.gelu(x @ p["u"]) @ p["d"], None

def loss(parameters, x):
    return (jax.lax.scan(block, x, parameters)[0] ** 2).mean()

@jax.jit
def init(key):
    normal = lambda *shape: jax.random.normal(key, (layers, *shape)) * 0.02
    return dict(a=normal(width, width), u=normal(width, 4 * width), d=normal(4 * width, width))

@jax.jit
def step(parameters, moments, x):
    value, grads = jax.value_and_grad(loss)(parameters, x)
    moments = jax.tree.map(lambda m, g: 0.9 * m + g, moments, grads)
    return jax.tree.map(lambda p, m: p - 0.1 * m, parameters, moments), moments, value

parameters = init(jax.random.key(0))
moments = jax.tree.map(jnp.zeros_like, parameters)
x = jnp.ones((8, 32, width))
for _ in range(3):
    parameters, moments, value = step(parameters, moments, x)
value.block_until_ready()
if not is_half:
    jax.jit(loss)(parameters, x).block_until_ready()
"""
#: A server that answers requests of eight lengths.
SERVER = """
started = time.perf_counter()
layers, width = map(int, sys.argv[2:])
keys = jax.random.split(jax.random.key(0), layers)
weights = [jax.random.normal(key, (width, width)) * 0.02 for key in keys]

@jax.jit
def answer(weights, x):
    for w in weights:
        x = x + jax.nn.softmax(x @ x.T) @ jnp.tanh(x @ w)
    return jnp.argmax(x, -1)

for length in (16, 32, 48, 64) if is_half else (16, 32, 48, 64, 96, 128, 192, 256):
    answer(weights, jnp.ones((length, width))).block_until_ready()
"""
FLAX = """
from flax import nnx
started = time.perf_counter()

class Model(nnx.Module):
    def __init__(self, rngs):
        self.convs = nnx.List([nnx.Conv(i, 16, (3, 3), rngs=rngs) for i in (1, 16, 16, 16)])
        self.norms = nnx.List([nnx.LayerNorm(16, rngs=rngs) for _ in range(4)])
        self.head = nnx.Linear(16, 10, rngs=rngs)
    def __call__(self, x):
        for conv, norm in zip(self.convs, self.norms):
            x = nnx.relu(norm(conv(x)))
        return self.head(x.mean((1, 2)))

model = Model(nnx.Rngs(0))
@nnx.jit
def step(model, x):
    def loss(model):
        return (model(x) ** 2).mean()
    value, grads = nnx.value_and_grad(loss)(model)
    nnx.update(model, jax.tree.map(lambda p, g: p - 0.1 * g, nnx.state(model, nnx.Param), grads))
    return value
for batch in (4,) if is_half else (4, 8):
    step(model, jnp.ones((batch, 16, 16, 1))).block_until_ready()
"""
DIFFRAX = """
import diffrax
started = time.perf_counter()
weight = jax.random.normal(jax.random.key(0), (8, 8)) * 0.1
term = diffrax.ODETerm(lambda t, y, w: jnp.tanh(w @ y))

def loss(w, y, solver):
    steps = diffrax.PIDController(rtol=1e-4, atol=1e-6)
    done = diffrax.diffeqsolve(term, solver, 0.0, 1.0, 0.1, y, w, stepsize_controller=steps)
    return (done.ys ** 2).sum()

for solver in (diffrax.Tsit5(),) if is_half else (diffrax.Tsit5(), diffrax.Heun()):
    jax.jit(jax.value_and_grad(lambda w, y: loss(w, y, solver)))(
        weight, jnp.ones(8))[0].block_until_ready()
"""
#: Name, program, its arguments, and the package that it needs.
PROGRAMS = (
    ("12 unrolled layers of 256", TRANSFORMER, ("12", "256"), "jax"),
    ("24 unrolled layers of 64", TRANSFORMER, ("24", "64"), "jax"),
    ("64 unrolled layers of 128", TRANSFORMER, ("64", "128"), "jax"),
    ("training with scan", SCAN, ("12", "128"), "jax"),
    ("a server of eight shapes", SERVER, ("12", "64"), "jax"),
    ("flax", FLAX, (), "flax"),
    ("diffrax", DIFFRAX, (), "diffrax"),
)
