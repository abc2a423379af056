"""What changes between two calls: each is refused three times, and named.

With ``LATE=1`` the first guard is put up after the warm-up of the changes of arguments.
"""

import functools
import os
from typing import Any

import jax
import numpy as np
from harness import case, dispatches, equal, guard, main, ones, refuse_thrice
from jax.sharding import Mesh, NamedSharding, PartitionSpec

LATE = bool(os.environ.get("LATE"))
#: Adds a case for which it makes no difference when the first guard is put up.
once: Any = (lambda _: lambda function: function) if LATE else case
MESH = Mesh(np.array(jax.devices()), ("i",))


def change(
    name: str,
    function: Any,
    warm: Any,
    other: Any,
    *,
    reason: str,
    changed: "tuple[str, ...]",
    says: str = "",
) -> None:
    """Add a case: ``warm()`` and ``other()`` make the arguments of two calls.

    ``says`` is a part of the message.
    """
    jitted = function()
    if LATE:
        jitted(*warm())

    @case(name)
    def run() -> str:
        if not LATE:
            with guard(action="count"):  # from now on, shardings are recorded
                jitted(*warm())
        arguments = other()
        error = refuse_thrice(lambda: jitted(*arguments), modules=1)
        equal(error.reason, reason, "reason")
        equal(tuple(c.name for c in error.changed), changed, "what changed")
        assert says in str(error), f"{says!r} is not in {error}"
        assert error.function, "the function has no name"
        assert str(error.file).endswith("changes.py"), f"its file is {error.file}"
        equal(dispatches(lambda: jitted(*arguments)), 0, "Python dispatches of a warm call")
        return "; ".join(map(str, error.changed)) or error.reason


def double(x: Any) -> Any:
    return x * 2


def simple(name: str, warm: Any, other: Any, reason: str, says: str = "") -> None:
    """Add a change of the only argument."""
    change(
        name,
        lambda: jax.jit(lambda x: x * 2),
        lambda: (warm(),),
        lambda: (other(),),
        reason=reason,
        changed=("x",),
        says=says,
    )


simple("shape", lambda: ones(2, 4), lambda: ones(8, 4), "argument-shape")
simple("rank", lambda: ones(4), lambda: ones(4, 1), "argument-shape")
simple("dtype", lambda: ones(4), lambda: ones(4, dtype=np.int32), "argument-dtype")
simple("weak type", lambda: np.float32(1), lambda: 1.0, "argument-weak-type")


def nearest(name: str, sizes: "tuple[int, ...]", before: int) -> None:
    """Add a case: a call with the size 24, after calls with others."""
    jitted = jax.jit(lambda x: x * 2)

    def warm_up() -> None:
        for size in sizes:
            jitted(ones(size))

    if LATE:
        warm_up()

    @case(name)
    def run() -> None:
        if not LATE:
            with guard(action="count"):
                warm_up()
        (change,) = refuse_thrice(lambda: jitted(ones(24)), modules=1).changed
        equal(change.before, f"float32[{before}]", "before")


# JAX's own order of what it traced before the guard differs from process to process.
nearest("the nearest of many shapes", (*range(16, 7, -1), 99), 16)
# Of two that are equally near, the latest where the guard has seen them.
nearest("the latest of the nearest shapes", (22, 26), 26)


def on(*spec: "str | None", mesh: Any = MESH) -> Any:
    """An array that is committed to both devices."""
    return jax.device_put(ones(4, 4), NamedSharding(mesh, PartitionSpec(*spec)))


def sharding(name: str, warm: Any, other: Any, says: str) -> None:
    """Add a change that leaves no trace in what JAX keeps: it is named only where recorded."""
    change(
        name,
        lambda: jax.jit(lambda x: x * 2),
        lambda: (warm(),),
        lambda: (other(),),
        reason="unknown" if LATE else "argument-sharding",
        changed=() if LATE else ("sharding of x",),
        says="commitment to a device" if LATE else says,
    )


sharding("sharding", lambda: on("i"), lambda: on(None, "i"), "(None, 'i'")
sharding("commitment", lambda: ones(4), lambda: jax.device_put(ones(4), jax.devices()[0]), "Single")

