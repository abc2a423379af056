"""``warm MODULE:FUNCTION``: the keys are those of the plain call."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import RunCli
from warm_checks import Warm, only, outcomes

pytestmark = pytest.mark.jax

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
#: The arguments of each function, as ``--args`` reads them.
TABLES = {
    "models:step": 'args = ["f32[8, 128]"]',
    "models:scaled": 'args = ["float32[8]", 3]\nstatic = { flag = true }',
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
    for function, table in TABLES.items():
        (tmp_path / "args.toml").write_text(table)
        document = call(function, "--args", "args.toml")
        assert outcomes(document) == {("written", "not-in-cache")}
        keys |= {m["module"]: m["key"] for m in document["modules"]}
    assert sorted(keys) == sorted(MODULES)
    ran = warm(script(CALLS))
    for name in MODULES:
        row = only(ran, name)
        assert (row["outcome"], row["key"]) == ("hit", keys[name]), name


def test_on_the_command_line(call: Call, warm: Warm, script: Any, tmp_path: Path) -> None:
    call("models.py:step", "--arg", "f32[8,128]")
    call("models:step", "--arg", "x=f64[8,128]", "--fail-on-miss")  # no 64 bits without x64
    call("models:scaled", "--arg", "f32[8]", "--arg", "3", "--static", "flag=True")
    call("models:held", "--committed", "--arg", "f32[3]")
    call("models:held", "--arg", "f32[3]", "--fail-on-miss", code=1)  # another key
    (tmp_path / "plain.toml").write_text(
        'args = [{ w = "f32[4,4]", b = "f32[4]" }, "f32[2,4]", 0.5]\nstatic = { train = true }\n'
    )
    document = call("models:plain", "--args", "plain.toml")
    assert only(document, "jit_plain")["function"] == "plain"
    ran = warm(script(CALLS))
    hits = {m["module"] for m in ran["modules"] if m["outcome"] == "hit"}
    assert {"jit_step", "jit_scaled", "jit_held", "jit_plain"} <= hits


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
