"""One edit has one cause, whoever is asked: each command and each function of the interface."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from conftest import RunCli, find_jax_pythons
from once import fill_once

import jaxcache

pytestmark = pytest.mark.jax

PROGRAM = """
import functools
import jax, jax.numpy as jnp, numpy as np
ROWS = 8
STEPS = 2

@functools.partial(jax.jit, static_argnames="steps")
def fit(w, x, steps):
    for _ in range(steps):
        x = jax.nn.gelu(x @ w)
    return x

ARGUMENTS = np.ones((8, 8), np.float32), np.ones((ROWS, 8), np.float32)
if __name__ == "__main__":
    fit(*ARGUMENTS, steps=STEPS)
"""
BEFORE = """
import jaxcache, edited

with jaxcache.watch():
    edited.fit(*edited.ARGUMENTS, steps=edited.STEPS)
print("null")
"""
INSIDE = """
import json
import jaxcache, edited

expected = jaxcache.explain_miss(edited.fit, *edited.ARGUMENTS, steps=edited.STEPS)
with jaxcache.watch() as report:
    edited.fit(*edited.ARGUMENTS, steps=edited.STEPS)
(missed,) = jaxcache.last_misses()
print(json.dumps([expected.summary, [d.cause for d in expected.differences], missed.cause]))
"""
FLAG = {"XLA_FLAGS": "--xla_cpu_enable_fast_math=true"}


@pytest.mark.parametrize(
    ("before", "after", "env", "cause"),
    [
        ("nn.gelu", "nn.relu", {}, "code"),
        ("ROWS = 8", "ROWS = 16", {}, "argument-shape"),
        pytest.param("STEPS = 2", "STEPS = 3", {}, "static-argument", marks=pytest.mark.slow),
        ("STEPS = 2", "STEPS = 2", FLAG, "flag"),
    ],
    ids=["activation", "shape", "static", "flag"],
)
def test_all_name_the_same_cause(
    run_cli: RunCli,
    run_inside: Any,
    inside_python: str,
    tmp_path_factory: pytest.TempPathFactory,
    before: str,
    after: str,
    env: dict[str, str],
    cause: str,
) -> None:
    home = tmp_path_factory.getbasetemp() / f"edits-jax{find_jax_pythons().index(inside_python)}"
    home.mkdir(exist_ok=True)
    cache = home / "cache"
    script = home / "edited.py"
    options = ("--json", "-C", cache, "--python", inside_python)

    def run(*words: str | Path, **settings: str) -> Any:
        done = run_cli(*words, env={"PYTHONWARNINGS": "", **settings})
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def compile_program() -> None:
        """Run the program before the edit, once for all edits."""
        run("warm", *options, script)
        shutil.rmtree(cache)
        run_inside(BEFORE, home=home, JAX_COMPILATION_CACHE_DIR=str(cache))
        run("warm", *options, script)

    script.write_text(PROGRAM)
    fill_once(cache, compile_program)
    script.write_text(PROGRAM.replace(before, after))

    (explained,) = run("explain", *options, script, **env)["comparisons"]
    (warmed,) = run("warm", *options, script, **env)["modules"]
    (churned,) = run("explain", "--churn", "--json", "-C", cache)["modules"]
    page = jaxcache.open(cache).report(charts=False)
    (churn,) = jaxcache.open(cache).churn()
    fill_once(cache, compile_program)
    summary, causes, missed = run_inside(
        INSIDE, home=home, JAX_COMPILATION_CACHE_DIR=str(cache), **env
    )

    assert explained["differences"][0]["cause"] == cause
    assert churned["causes"][0]["cause"] == cause
    assert causes[0] == cause
    assert churn.causes[0].meaning in page
    assert missed == warmed["cause"]
    assert summary.endswith(warmed["cause"])
