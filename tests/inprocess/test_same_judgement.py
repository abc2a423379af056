"""One edit has one cause, whoever is asked: each command and each function of the interface."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from conftest import RunCli

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
        ("STEPS = 2", "STEPS = 3", {}, "static-argument"),
        ("STEPS = 2", "STEPS = 2", FLAG, "flag"),
    ],
    ids=["activation", "shape", "static", "flag"],
)
def test_all_name_the_same_cause(
    run_cli: RunCli,
    run_inside: Any,
    inside_python: str,
    tmp_path: Path,
    before: str,
    after: str,
    env: dict[str, str],
    cause: str,
) -> None:
    cache = tmp_path / "cache"
    script = tmp_path / "edited.py"
    options = ("--json", "-C", cache, "--python", inside_python)

    def run(*words: str | Path, **settings: str) -> Any:
        done = run_cli(*words, env={"PYTHONWARNINGS": "", **settings})
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    script.write_text(PROGRAM)
    run("warm", *options, script)
    shutil.rmtree(cache)
    run_inside(BEFORE)
    run("warm", *options, script)
    shutil.copytree(cache, tmp_path / "base")
    script.write_text(PROGRAM.replace(before, after))

    (explained,) = run("explain", *options, script, **env)["comparisons"]
    (warmed,) = run("warm", *options, script, **env)["modules"]
    (churned,) = run("explain", "--churn", "--json", "-C", cache)["modules"]
    page = jaxcache.open(cache).report(charts=False)
    (churn,) = jaxcache.open(cache).churn()
    shutil.rmtree(cache)
    shutil.copytree(tmp_path / "base", cache)
    summary, causes, missed = run_inside(INSIDE, **env)

    assert explained["differences"][0]["cause"] == cause
    assert churned["causes"][0]["cause"] == cause
    assert causes[0] == cause
    assert churn.causes[0].meaning in page
    assert missed == warmed["cause"]
    assert summary.endswith(warmed["cause"])
