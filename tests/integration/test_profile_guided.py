"""Entries that a profile guides (PGLE): labelled, and refused where nobody could make them."""

import json
from pathlib import Path
from typing import Any

import pytest
from conftest import RunCli

pytestmark = pytest.mark.jax

#: The first function has no profile, the second brings one along.
GUIDED = """
import jax, jax.numpy as jnp, numpy as np
x = np.ones((4, 4), np.float32)
profile = {"fdo_profile": b'costs { name: "dot" cost_us: 1.0 }'}
def step(x): return jnp.sin(x) @ x
jax.jit(step)(x)
jax.jit(step, compiler_options=profile)(x)
"""


def test_an_entry_with_a_profile_is_labelled_and_no_recipe_makes_it(
    run_cli: RunCli, script: Any, each_jax_python: str, tmp_path: Path
) -> None:
    python = ("-C", "cache", "--python", each_jax_python)
    done = run_cli("warm", "--json", *python, "--record", "x.recipe", script(GUIDED))
    assert done.returncode == 0, done.stderr
    first, second = (m["key"] for m in json.loads(done.stdout)["modules"])
    for key, guided in ((first, False), (second, True)):
        shown = json.loads(run_cli("show", "-C", "cache", "--json", key).stdout)
        assert shown["compile_options"]["profile_guided"] is guided
    explained = run_cli("explain", "-C", "cache", "--json", first, second)
    (difference,) = json.loads(explained.stdout)["differences"]
    assert difference["component"] == "compile_options"
    assert "(PGLE)" in difference["right"]
    other = ("-C", "other", "--used-at", tmp_path / "cache", "--python", each_jax_python)
    compiled = run_cli("compile", "x.recipe", "--json", *other)
    found = {m["key"]: m for m in json.loads(compiled.stdout)["modules"]}
    assert (found[first]["outcome"], found[second]["reason"]) == ("written", "pgle")
    assert not list((tmp_path / "other").glob(f"{second}*"))


def test_a_target_makes_nothing_that_follows_a_profile(
    run_cli: RunCli, script: Any, each_jax_python: str, tmp_path: Path
) -> None:
    python = ("--python", each_jax_python)
    guided = run_cli("target", "capture", *python, env={"JAX_ENABLE_PGLE": "1"})
    assert guided.returncode == 2
    assert "[profile-guided]" in guided.stderr
    captured = run_cli("target", "capture", "here.json", *python)
    assert captured.returncode == 0, captured.stderr
    version = json.loads((tmp_path / "here.json").read_text())["jax_version"]
    if tuple(map(int, version.split(".")[:2])) < (0, 11):
        pytest.skip(f"jax {version} cannot rebuild a topology")
    path = script(GUIDED.replace("x = np", 'jax.config.update("jax_enable_pgle", True)\nx = np'))
    warmed = run_cli("warm", "--json", "-C", "cache", *python, "--target", "here.json", path)
    found = {(m["outcome"], m["reason"]) for m in json.loads(warmed.stdout)["modules"]}
    assert found == {("skipped", "profile-guided")}
