"""Ways to reach a compile: each passes warm, and is refused three times with another shape."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from harness import case, dispatches, equal, guard, main, ones, refuse, refuse_thrice, xla_compiles
from jax.sharding import Mesh, NamedSharding, PartitionSpec

shard_map = getattr(jax, "shard_map", None)
if shard_map is None:
    from jax.experimental.shard_map import shard_map

rows = PartitionSpec("i")
mesh = Mesh(np.array(jax.devices()), ("i",))


def inner() -> Any:
    return jax.jit(lambda a: jnp.sin(a) * 2)


def outer() -> Any:
    one = inner()
    return jax.jit(lambda a: one(a) + one(a * 2))


def total() -> Any:
    two = outer()
    return lambda a: two(a).sum()


def custom() -> Any:
    @jax.custom_vjp
    def triple(a: Any) -> Any:
        return (a * 3).sum()

    triple.defvjp(lambda a: (triple(a), a), lambda a, g: (g * a,))
    return triple


def scanned() -> Any:
    one = inner()
    return lambda a: jax.lax.scan(lambda c, v: (c + one(v), v), a[0], a)[0]


def sharded() -> Any:
    def scale(a: Any) -> Any:
        return a * jax.lax.psum(a.sum(), "i")

    return shard_map(scale, mesh=mesh, in_specs=rows, out_specs=rows)


#: Each is made anew, so that no case is warm through another.
FUNCTIONS = {
    "jit": inner(),
    "nested jit": outer(),
    "grad": jax.grad(total()),
    "jit of grad": jax.jit(jax.grad(total())),
    "value_and_grad": jax.value_and_grad(total()),
    "vmap": jax.vmap(outer()),
    "jit of vmap": jax.jit(jax.vmap(lambda a: a * 5)),
    "hessian": jax.hessian(total()),
    "checkpoint": jax.jit(jax.grad(jax.checkpoint(total()))),
    "custom_vjp": jax.jit(jax.grad(custom())),
    "scan": jax.jit(scanned()),
    "cond": jax.jit(lambda a: jax.lax.cond(a.sum() > 0, jnp.sin, jnp.cos, a)),
    "while_loop": jax.jit(lambda a: jax.lax.while_loop(lambda v: v.sum() < 0, jnp.sin, a)),
    "shard_map": jax.jit(sharded()),
    "out_shardings": jax.jit(inner(), out_shardings=NamedSharding(mesh, rows)),
    "donated": jax.jit(lambda a: a + 1, donate_argnums=0),
    "pmap": jax.pmap(lambda a: a + 1),
}


def add(name: str, function: Any) -> None:
    @case(name)
    def run() -> str:
        function(ones(2, 4))
        with guard():
            equal(xla_compiles(lambda: function(ones(2, 4))), 0, "compiles of a warm call")
        error = refuse_thrice(lambda: function(ones(2, 6)))
        usual = dispatches(lambda: function(ones(2, 4)))
        equal(dispatches(lambda: function(ones(2, 6))), usual, "Python dispatches of a warm call")
        assert error.compile.caller_file, "the caller is not named"
        return f"{error.module}: {error.reason}"


for _name, _function in FUNCTIONS.items():
    add(_name, _function)


@case("ahead of time")
def ahead_of_time() -> str:
    step = jax.jit(lambda x: x * 2)
    step(ones(2))
    lowered = step.lower(jax.ShapeDtypeStruct((3,), "float32"))
    error = refuse_thrice(lowered.compile)
    equal([c.name for c in error.changed], ["x"], "what changed")
    compiled = lowered.compile()
    with guard():
        equal(xla_compiles(lambda: compiled(ones(3))), 0, "compiles of a compiled call")
    return str(error.changed[0])


@case("ahead of time on='trace'")
def ahead_of_time_trace() -> None:
    step = jax.jit(lambda x: x * 2)
    with guard("trace"):
        refuse(lambda: step.lower(jax.ShapeDtypeStruct((3,), "float32")))
        refuse(lambda: jax.eval_shape(step, jax.ShapeDtypeStruct((3,), "float32")))


@case("a refused call does not donate")
def donates_nothing() -> None:
    donate = jax.jit(lambda a: a + 1, donate_argnums=0)
    value = jax.device_put(ones(33))
    with guard():
        refuse(lambda: donate(value))
    assert not value.is_deleted(), "its argument is deleted"


@case("ordered callbacks")
def callbacks() -> None:
    printed: list[float] = []

    @jax.jit
    def loud(a: Any) -> Any:
        jax.debug.callback(lambda v: printed.append(float(v)), a, ordered=True)
        return a * 2

    with guard(eager="allow"):
        refuse(lambda: loud(np.float32(1)))
    loud(np.float32(1)).block_until_ready()
    with guard("trace"):
        loud(np.float32(2)).block_until_ready()
    jax.effects_barrier()
    equal(printed, [1.0, 2.0], "what was printed")


@case("an eager operation inside a trace")
def inside_a_trace() -> None:
    @jax.jit
    def early(a: Any) -> Any:
        with jax.ensure_compile_time_eval():
            constant = jnp.arange(41).sum()
        return a + constant

    error = refuse_thrice(lambda: early(ones(3)))
    equal(error.reason, "eager-operation", "reason")


@case("scan with a lambda outside jit, at each call")
def eager_scan() -> None:
    x = jax.device_put(ones(3, 4))

    def scan() -> Any:
        return jax.lax.scan(lambda c, v: (c + v, v), x[0], x)[0]

    scan()
    with guard():
        first = refuse(scan)
        equal(str(refuse(scan)), str(first), "the second refusal")
    equal(first.reason, "eager-operation", "reason")
    assert str(first.file).endswith("transformations.py"), first.file


@case("another value of a traced argument passes")
def values_pass() -> None:
    count = jax.jit(lambda n: jax.lax.fori_loop(0, n, lambda i, a: a + i, 0))
    count(3)
    with guard("trace"):
        equal(xla_compiles(lambda: count(5)), 0, "compiles")


@case("after clear_caches() everything is cold")
def cleared() -> None:
    step = jax.jit(functools.partial(lambda y, x: x * y, 2))
    step(ones(3))
    jax.clear_caches()
    error = refuse_thrice(lambda: step(ones(3)))
    assert "caches were cleared" in str(error), error


if __name__ == "__main__":
    main()
