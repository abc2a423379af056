"""Every kind of function that compiles, on eight pretended devices."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import RunCli
from warm_checks import Warm, assert_counts_are_jax_own, only, outcomes

pytestmark = pytest.mark.jax
EIGHT = ("--devices", "8", "--platform", "cpu")
KINDS = """
import functools
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
try:
    from jax import shard_map
except ImportError:
    from jax.experimental.shard_map import shard_map

assert jax.device_count() == 8
mesh = Mesh(np.array(jax.devices()), ("x",))
x = np.arange(64, dtype=np.float32).reshape(8, 8)

def mapped(v):
    return v * 2
jax.pmap(mapped)(x).block_until_ready()
def unchanged(v):
    return v
jax.pmap(unchanged)(x).block_until_ready()

def shards(v):
    return jax.lax.psum(v, "x")
jax.jit(functools.partial(shard_map, mesh=mesh, in_specs=P("x"), out_specs=P())(shards))(x)

@jax.custom_vjp
def custom(v):
    return jnp.sum(v ** 2)
custom.defvjp(lambda v: (custom(v), v), lambda v, g: (3 * g * v,))
@jax.jit
def gradient(v):
    return jax.grad(custom)(v)
gradient(x)

@jax.jit
def scanned(v):
    return jax.lax.scan(lambda c, row: (c + row, c), jnp.zeros(8), v)
scanned(x)

@functools.partial(jax.jit, donate_argnums=0)
def donated(v):
    return v + 1
donated(jax.device_put(x))

try:
    from jax.experimental import pallas as pl
except ImportError:  # 0.5.3 needs absl for it
    pl = None
def add_kernel(a_ref, o_ref):
    o_ref[...] = a_ref[...] + 1
@jax.jit
def tiled(v):
    if pl is None:
        return v + 2
    return pl.pallas_call(
        add_kernel, out_shape=jax.ShapeDtypeStruct(v.shape, v.dtype), interpret=True)(v)
tiled(x)
"""


def test_every_kind_is_accounted_for(warm: Warm, script: Any) -> None:
    path = script(KINDS)
    cold, hot = warm(path, options=EIGHT), warm(path, options=EIGHT)
    for document in (cold, hot):
        assert_counts_are_jax_own(document)
    assert outcomes(cold) == {("written", "not-in-cache")}
    version = tuple(map(int, hot["processes"][0]["jax"].split(".")[:2]))
    unstable = {"jit_call_wrapped", "jit__fun"} if (0, 8) <= version < (0, 10) else set()
    missed = {m["module"] for m in hot["modules"] if m["outcome"] != "hit"}
    assert missed <= unstable  # pmap's key changes every run on 0.8.3 and 0.9
    for function in ("gradient", "scanned", "donated", "tiled"):
        row = only(cold, f"jit_{function}")
        assert row["function"] == function
        assert row["file"] == str(path)
        assert [(a["dtype"], a["shape"]) for a in row["arguments"]] == [("float32", [8, 8])]
        assert row["trace_seconds"] > 0
        assert row["lower_seconds"] > 0
    functions = {f["function"]: f for f in cold["functions"]}
    assert {"mapped", "gradient", "scanned", "donated", "tiled"} <= set(functions)
    kinds = {name: f["kind"] for name, f in functions.items()}
    assert kinds["mapped"] == kinds["unchanged"] == "pmap"  # one has no operation of its own
    assert kinds["scanned"] == "jit"
    assert [f for f in functions if "shard" in f]


def test_a_storm_is_named(warm: Warm, script: Any) -> None:
    path = script(
        """
        import functools, jax, numpy as np
        @jax.jit
        def step(x, scale):
            return x.sum() * scale
        for n in range(1, 13):
            step(np.ones((4, n), np.float32), np.float32(1))
        @jax.jit
        def steady(x):
            return x
        for _ in range(20):
            steady(np.ones(3))
        @functools.partial(jax.jit, static_argnums=1)
        def power(x, n):
            return x ** n
        for n in range(2, 13):
            power(np.ones(3), n)
        """
    )
    document = warm(path)
    functions = {f["function"]: f for f in document["functions"]}
    assert (functions["step"]["signatures"], functions["step"]["kind"]) == (12, "jit")
    assert functions["step"]["varies"] == ["axis 1 of x (1, 2, 3, 4, 5, 6, …)"]
    assert functions["steady"]["signatures"] == 1
    recompile_notes = [n for n in document["notes"] if "step" in n]
    assert recompile_notes == ["`step` has 12 programs: axis 1 of x (1, 2, 3, 4, 5, 6, …) varies"]
    power = functions["power"]
    assert (power["signatures"], power["compiles"]) == (1, 11)
    assert any("`power` has 11 programs" in n and "static" in n for n in document["notes"])


def test_colocated_python(warm: Warm, script: Any) -> None:
    path = script(
        """
        import sys
        import jax, numpy as np
        try:
            from jax.experimental import colocated_python
            devices = colocated_python.colocated_cpu_devices(jax.devices("cpu"))
        except Exception as error:
            print("unavailable:", error)
            sys.exit(77)

        @colocated_python.colocated_python
        def beside(x):
            return x + 1
        beside = beside.specialize(devices=jax.devices("cpu")[:1])
        try:
            for n in range(1, 4):
                beside(jax.device_put(np.ones(n, np.float32), jax.devices("cpu")[0]))
        except Exception as error:
            print("unavailable:", error)
            sys.exit(77)
        """
    )
    document = warm(path, options=EIGHT, code=None)
    if document["script_exit_code"] == 77:
        pytest.skip("no colocated_python on this JAX")
    (beside,) = [f for f in document["functions"] if f["kind"] == "colocated_python"]
    assert (beside["function"], beside["signatures"]) == ("beside", 3)
    assert beside["varies"] == ["axis 0 of argument 0 (1, 2, 3)"]


# ``warm MODULE:FUNCTION``: the keys are those of the plain call.


MODELS = """
import functools
import jax, jax.numpy as jnp

