"""The set-ups in examples/recipes: their own lines are run, each part by a process of its own."""

import os
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import REPOSITORY, clean_environment
from plain_jax import Counts, count_plain
from processes import sh

pytestmark = pytest.mark.jax

EXAMPLES = REPOSITORY / "examples" / "recipes"
#: Two modules, one for each of two parts.
TRAIN = "import jax, numpy as np\nfor n in (2, 3):\n    jax.jit(lambda x: x * n)(np.ones(3))\n"


@pytest.fixture
def shell(tmp_path: Path, jax_python: str) -> Any:
    """Run a line as the machine would, with ``jaxcache`` on PATH."""
    bin_ = tmp_path / "bin"
    bin_.mkdir()
    program = bin_ / "jaxcache"
    # --python: the machine of a test may have its jax elsewhere.
    program.write_text(
        f"#!/bin/sh\ncommand=$1; shift\ncase $command in warm|compile) set -- --python "
        f'"{jax_python}" "$@";; esac\nexec {sys.executable} -m jaxcache "$command" "$@"\n'
    )
    program.chmod(0o755)

    def run(*line: str, **env: str) -> None:
        path = f"{bin_}{os.pathsep}{os.environ['PATH']}"
        done = sh(line, cwd=tmp_path, env=clean_environment(tmp_path) | {"PATH": path, **env})
        assert done.returncode == 0, done.stderr + done.stdout

    return run


def take_entries(directory: Path) -> set[str]:
    """Remove every entry, and return the names."""
    paths = [*directory.glob("*-cache")]
    for path in paths:
        path.unlink()
    return {path.name for path in paths}


def test_all_three_make_what_the_program_hits(shell: Any, jax_python: str, tmp_path: Path) -> None:
    script, used_at = tmp_path / "examples" / "train.py", tmp_path / "used"
    script.parent.mkdir()
    script.write_text(TRAIN)
    matrix = yaml.safe_load((EXAMPLES / "ci-matrix.yml").read_text())["jobs"]
    lines = {
        name: [s["run"] for s in job["steps"] if "jaxcache " in s.get("run", "")]
        for name, job in matrix.items()
    }
    for line in lines["collect"]:
        shell("sh", "-c", line)
    recipe = str(tmp_path / "train.recipe")
    shards = matrix["compile"]["strategy"]["matrix"]["shard"]
    for shard in shards:
        for line in lines["compile"]:
            shell("sh", "-c", line, SHARD=str(shard), USED_AT=str(used_at))
        take_entries(tmp_path / "part")  # the next shard has a machine of its own
    for line in lines["merge"]:
        shell("sh", "-c", line, USED_AT=str(used_at))
    env = clean_environment(tmp_path) | {"JAX_COMPILATION_CACHE_DIR": str(used_at)}
    judged = count_plain(jax_python, script, env | {"PYTHONWARNINGS": ""})
    made = take_entries(used_at)
    assert judged == Counts(hits=len(made), writes=0, requests=len(made))

    job_array, parts = str(EXAMPLES / "slurm-array.sh"), []
    for number in "12":
        env = {"SLURM_ARRAY_TASK_ID": number, "SLURM_ARRAY_TASK_COUNT": "2"}
        shell("sh", job_array, recipe, str(used_at), **env)
        parts.append(take_entries(used_at))
    assert all(parts) and parts[0] == made - parts[1]

    job = yaml.safe_load((EXAMPLES / "kubernetes-job.yaml").read_text())
    (container,) = job["spec"]["template"]["spec"]["containers"]
    known = {e["name"]: e["value"] for e in container["env"]}
    assert int(known["PARTS"]) == job["spec"]["completions"]
    env = {"RECIPE": recipe, "CACHE": str(used_at), "PARTS": "2"}
    assert env.keys() == known.keys()
    shell(*container["command"], JOB_COMPLETION_INDEX="1", **env)
    assert take_entries(used_at) == parts[1]
