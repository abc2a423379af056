"""``warm --collect-only``: the recipe of a full run at the price of tracing, and what it marks."""

import json
from pathlib import Path
from typing import Any

import pytest
from conftest import REPOSITORY, RunCli, jax_version

from jaxcache.cache.recipe import Recipe, open_recipe

pytestmark = pytest.mark.jax

WORKLOAD = Path(__file__).with_name("recipe_workload.py")
TRAIN = (REPOSITORY / "examples" / "train.py", "--layers", "1", "--width", "32", "--lengths", "8")

#: A module that is larger than any that runs for real, and whose result is not all zeros.
LARGE = """
import jax, jax.numpy as jnp, numpy as np
@jax.jit
def large(x):
    for _ in range(40):
        x = jnp.sin(x) + 1
    return x
"""


@pytest.fixture
def record(run_cli: RunCli, cache: Path, each_jax_python: str, tmp_path: Path) -> Any:
    if jax_version(each_jax_python) < (0, 5):
        pytest.skip("JAX 0.5 and later can be collected")

    def run(*args: Any, options: tuple[str, ...] = (), code: int = 0) -> Recipe:
        recipe = tmp_path / "some.recipe"
        done = run_cli(
            "warm", "-C", cache, "--record", recipe, "--python", each_jax_python, *options, *args
        )
        assert done.returncode == code, done.stderr
        with open_recipe(str(recipe)) as file:
            return file.recipe

    return run


@pytest.mark.parametrize(
    ("options", "program", "most"),
    [
        ((), TRAIN, "--collect-only"),
        (("--devices", "8"), (WORKLOAD, "sharded"), "--collect-only=0"),
        pytest.param((), TRAIN, "--collect-only=0", marks=pytest.mark.slow),
    ],
    ids=["train", "sharded", "train-all"],
)
def test_the_keys_are_those_of_a_full_run(
    record: Any, options: tuple[str, ...], program: tuple[Any, ...], most: str
) -> None:
    collected = record(*program, options=(*options, most))
    # GSPMD chooses shardings while it compiles, so there such modules are compiled.
    assert any(r.stubbed for r in collected.requests)
    full = record(*program, options=options)
    assert not any(r.stubbed for r in full.requests)
    assert {r.key for r in collected.requests} == {r.key for r in full.requests}
    assert {r.key: r.bytecode for r in collected.requests} == {
        r.key: r.bytecode for r in full.requests
    }


def test_stubs_never_reach_the_cache(record: Any, cache: Path, script: Any) -> None:
    recipe = record(script(LARGE + "large(np.ones(4, np.float32))"), options=("--collect-only",))
    (large,) = [r for r in recipe.requests if r.module == "jit_large"]
    assert large.stubbed
    assert large.compile_seconds is None
    assert not list(cache.glob("jit_large-*"))
    assert not list(cache.glob("jit_zeros-*"))


def test_captured_zeros_are_marked(record: Any, script: Any) -> None:
    path = script(
        LARGE
        + """
w = large(np.ones(4, np.float32))
def uses(x):
    return x @ w
jax.jit(uses)(np.ones((3, 4), np.float32))
@jax.jit
def plain(x):
    return x + np.float32(3)
plain(np.ones(5, np.float32))
"""
    )
    recipe = record(path, options=("--collect-only",))
    doubts = {r.module: r.doubts for r in recipe.requests}
    assert doubts["jit_plain"] == ()
    # Where constants are arguments of the module instead, zeros change nothing.
    full = {r.key for r in record(path).requests}
    found = {r.key for r in recipe.requests}
    assert doubts["jit_uses"] == ("captured-zeros",) or full == found


def test_values_that_steer_are_named_with_their_line(record: Any, script: Any) -> None:
    path = script(
        LARGE
        + """
x = large(np.ones(4, np.float32))
if x.sum() > 3:
    x = x + 1
@jax.jit
def later(y):
    return y - 1
later(x)
"""
    )
    recipe = record(path, options=("--collect-only",))
    line = 1 + path.read_text().splitlines().index("if x.sum() > 3:")
    assert any(f"{path}:{line} reads a computed value" in note for note in recipe.notes)
    doubts = {r.module: r.doubts for r in recipe.requests}
    assert doubts["jit_large"] == ()
    assert doubts["jit_later"] == ("after-value-read",)


def test_a_loop_that_zeros_never_end_is_stopped(record: Any, script: Any) -> None:
    path = script(LARGE + "x = np.ones(4, np.float32)\nwhile x[0] < 2:\n    x = large(x)\n")
    recipe = record(path, options=("--collect-only", "--patience", "3s"), code=128 + 15)
    assert any("no new module" in note for note in recipe.notes)
    assert {r.module for r in recipe.requests} >= {"jit_large"}


def test_a_program_that_fails_says_what_may_be_missing(record: Any, script: Any) -> None:
    text = "x = large(np.ones(4, np.float32))\nassert x.sum() > 0\nlarge(np.ones(9, np.float32))"
    recipe = record(script(LARGE + text), options=("--collect-only",), code=1)
    assert any("exited with code 1" in note for note in recipe.notes)


def test_it_wants_a_recipe_to_write(run_cli: RunCli, cache: Path, script: Any) -> None:
    done = run_cli("warm", "-C", cache, "--collect-only", script("print()"))
    assert (done.returncode, "--record" in done.stderr) == (2, True)
    done = run_cli("warm", "-C", cache, "--collect-only=x", "--record", "r", script("print()"))
    assert done.returncode == 2


def test_one_command_collects_compiles_and_runs(
    run_cli: RunCli, cache: Path, each_jax_python: str, tmp_path: Path
) -> None:
    if jax_version(each_jax_python) < (0, 5):
        pytest.skip("JAX 0.5 and later can be collected")
    program = tmp_path / "program.py"
    program.write_text(
        "import os\nos.makedirs('twice' if os.path.isdir('once') else 'once')\n"
        f"{LARGE}\nprint('more than 0:', large(jnp.ones(3)).sum() > 0)\n"
    )
    given = ("-C", cache, "--json", "--jobs", "2", "--python", each_jax_python, "--fail-on-miss")
    done = run_cli("warm", *given, program)
    assert done.returncode == 1  # what the workers compiled just now was not in the cache
    report = json.loads(done.stdout)
    assert {m["module"]: m["outcome"] for m in report["modules"]}["jit_large"] == "written"
    assert report["summary"]["hits"] == 0 < report["summary"]["compile_seconds"]
    assert any("2 workers compiled 1 module in" in note for note in report["notes"])
    # It ran twice; of the first run, which had zeros in its hands, nothing is shown.
    assert (tmp_path / "once").is_dir() and (tmp_path / "twice").is_dir()
    assert done.stderr.count("more than 0: True") == 1 == done.stderr.count("more than 0")
    assert run_cli("verify", "-C", cache, "--level", "full").returncode == 0
    for made in ("once", "twice"):
        (tmp_path / made).rmdir()
    again = run_cli("warm", *given, program)
    assert again.returncode == 0, again.stderr
    summary = json.loads(again.stdout)["summary"]
    assert (summary["hits"], summary["written"]) == (report["summary"]["written"], 0)
