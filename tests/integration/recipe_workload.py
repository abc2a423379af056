"""Programs whose recipes are compiled: ``MODE`` is one of the functions here."""

import sys

import jax
import jax.numpy as jnp
import numpy as np


def step():
    """One function, and what makes its argument."""

    @jax.jit
    def step(x):
        return jnp.sin(x) @ x

    step(jnp.ones((8, 8)))


def single():
    """Matrix products, a gradient, a scan, randomness, the same function from two lines."""

    @jax.jit
    def loss(w, x):
        return jnp.tanh(x @ w).sum()

    w, x = np.ones((8, 4), np.float32), np.ones((16, 8), np.float32)
    jax.grad(loss)(w, x)
    loss(w, x).block_until_ready()
    jax.jit(lambda c: jax.lax.scan(lambda a, b: (a * 2 + b, b), c, jnp.arange(9.0)))(1.0)
    jax.random.normal(jax.random.key(1), (5,)).block_until_ready()
    print(jnp.zeros((3,)) + 1)
    print(jnp.zeros((3,)) + 1)


def sharded():
    """Eight devices: a sharded product, a collective, a program on the last device alone."""
    from jax.sharding import Mesh, NamedSharding
    from jax.sharding import PartitionSpec as P

    devices = jax.devices()
    assert len(devices) == 8, devices
    mesh = Mesh(np.array(devices).reshape(4, 2), ("a", "b"))
    x = jax.device_put(np.ones((16, 8), np.float32), NamedSharding(mesh, P("a", "b")))
    f = jax.jit(lambda x: (x @ x.T).sum(0), out_shardings=NamedSharding(mesh, P("a")))
    print(f(x))
    backwards = Mesh(np.array(devices[::-1]), ("a",))
    y = jax.device_put(np.ones((8, 3), np.float32), NamedSharding(backwards, P("a")))
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


def together():
    """Two processes: a program over all devices, and one of each process alone."""
    from jax.sharding import Mesh, NamedSharding
    from jax.sharding import PartitionSpec as P

    jax.distributed.initialize()
    assert jax.process_count() == 2
    mesh = Mesh(np.array(jax.devices()), ("a",))
    sharding = NamedSharding(mesh, P("a"))
    local = np.ones((len(jax.local_devices()), 4), np.float32)
    x = jax.make_array_from_process_local_data(sharding, local)
    total = jax.jit(lambda x: (x * 2).sum(), out_shardings=NamedSharding(mesh, P()))(x)
    assert total == 8 * len(jax.devices())
    print(jax.jit(lambda y: jnp.exp(y) + 1)(np.float32(2)))


if __name__ == "__main__":
    globals()[sys.argv[1]]()
