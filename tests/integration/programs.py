"""Programs for a Python that has jax: ``programs.py NAME ARG…``, where NAME is a function here.

Those that take a cache write every compile into it; for the others ``JAX_…`` variables say so.
"""

import json
import os
import re
import sys
import threading
import warnings

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

F32 = jnp.float32
EVENTS = []
jax.monitoring.register_event_listener(lambda event, **_: EVENTS.append(event))


def count(name):
    """How often JAX has reported an event of its cache."""
    return EVENTS.count(f"/jax/compilation_cache/{name}")


def use_cache(directory):
    """Write every compile into a directory."""
    jax.config.update("jax_compilation_cache_dir", directory)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def bundle(cache):
    """Compile a few programs; print how many were hits and how many misses."""
    use_cache(cache)
    x = jnp.arange(12.0).reshape(3, 4)
    value = jax.jit(lambda a: jnp.tanh(a @ a.T).sum())(x)
    grad = jax.jit(jax.grad(lambda a: jnp.sin(a).sum()))(x)
    result = float(value) + float(grad.sum())
    counts = {name: count(name) for name in ("cache_hits", "cache_misses")}
    print(json.dumps({**counts, "result": result}))


def pair(cache, port, number):
    """Fill a cache from two processes of one program."""
    use_cache(cache)
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"localhost:{port}", 2, int(number))

    def total(x):
        return (x * 2).sum()

    def single(x):
        return x + 1

    split = NamedSharding(Mesh(np.array(jax.devices()), ("x",)), PartitionSpec("x"))
    data = np.arange(8, dtype=np.float32)
    print(jax.jit(total)(jax.make_array_from_callback((8,), split, lambda index: data[index])))
    print(jax.jit(single)(np.ones(3, dtype=np.float32)))


# Programs whose recipes are compiled.


def single():
    """Matrix products, a gradient, a scan, the same function from two lines."""

    @jax.jit
    def loss(w, x):
        return jnp.tanh(x @ w).sum()

    w, x = np.ones((8, 4), np.float32), np.ones((16, 8), np.float32)
    jax.grad(loss)(w, x)
    loss(w, x).block_until_ready()
    jax.jit(lambda c: jax.lax.scan(lambda a, b: (a * 2 + b, b), c, jnp.arange(9.0)))(1.0)
    print(jnp.zeros((3,)) + 1)
    print(jnp.zeros((3,)) + 1)


def sharded():
    """Eight devices: a sharded product, a collective, a program on the last device alone."""
    devices = jax.devices()
    assert len(devices) == 8, devices
    mesh = Mesh(np.array(devices).reshape(4, 2), ("a", "b"))
    x = jax.device_put(np.ones((16, 8), np.float32), NamedSharding(mesh, PartitionSpec("a", "b")))
    f = jax.jit(lambda x: (x @ x.T).sum(0), out_shardings=NamedSharding(mesh, PartitionSpec("a")))
    print(f(x))
    backwards = Mesh(np.array(devices[::-1]), ("a",))
    y = jax.device_put(np.ones((8, 3), np.float32), NamedSharding(backwards, PartitionSpec("a")))
    print(jax.jit(lambda y: jnp.cos(y).sum())(y))
    alone = jax.device_put(np.float32(3), devices[-1])
    print(jax.jit(lambda z: z * z + 1)(alone))


def pmapped():
    """Replicas."""

    def step(x):
        return jax.lax.psum(jnp.sin(x), "i")

    print(jax.pmap(step, axis_name="i")(np.ones((jax.device_count(), 4), np.float32)))


def devices():
    """One process with eight devices: all of the above."""
    single()
    sharded()
    pmapped()


#: Names of functions; the last two are too long for the name of a file: JAX warns, and compiles.
NAMES = [
    *("Δt_step", "θ", "损失", "é", "\uff21", "\U0001d518", "שלום", "ก็", "κ\\n", "Δ" * 40),
    *("<lambda>", "a.b", "..", "a/b", "a b", "a-b", "_", "jit_", "%s"),
    *("\x1b[31mred", 'q"uote', "back\\slash", "\\CE\\94", "new\nline", "\u202e"),
    *("x" * 170, "x" * 300, "Δ" * 100),
]


