"""``explain`` of what plain Python compiled after an edit."""

import json
import shlex
import subprocess
from pathlib import Path

import pytest
from conftest import RunCli, clean_environment

pytestmark = pytest.mark.jax

PROGRAM = """
import jax, jax.numpy as jnp

def activation(x):
    return jnp.{name}(x)

@jax.jit
def step(x):
    return activation(x).sum()

step(jnp.ones((4, 4)))
"""


def test_an_edit_that_plain_python_compiled_is_explained_by_a_run_of_the_script(
    run_cli: RunCli, jax_python: str, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    cache = tmp_path / "cache"
    env = {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0", "JAX_PLATFORMS": "cpu"}
    script.write_text(PROGRAM.format(name="tanh"))
    warm = ("warm", "-C", cache, "--python", jax_python, "train.py")
    assert run_cli(*warm, cwd=tmp_path, env=env).returncode == 0
    script.write_text(PROGRAM.format(name="sin"))
    plain = clean_environment(tmp_path) | env | {"JAX_COMPILATION_CACHE_DIR": str(cache)}
    subprocess.run([jax_python, script], env=plain, check=True)

    of_key = json.loads(run_cli("explain", "-C", cache, "--json", "jit_step").stdout)
    (difference,) = of_key["differences"]
    assert "what changed is unknown" in difference["meaning"]
    # The advice is to run this:
    _, *advice = shlex.split(difference["fix"])[:3]
    run = run_cli(*advice, "-C", cache, "--python", jax_python, "--json", cwd=tmp_path, env=env)
    (hit,) = (h for h in json.loads(run.stdout)["hits"] if h["module"] == "jit_step")
    (change,) = hit["differences"]
    assert ("tanh" in change["left"], "sin" in change["right"]) == (True, True)
    assert "train.py:5 in `activation`" in change["meaning"]