if hasattr(jax.sharding, "AxisType"):
    kind = jax.sharding.AxisType.Explicit
    explicit = Mesh(np.array(jax.devices()), ("i",), axis_types=(kind,))
    change(
        "sharding, explicit mesh",
        lambda: jax.jit(lambda x: x * 2),
        lambda: (on("i", mesh=explicit),),
        lambda: (on(None, "i", mesh=explicit),),
        reason="argument-sharding",
        changed=("x",) if LATE else ("x", "sharding of x"),
        says="[4,4@i] now",
    )


class Config:
    """A static argument, equal by value, that has no ``repr`` of its own."""

    def __init__(self, width: int) -> None:
        self.width = width

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Config) and other.width == self.width

    def __hash__(self) -> int:
        return hash(self.width)


class Named(Config):
    """One whose ``repr`` is long."""

    def __repr__(self) -> str:
        return f"Named(layers=12, heads=8, dropout=0.1, width={self.width}, rest={'.' * 400})"


def scaled(x: Any, config: Any) -> Any:
    return x * (config.width if isinstance(config, Config) else 3)


def static(name: str, warm: Any, other: Any, says: str, **options: Any) -> None:
    change(
        f"static: {name}",
        lambda: jax.jit(scaled_anew(), **(options or {"static_argnames": "config"})),
        lambda: (ones(4), warm),
        lambda: (ones(4), other),
        reason="static-argument",
        changed=("config",),
        says=says,
    )


def scaled_anew() -> Any:
    return lambda x, config: scaled(x, config)


static("value", "a", "b", "config: 'a' before, 'b' now")
static("by position", "a", "b", "'b' now", static_argnums=1)
static("by position from the end", "a", "b", "'b' now", static_argnums=-1)
static("a long repr", Named(1), Named(2), "width=2")
static("the address as repr", Config(1), Config(2), "Config object")
static("-1 and -2, which hash alike", -1, -2, "-2 now")
change(
    "an equal static value is not named",
    lambda: jax.jit(scaled_anew(), static_argnames="config"),
    lambda: (ones(4), Config(5)),
    lambda: (ones(5), Config(5)),
    reason="argument-shape",
    changed=("x",),
)


class Other(dict):  # type: ignore[type-arg]
    """Another mapping with the same paths, such as flax's FrozenDict."""


@functools.partial(
    jax.tree_util.register_pytree_with_keys,
    Other,
    lambda d: ([(jax.tree_util.DictKey(key), d[key]) for key in sorted(d)], tuple(sorted(d))),
)
def _unflatten(names: Any, values: Any) -> Any:
    return Other(zip(names, values, strict=True))


class Layer:
    """A pytree with a static field, such as a module of equinox."""

    def __init__(self, weight: Any, activation: str) -> None:
        self.weight = weight
        self.activation = activation


jax.tree_util.register_pytree_node(
    Layer, lambda layer: ((layer.weight,), layer.activation), lambda a, w: Layer(w[0], a)
)


def structure(name: str, warm: Any, other: Any, changed: str, says: str = "") -> None:
    change(
        f"structure: {name}",
        lambda: jax.jit(lambda x: jax.tree_util.tree_leaves(x)[0] * 2),
        lambda: (warm,),
        lambda: (other,),
        reason="argument-structure",
        changed=(changed,),
        says=says,
    )


leaf = ones(4)
structure("one more leaf", {"w": leaf}, {"w": leaf, "b": leaf}, "x['b']", "x['b']: absent before")
structure("an array for None", (leaf, None), (leaf, leaf), "x[1]")
structure("None for nothing", {"w": leaf}, {"w": leaf, "b": None}, "structure of x", "'b': None")
structure("list for tuple", (leaf, leaf), [leaf, leaf], "structure of x", "[*, *]")
structure("another mapping", {"w": leaf}, Other(w=leaf), "structure of x", "Other")
structure("a static field", Layer(leaf, "relu"), Layer(leaf, "gelu"), "structure of x", "gelu")
structure(
    "a static field of many leaves",
    [leaf] * 2000 + [Layer(leaf, "relu")],
    [leaf] * 2000 + [Layer(leaf, "gelu")],
    "structure of x",
    "gelu",
)
change(
    "an argument is None",
    lambda: jax.jit(lambda x, y: x if y is None else x + y),
    lambda: (leaf, None),
    lambda: (leaf, leaf),
    reason="argument-structure",
    changed=("y",),
)
change(
    "one more positional argument",
    lambda: jax.jit(lambda x, *rest: sum(rest, x)),
    lambda: (leaf, leaf),
    lambda: (leaf, leaf, leaf),
    reason="argument-structure",
    changed=("rest[1]",),
)


