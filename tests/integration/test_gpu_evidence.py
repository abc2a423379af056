"""A rehearsal on the CPU of what ``tools/gpu_evidence.py`` does on a host with a GPU."""

import json
import os
import sys
from pathlib import Path

import pytest
from conftest import REPOSITORY, clean_environment
from processes import sh

pytestmark = [pytest.mark.jax, pytest.mark.slow]


def test_the_script_settles_on_a_cpu_what_can_be(each_jax_python: str, tmp_path: Path) -> None:
    command = (sys.executable, REPOSITORY / "tools" / "gpu_evidence.py", tmp_path / "out")
    options = ("--python", each_jax_python, "--platform", "cpu", "--small")
    env = {k: v for k, v in clean_environment(tmp_path).items() if k != "PYTHONWARNINGS"}
    done = sh((*command, *options), env=os.environ | env)
    found = json.loads((tmp_path / "out" / "report.json").read_text())
    profile = json.loads((tmp_path / "out" / "profile.json").read_text())
    if any("no-topology" in trouble for trouble in found["troubles"]):  # before JAX 0.11
        assert done.returncode == 1
        assert tuple(map(int, profile["jax_version"].split(".")[:2])) < (0, 11)
        pytest.skip(f"jax {profile['jax_version']} cannot rebuild a topology")
    assert (done.returncode, found["troubles"]) == (0, [])
    steps = {name: step["result"] for name, step in found["found"].items()}
    assert steps["real cache"]["hot"]["misses"] == 0
    for name in ("train", "programs", "kernels"):
        step = steps[name]
        used = step["on made entries"]
        assert (used["misses"], used["hits"]) == (0, step["cold"]["misses"])
        assert step["keys of both"] == step["own keys"] == step["cold"]["misses"]
    assert steps["train"]["equal output"] and steps["kernels"]["on made entries"]["equal"]
    assert "times tuned" in (tmp_path / "out" / "report.md").read_text()
