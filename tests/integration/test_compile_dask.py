"""``compile --dask`` on a real cluster of this machine."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import RunCli, clean_environment

pytestmark = pytest.mark.jax
pytest.importorskip("distributed")

WORKLOAD = Path(__file__).with_name("recipe_workload.py")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[dict[str, Any]]:
    env = clean_environment(tmp_path) | {"PYTHONWARNINGS": "default"}
    child = subprocess.Popen(
        [sys.executable, Path(__file__).with_name("dask_cluster.py")],
        env=env,
        cwd=tmp_path,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert child.stdout
    yield json.loads(child.stdout.readline())
    child.communicate(timeout=300)


def entries(directory: Path) -> set[str]:
    return {p.name for p in directory.glob("*-cache")}


def test_a_cluster_that_loses_a_worker_makes_the_same_entries(
    run_cli: RunCli, cluster: dict[str, Any], jax_python: str, tmp_path: Path
) -> None:
    first, other, recipe = tmp_path / "first", tmp_path / "other", tmp_path / "some.recipe"
    done = run_cli(
        "warm", "-C", first, "--record", recipe, "--python", jax_python, WORKLOAD, "single"
    )
    assert done.returncode == 0, done.stderr
    args = ("compile", recipe, "-C", other, "--used-at", first, "--python", jax_python)
    compile_ = subprocess.Popen(
        [sys.executable, "-m", "jaxcache", *args, "--json", "--dask", cluster["address"]],
        env=clean_environment(tmp_path) | {"PYTHONWARNINGS": "default"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 120
    while not (other.is_dir() and entries(other)) and time.monotonic() < deadline:
        time.sleep(0.01)
    os.kill(cluster["pids"][0], signal.SIGKILL)
    output, errors = compile_.communicate(timeout=300)
    assert compile_.returncode == 0, errors
    summary = json.loads(output)["summary"]
    assert summary["written"] == summary["requested"] > 0
    assert entries(other) == entries(first)
    # The cluster knows what is there: nothing is compiled again.
    again = run_cli(
        *args, "--json", "--dask", cluster["address"], env={"PYTHONWARNINGS": "default"}
    )
    assert json.loads(again.stdout)["summary"]["already_cached"] == summary["requested"]


def test_a_scheduler_that_is_not_there(
    run_cli: RunCli, jax_python: str, tmp_path: Path, script: Any
) -> None:
    recipe = tmp_path / "some.recipe"
    path = script("import jax, numpy as np\njax.jit(lambda x: x + 1)(np.ones(2))")
    run_cli("warm", "-C", tmp_path / "a", "--record", recipe, "--python", jax_python, path)
    done = run_cli(
        "compile",
        recipe,
        "--dask",
        "tcp://127.0.0.1:9",
        "--json",
        env={"PYTHONWARNINGS": "default", "DASK_DISTRIBUTED__COMM__TIMEOUTS__CONNECT": "2s"},
    )
    assert (done.returncode, json.loads(done.stderr.splitlines()[-1])["error"]["code"]) == (
        1,
        "no-cluster",
    )