def names():
    """Run one small function of each name; print the names that JAX hit."""

    def make_function(name, number):
        def function(x):
            return jnp.sin(x) * number

        function.__name__ = function.__qualname__ = name
        return function

    hits = []
    x = jax.device_put(np.array([0.5, 1.5], np.float32))
    warnings.simplefilter("ignore")
    for number, name in enumerate(NAMES, 2):
        before = count("cache_hits")
        jax.jit(make_function(name, number))(x).block_until_ready()
        if count("cache_hits") > before:
            hits.append(name)
    print(json.dumps(hits))


def cached():
    """Run two functions, once or, with ``LOOP``, until a line is read; print what JAX reported."""

    def step(x):
        return jnp.tanh(x @ x.T).sum(axis=1) + jnp.sort(x[:, 0])

    def loss(x):
        return jnp.exp(-x).mean()

    def run_both():
        jax.jit(step)(x).block_until_ready()
        jax.jit(loss)(x).block_until_ready()

    x = jnp.sin(jnp.arange(512.0).reshape(16, 32))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run_both()
        result = {"hits": count("cache_hits"), "requests": count("compile_requests_use_cache")}
        if os.environ.get("LOOP"):
            stop = threading.Event()
            threading.Thread(target=lambda: (sys.stdin.readline(), stop.set()), daemon=True).start()
            result = {"rounds": 0, "hits": 0, "expected_hits": 0}
            while not stop.is_set():
                print("looping", flush=True)
                # Read two entries and write one that was never there.
                jax.clear_caches()
                before = count("cache_hits")
                run_both()
                result["hits"] += count("cache_hits") - before
                result["expected_hits"] += 2
                result["rounds"] = rounds = result["rounds"] + 1
                jax.jit(lambda x, n=rounds: x * (n + 0.5) + os.getpid())(x).block_until_ready()
    cache_warnings = [str(w.message) for w in caught if "ompilation cache" in str(w.message)]
    for warning in cache_warnings:
        print(warning, file=sys.stderr)
    print(json.dumps({"warnings": len(cache_warnings), **result}))


# What JAX says of programs that are shown.


INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?[\w.-]+ = ", re.MULTILINE)
COMPUTATION = re.compile(r"^(?:ENTRY )?%?[\w.-]+ (?:\(.*)?\{(?:\s*//.*)?$", re.MULTILINE)
LAYOUT = re.compile(r"entry_computation_layout=\{(.*?)->(.*?)\}(?:, [a-z_]+=|\n)")
ARRAY = re.compile(r"(\w+)\[([\d,]*)\]")
BIG = np.random.RandomState(0).standard_normal((128, 128)).astype(np.float32)


def spec(shape, dtype=F32, sharding=None):
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


def truth_nothing():
    return jnp.arange(5)


def describe(compiled):
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


def truth(cache):
    """Compile functions on four devices, and print as JSON what JAX says of each."""
    os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"
    use_cache(cache)
    rows = NamedSharding(Mesh(np.array(jax.devices()), ("i",)), PartitionSpec("i"))
    jobs = [
        (jax.jit(truth_matmul), spec((8, 16)), spec((16, 32))),
        (jax.jit(truth_scan), spec((3, 5))),
        (jax.jit(truth_sharded), spec((8, 16), F32, rows)),
        (jax.jit(truth_donated, donate_argnums=0), spec((64,)), spec((64,))),
        (
            jax.jit(truth_dtypes),
            spec((4,), jnp.int8),
            spec((4,), jnp.bool_),
            spec((2, 2), jnp.complex64),
            spec((3,), jnp.float16),
            spec((2, 4), jnp.bfloat16),
        ),
        (jax.jit(truth_constant), spec((4, 128))),
        (jax.jit(truth_control), spec((7,))),
        (jax.jit(truth_svd), spec((8, 8))),
        (jax.jit(truth_nothing),),
    ]
    print(json.dumps([describe(f.lower(*args).compile()) for f, *args in jobs]))


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
