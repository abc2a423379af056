"""Entries for a GPU and a TPU, made without them: ``make test-cuda`` and ``make test-tpu``.

The profiles are those of ``tests/data/deviceless_profile.py``: what only a real host knows in them
is invented. One profile is of a real H200, with a cache that it filled. That entries load and run
there is for ``tools/gpu_evidence.py`` to show.
"""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import REPOSITORY, RunCli, clean_environment, jax_version
from processes import sh

pytestmark = [pytest.mark.jax, pytest.mark.slow]

DATA = Path(__file__).parents[1] / "data"
MODELS = """
import jax, jax.numpy as jnp, numpy as np

@jax.jit
def product(x, w):
    return x @ w

@jax.jit
def gradient(w, x):
    return jax.grad(lambda w: jnp.tanh(x @ w).sum())(w)

@jax.jit
def ordered(x):
    return jnp.sort(x)

@jax.jit
def drawn(key):
    return jax.random.normal(key, (64,))

@jax.jit
def scanned(x):
    return jax.lax.scan(lambda c, v: (c * 0.5 + v, c), x[0], x)

x, w = np.ones((256, 512), np.float32), np.ones((512, 128), np.float32)
CALLS = [(product, (x, w)), (gradient, (w, x)), (ordered, (x,)),
         (drawn, (np.zeros(2, np.uint32),)), (scanned, (x,))]
"""
PROGRAM = "import models\nfor function, arguments in models.CALLS:\n    function(*arguments)\n"


@pytest.fixture(params=["cuda", "tpu"])
def host(request: Any, tmp_path: Path) -> tuple[str, str, Path]:
    """A platform, a Python that compiles for it, and a profile."""
    platform = request.param
    python = os.environ.get(f"JAXCACHE_TEST_{platform.upper()}_PYTHON")
    if not python:
        pytest.skip(f"make test-{platform} runs this")
    done = sh([python, DATA / "deviceless_profile.py", platform])
    if "does not describe" in done.stderr:
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, done.stderr
    profile = tmp_path / "host.json"
    profile.write_text(done.stdout)
    (tmp_path / "models.py").write_text(MODELS)
    (tmp_path / "program.py").write_text(PROGRAM)
    return platform, python, profile


Rows = dict[str, dict[str, Any]]


@pytest.fixture
def make(run_cli: RunCli, cache: Path) -> Callable[..., Rows]:
    """Run ``warm --target`` over the test's cache; what it says of each module."""

    def run(python: str, profile: Path, *words: str | Path) -> Rows:
        chosen = ("--json", "--python", python, "--target", profile)
        done = run_cli("warm", "-C", cache, *chosen, *words)
        assert done.returncode == 0, done.stderr
        return {m["module"]: m for m in json.loads(done.stdout)["modules"]}

    return run


def test_entries_are_the_targets(
    run_cli: RunCli,
    make: Callable[..., Rows],
    host: tuple[str, str, Path],
    cache: Path,
    tmp_path: Path,
) -> None:
    platform, python, profile = host
    made = make(python, profile, "program.py")
    assert {m["outcome"] for m in made.values()} == {"written"}

    apart = sh([python, DATA / "keys_apart.py", profile], check=True, cwd=tmp_path)
    keys = json.loads(apart.stdout)
    assert len(keys) == 5
    assert {name: made[name]["key"] for name in keys} == keys

    entries = json.loads(run_cli("ls", "-C", cache, "--json").stdout)
    assert not entries["problems"]
    for entry in entries["entries"]:
        told = entry["platform"], entry["codec"], entry["sealed"], entry["problems"]
        assert told == ({"cuda": "gpu"}.get(platform, platform), "zstd", True, [])
        assert entry["tuning"] == made[entry["module"]]["tuning"]
        assert platform != "cuda" or entry["target"] == "sm_90a"
    assert run_cli("verify", "-C", cache, "--level", "full").returncode == 0
    if platform == "cuda":
        assert made["jit_product"]["tuning"] == "untuned"
        shown = json.loads(run_cli("show", "-C", cache, "--json", "jit_product").stdout)
        assert shown["device"]["compute_capability"] == "9.0a"
        assert "custom-call" in shown["program"]["opcodes"]  # cuBLAS


@pytest.mark.parametrize("host", ["cuda"], indirect=True)  # on a TPU nothing is tuned
def test_what_is_required_to_be_tuned_is_left_out(
    make: Callable[..., Rows], host: tuple[str, str, Path]
) -> None:
    product = make(*host[1:], "--require-tuned", "program.py")["jit_product"]
    convolved = make(*host[1:], DATA / "gpu_programs.py")["jit_convolved"]
    assert {m["outcome"] for m in (product, convolved)} == {"skipped"}
    assert (product["reason"], convolved["reason"]) == ("untuned", "unmeasured-convolution")


def test_cuda_keys_are_those_of_a_real_gpu(make: Callable[..., Rows]) -> None:
    """What an H200 measured makes convolutions, too; without it they fail where they run."""
    profile = DATA / "h200_profile.json"
    python = os.environ.get("JAXCACHE_TEST_CUDA_PYTHON")
    version = json.loads(profile.read_text())["jax_version"]
    if not python or jax_version(python) != tuple(map(int, version.split("."))):
        pytest.skip("make test-cuda DEVICELESS_JAX=0.11.2 runs this")
    real = DATA / "corpus" / "0.11.2-cuda13-h200-zlib"
    keys = {path.name.removesuffix("-cache") for path in real.glob("*-cache")}
    autotune = real / "xla_gpu_per_fusion_autotune_cache_dir"
    for options, missing in (((), "convolved"), (("--autotune-from", autotune), "nothing")):
        rows = make(python, profile, *options, DATA / "gpu_programs.py")
        made = {m["key"] for m in rows.values() if m["outcome"] != "skipped"}
        wanted = {key for key in keys if missing not in key and "attention" not in key}
        assert made & keys == wanted
        convolved = rows["jit_convolved"]
        assert convolved["key"] in keys
        if missing == "convolved":
            assert convolved["reason"] == "unmeasured-convolution"
        else:
            assert (convolved["outcome"], convolved["tuning"]) == ("written", "tuned")


def test_the_script_settles_on_a_cpu_what_can_be(each_jax_python: str, tmp_path: Path) -> None:
    """A rehearsal of what ``tools/gpu_evidence.py`` does on a host with a GPU."""
    command = (sys.executable, REPOSITORY / "tools" / "gpu_evidence.py", tmp_path / "out")
    options = ("--python", each_jax_python, "--platform", "cpu", "--small")
    env = {k: v for k, v in clean_environment(tmp_path).items() if k != "PYTHONWARNINGS"}
    done = sh((*command, *options), env=os.environ | env)
    found = json.loads((tmp_path / "out" / "report.json").read_text())
    profile = json.loads((tmp_path / "out" / "profile.json").read_text())
    if any("cannot be serialized" in trouble for trouble in found["troubles"]):  # before JAX 0.11
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
