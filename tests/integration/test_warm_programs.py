"""Programs as people start them: modules, directories, notebooks; what ``run`` shares with warm."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import REPOSITORY, RunCli, has_modules, jax_version
from test_warm_options import SHARDED
from warm_checks import STEP, Warm, outcomes

pytestmark = pytest.mark.jax

SAYS = STEP + "import sys; print('argv', sys.argv[1:], __name__, file=sys.stderr)\n"


def notebook(*cells: str) -> str:
    found = [{"cell_type": "markdown", "source": ["# Train"]}]
    found += [{"cell_type": "code", "source": c.splitlines(keepends=True)} for c in cells]
    return json.dumps({"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": found})


def test_a_module_a_directory_and_a_notebook(
    run_cli: RunCli, cache: Path, each_jax_python: str, tmp_path: Path
) -> None:
    package = tmp_path / "package"
    package.mkdir()
    for name in ("__init__.py", "__main__.py", "module.py"):
        (package / name).write_text(SAYS if name != "__init__.py" else "")
    cells = ("%precision 3\n!true\n", STEP, "%%bash\ntrue\n", "assert step.__module__\n")
    (tmp_path / "train.ipynb").write_text(notebook(*cells, SAYS.splitlines()[-1]))
    common = ("warm", "--json", "-C", cache, "--python", each_jax_python)
    ways = [("-m", "package.module"), ("-m", "package"), (str(package),)]
    if has_modules(each_jax_python, "IPython"):
        ways.append(("train.ipynb",))
    for number, way in enumerate(ways):
        done = run_cli(*common, *way, "--steps", "1", "--json", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert "argv ['--steps', '1', '--json'] __main__" in done.stderr
        (outcome,) = outcomes(json.loads(done.stdout), "jit_step")
        assert outcome[0] == ("hit" if number else "written")
    (tmp_path / "bad.ipynb").write_text(notebook("1 / 0"))
    done = run_cli(*common, "bad.ipynb", cwd=tmp_path)
    assert done.returncode in (1, 2)
    assert ("ZeroDivisionError" in done.stderr) != ("needs IPython" in done.stderr)
    done = run_cli(*common, tmp_path, cwd=tmp_path)
    assert (done.returncode, "no __main__.py" in done.stderr) == (2, True)


def test_a_notebook_needs_ipython(tmp_path: Path) -> None:
    (tmp_path / "train.ipynb").write_text(notebook("print('ran')\n"))
    injected = REPOSITORY / "jaxcache" / "injected"
    script = f"""
import sys
sys.modules["IPython"] = None
sys.path.insert(0, {str(injected)!r})
sys.argv[1:] = ["train.ipynb"]
import run_program
sys.exit(run_program.run_notebook())
"""
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    needs = f"jaxcache: train.ipynb needs IPython: {sys.executable} has none\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", needs)


def test_run_takes_processes(
    run_cli: RunCli, cache: Path, script: Any, each_jax_python: str
) -> None:
    line = f"echo started; {each_jax_python} {script(SHARDED)}"
    options = ("--json", "-C", cache, "--processes", "2", "--timeout", "120s")
    done = run_cli("run", *options, "--", "sh", "-c", line)
    assert done.returncode == 0, done.stderr
    assert sorted(p["process_id"] for p in json.loads(done.stdout)["processes"]) == [0, 1]


def test_run_collects(
    run_cli: RunCli, cache: Path, script: Any, each_jax_python: str, tmp_path: Path
) -> None:
    if jax_version(each_jax_python) < (0, 5):
        pytest.skip("this JAX cannot be collected")
    recipe = tmp_path / "r.recipe"
    command = ("--", each_jax_python, script(STEP))
    done = run_cli("run", "--json", "-C", cache, "--record", recipe, "--collect-only=0", *command)
    assert done.returncode == 0, done.stderr
    assert outcomes(json.loads(done.stdout), "jit_step") == {("skipped", "collected")}


def test_a_check_on_cpu_compares_programs(
    run_cli: RunCli, cache: Path, each_jax_python: str
) -> None:
    if jax_version(each_jax_python) < (0, 10):
        pytest.skip("this JAX compares nothing")
    env = {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    example = (REPOSITORY / "examples" / "train.py", "--layers", "1", "--width", "32")
    command = ("--", each_jax_python, *example, "--lengths", "8")
    done = run_cli("run", "--json", "-C", cache, "--check", "--fail-on-miss", *command, env=env)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert outcomes(document) <= {("skipped", "verified"), ("skipped", "same-hlo")}
    assert any("the same optimized HLO" in m["detail"] for m in document["modules"])


def test_what_no_cache_can_serve_may_be_excepted(
    warm: Warm, script: Any, run_cli: RunCli, cache: Path, each_jax_python: str
) -> None:
    if jax_version(each_jax_python) >= (0, 11):
        pytest.skip("this JAX caches programs with callbacks")
    path = script(STEP + "\njax.jit(lambda x: jax.debug.print('{}', x))(1.0)")
    warm(path)
    warm(path, options=("--fail-on-miss",), code=1)
    warm(path, options=("--fail-on-miss", "--except", "uncacheable"))
    off = ("run", "-C", cache, "--fail-on-miss", "--except", "uncacheable", "--", each_jax_python)
    assert run_cli(*off, path, env={"JAX_ENABLE_COMPILATION_CACHE": "0"}).returncode == 1
    done = run_cli("warm", "-C", cache, "--fail-on-miss", "--except", "misses", path)
    assert (done.returncode, "is not one of uncacheable, skipped" in done.stderr) == (2, True)


def test_devices_are_added_to_the_flags_of_the_environment(
    run_cli: RunCli, cache: Path, each_jax_python: str, script: Any
) -> None:
    path = script("import os; print(os.environ['XLA_FLAGS'])")
    flags = "--xla_cpu_enable_fast_math=false"
    options = ("-C", cache, "--python", each_jax_python, "--devices", "3")
    done = run_cli("warm", *options, path, env={"XLA_FLAGS": flags})
    wanted = f"{flags} --xla_force_host_platform_device_count=3\n"
    assert (done.returncode, done.stdout) == (0, wanted), done.stderr