@jax.jit
def step(x):
    return jnp.sin(x) @ x.T

@functools.partial(jax.jit, static_argnums=1, static_argnames=("flag",))
def scaled(x, n, *, flag=False):
    return x * n + (1 if flag else 0)

def plain(params, x, rate, train=True):
    return {"y": (x @ params["w"] + params["b"]) * rate if train else x}

def init(width):
    return {"w": jnp.ones((width, width)), "b": jnp.zeros(width)}

@jax.jit
def draw(key, x):
    return x + jax.random.normal(key, x.shape)

class Net:
    @staticmethod
    @jax.jit
    def wide(x, y):
        return x.sum() + y[0] + y[1]

@jax.jit
def held(x):
    return jnp.cos(x) * 2
"""
CALLS = """
import sys
import jax, jax.numpy as jnp, numpy as np, models
models.step(np.ones((8, 128), np.float32))
models.scaled(jnp.ones(8), 3, flag=True)
params = {"w": jnp.ones((4, 4)), "b": jnp.ones(4)}
jax.jit(models.plain, static_argnames="train")(params, jnp.ones((2, 4)), 0.5, train=True)
models.draw(jax.random.key(0), jnp.ones(4, jnp.bfloat16))
models.Net.wide(jnp.ones((2, 3), bool), (1.0, jnp.ones((), jnp.int8)))
models.held(jax.device_put(jnp.ones(3), jax.devices()[0]))
"""
#: The arguments of a function, as ``--args`` reads them, or as the command line has them.
ARGUMENTS: dict[str, str | tuple[str, ...]] = {
    "models.py:step": ("--arg", "f32[8,128]"),
    "models:scaled": ("--arg", "f32[8]", "--arg", "3", "--static", "flag=True"),
    "models:plain": """
args = [{ "$call" = { function = "models:init", static = { width = 4 } } }, "f32[2,4]", 0.5]
static = { train = true }
""",
    "models.py:draw": 'kwargs = { key = "key[]", x = "bf16[4]" }',
    "models:Net.wide": 'args = ["bool[2,3]", { "$tuple" = [1.0, "i8[]"] }]',
    "models:held": 'args = ["f32[3]"]\ncommitted = true',
}
MODULES = ["jit_step", "jit_scaled", "jit_plain", "jit_draw", "jit_wide", "jit_held"]
Call = Callable[..., Any]


@pytest.fixture
def call(run_cli: RunCli, cache: Path, each_jax_python: str, tmp_path: Path) -> Call:
    """Warm something of ``models.py`` and return the document."""
    (tmp_path / "models.py").write_text(MODELS)

    def run(*args: str, code: int = 0) -> Any:
        done = run_cli("warm", "--json", "-C", cache, "--python", each_jax_python, *args)
        assert done.returncode == code, done.stderr
        return json.loads(done.stdout) if done.stdout else done.stderr

    return run


def test_a_plain_call_hits_what_was_compiled_without_it(
    call: Call, warm: Warm, script: Any, tmp_path: Path
) -> None:
    keys = {}
    for function, arguments in ARGUMENTS.items():
        if isinstance(arguments, str):
            (tmp_path / "args.toml").write_text(arguments)
            arguments = ("--args", "args.toml")
        document = call(function, *arguments)
        assert outcomes(document) == {("written", "not-in-cache")}
        (row,) = document["modules"]
        assert row["function"] in function
        keys[row["module"]] = row["key"]
    assert sorted(keys) == sorted(MODULES)
    call("models:step", "--arg", "x=f64[8,128]", "--fail-on-miss")  # no 64 bits without x64
    call("models:held", "--arg", "f32[3]", "--fail-on-miss", code=1)  # another key
    ran = warm(script(CALLS))
    for name in MODULES:
        row = only(ran, name)
        assert (row["outcome"], row["key"]) == ("hit", keys[name]), name


def test_mistakes_are_said(call: Call, tmp_path: Path) -> None:
    for word, said in (
        ("models:nope", "no nope in models"),
        ("models:MODELS.x", "no MODELS.x in models"),
        ("nowhere:f", "cannot import nowhere"),
        ("nowhere.py:f", "no such file:"),
    ):
        error = json.loads(call(word, code=2))["error"]
        assert error["code"] == "no-function"
        assert said in error["message"]
    (tmp_path / "broken.py").write_text("1 / 0\ndef f(): ...\n")
    call("broken:f", code=1)  # the program's own failure, with its traceback