class Doubler:
    """An object with ``__call__``, and without truth."""

    def __call__(self, x: Any) -> Any:
        return x * 2

    def __bool__(self) -> bool:
        return False


change(
    "shape, of an object that is called",
    lambda: jax.jit(Doubler()),
    lambda: (ones(2),),
    lambda: (ones(3),),
    reason="argument-shape",
    changed=("x",),
    says="function Doubler",
)
change(
    "shape, of functools.partial",
    lambda: jax.jit(functools.partial(lambda y, x: x * y, 2)),
    lambda: (ones(2),),
    lambda: (ones(3),),
    reason="argument-shape",
    changed=("x",),
)


@once("shape, of one of seventy closures of a line")
def closures() -> str:
    made = [jax.jit(lambda x, n=n: x * n) for n in range(70)]
    for each in made:
        each(ones(2))
    error = refuse_thrice(lambda: made[0](ones(3)))
    equal(error.reason, "argument-shape", "reason")
    return str(error.changed[0])


@once("an early one of forty signatures, now committed")
def early() -> str:
    jitted = jax.jit(double)
    with guard(action="count"):
        for n in range(1, 41):
            jitted(ones(n))
    error = refuse_thrice(lambda: jitted(jax.device_put(ones(1), jax.devices()[0])))
    equal(error.reason, "argument-sharding", "reason")
    return str(error.changed[0])


@once("function object")
def function_object() -> str:
    def make() -> Any:
        return jax.jit(lambda x: x * 3)

    make()(ones(4))
    other = make()
    error = refuse_thrice(lambda: other(ones(4)))
    equal(error.reason, "new-function", "reason")
    return error.reason


@once("a thousand arguments")
def thousand() -> str:
    jitted = jax.jit(lambda x: x[0] * 2)
    jitted([ones(2)] * 1000)
    error = refuse_thrice(lambda: jitted([ones(3)] * 1000), modules=1)
    equal(len(error.changed), 1000, "changes")
    equal(str(error).splitlines()[-1], "  and 990 more", "the last line")
    return error.reason


@once("first call")
def first_call() -> str:
    jitted = jax.jit(lambda x: x * 4)
    error = refuse_thrice(lambda: jitted(ones(4)))
    equal(error.reason, "not-cached-before", "reason")
    return error.reason


@once("setting")
def setting() -> str:
    jitted = jax.jit(lambda x: x @ x)
    jitted(ones(4, 4))

    def call() -> Any:
        with jax.default_matmul_precision("float32"):
            return jitted(ones(4, 4))

    error = refuse_thrice(call)
    equal(error.reason, "config", "reason")
    return str(error.changed[0])


@once("a setting of an earlier compile")
def setting_again() -> str:
    jitted = jax.jit(lambda x: x @ x)

    def call() -> Any:
        with jax.default_matmul_precision("float32"):
            return jitted(ones(4, 4))

    with guard(action="count"):
        jitted(ones(4, 4))
        call()
    jax.clear_caches()
    error = refuse_thrice(call)
    equal(error.reason, "unknown", "reason")
    return error.reason


@once("eager operation")
def eager() -> str:
    x = jax.device_put(ones(40))
    error = refuse_thrice(lambda: x[:23])
    equal(error.reason, "eager-operation", "reason")
    assert str(error.file).endswith("changes.py"), error.file
    return f"{error.function}, {error.reason}"


if __name__ == "__main__":
    main()
