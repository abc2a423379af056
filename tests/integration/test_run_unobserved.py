"""Pythons that the listener does not reach: another way in, or an assertion that fails."""

import functools
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import REPOSITORY, RunCli
from warm_checks import STEP, outcomes

pytestmark = pytest.mark.jax

_WORKLOAD = Path(__file__).with_name("explain_workload.py")
#: How a launcher may start the program so that PYTHONPATH is lost.
LAUNCHERS = {
    "isolated": "exec {python} -I {script}",
    "ignoring": "exec {python} -E {script}",
    "own-path": "PYTHONPATH=/nowhere exec {python} {script}",
    "bare": "exec env -i PATH=$PATH {python} {script}",
}


@functools.cache
def find_packages(python: str) -> str:
    """The directory in which a Python has jax."""
    where = "import importlib.util as u; print(u.find_spec('jax').origin)"  # imports nothing
    origin = subprocess.check_output([python, "-c", where], text=True).strip()
    return str(Path(origin).parents[1])


def make_environment(each_jax_python: str, directory: Path) -> Path:
    """Make a virtual environment that finds the jax of another Python; its site-packages."""
    base = [each_jax_python, "-m", "venv", "--without-pip", directory]
    subprocess.run(base, check=True)
    (site,) = directory.glob("lib/python3*/site-packages")
    (site / "a.pth").write_text(f"{find_packages(each_jax_python)}\n{REPOSITORY}\n")
    return site


@pytest.fixture
def alone(each_jax_python: str, tmp_path: Path) -> str:
    """A Python with jax, whose directory has no jaxcache.pth."""
    make_environment(each_jax_python, tmp_path / "venv")
    return str(tmp_path / "venv" / "bin" / "python")


@pytest.fixture
def beside(each_jax_python: str, tmp_path: Path) -> str:
    """A Python with jax, beside which jaxcache is installed."""
    site = make_environment(each_jax_python, tmp_path / "venv")
    pth = REPOSITORY / "jaxcache" / "injected" / "startup" / "jaxcache.pth"
    (site / "jaxcache.pth").write_text(pth.read_text())
    return str(tmp_path / "venv" / "bin" / "python")


@pytest.mark.parametrize("launcher", ["isolated", "ignoring", "own-path"])
def test_jaxcache_beside_jax_is_another_way_in(
    run_cli: RunCli, cache: Path, script: Any, beside: str, launcher: str
) -> None:
    line = LAUNCHERS[launcher].format(python=beside, script=script(STEP))
    threshold = {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "3600"}
    command = ("run", "--json", "-C", cache, "--fail-on-miss", "--", "sh", "-c", line)
    done = run_cli(*command, env=threshold)
    document = json.loads(done.stdout)
    assert outcomes(document, "jit_step") == {("skipped", "compile-time")}, done.stderr
    assert (done.returncode, document["unobserved"]) == (1, [])


def test_it_listens_once_and_only_where_asked(
    run_cli: RunCli, cache: Path, script: Any, beside: str
) -> None:
    path = script(STEP)
    document = json.loads(run_cli("run", "--json", "-C", cache, "--", beside, path).stdout)
    assert len([m for m in document["modules"] if m["module"] == "jit_step"]) == 1
    text = "import sys; assert not [m for m in sys.modules if 'jaxcache' in m]"
    subprocess.run([beside, "-c", text], check=True, env={"PATH": os.environ["PATH"]})


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_what_was_not_heard_fails_every_assertion(
    run_cli: RunCli, cache: Path, script: Any, alone: str, tmp_path: Path, launcher: str
) -> None:
    line = LAUNCHERS[launcher].format(python=alone, script=script(STEP))
    recipe = tmp_path / "r.recipe"
    options = ("--fail-on-miss", "--strict", "--record", str(recipe))
    done = run_cli("run", "-C", cache, *options, "--", "sh", "-c", line)
    assert done.returncode == 1, done.stderr
    assert "no use of jax was seen" in done.stderr, done.stderr
    assert "failed: not every compile could be observed" in done.stderr
    assert "failed: nothing was recorded" in done.stderr
    assert not recipe.exists()


@pytest.mark.parametrize("tier", [False, True])
def test_one_unheard_among_several(
    run_cli: RunCli, cache: Path, script: Any, alone: str, tmp_path: Path, tier: bool
) -> None:
    path = script(STEP)
    env = {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    options = ("--tier", tmp_path / "tier", "--portable") if tier else ()
    heard = ("run", "--json", "-C", cache, *options, "--fail-on-miss", "--", "sh", "-c")
    run_cli(*heard, f"{alone} {path}", env=env)
    done = run_cli(*heard, f"{alone} {path}", env=env)
    assert done.returncode == 0, done.stderr
    other = script(STEP.replace("sin", "cos"), "other.py")
    line = f"{alone} {path} && {alone} -I {other}"
    done = run_cli(*heard, line, env=env)
    document = json.loads(done.stdout)
    assert (done.returncode, document["summary"]["written"]) == (1, 0)
    told = " ".join(document["unobserved"])
    assert "written that no process reported, such as jit_step-" in told


#: Uses one module; where nothing was asked of it, waits for another that comes from a tier.
FETCHED = """
    import glob, os, sys, time
    import jax, jax.numpy as jnp
    x = jax.device_put(jnp.ones(3))
    jax.jit(lambda x: jnp.cos(x) - 2)(x)
    if "all" in sys.argv:
        @jax.jit
        def other(x):
            return jnp.sin(x) @ x
        other(x)
    end = time.monotonic() + 120
    pattern = os.environ["JAX_COMPILATION_CACHE_DIR"] + "/jit_other-*-cache"
    while not glob.glob(pattern) and time.monotonic() < end:
        time.sleep(0.01)
"""


def test_an_entry_fetched_ahead_needs_no_compile_request(
    run_cli: RunCli, cache: Path, script: Any, alone: str, tmp_path: Path
) -> None:
    path = script(FETCHED)
    command = ("run", "--json", "-C", cache, "--tier", tmp_path / "tier")
    env = {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    run_cli(*command, "--", alone, path, "all", env=env)
    shutil.rmtree(cache)
    done = run_cli(*command, "--fail-on-miss", "--", alone, path, env=env)
    document = json.loads(done.stdout)
    assert list(cache.glob("jit_other-*"))
    assert not [m for m in document["modules"] if m["module"] == "jit_other"]
    assert (done.returncode, document["unobserved"]) == (0, []), done.stderr


def test_a_program_without_jax_proves_nothing(run_cli: RunCli, cache: Path) -> None:
    done = run_cli("run", "-C", cache, "--fail-on-miss", "--", "true")
    assert (done.returncode, "no use of jax was seen" in done.stderr) == (1, True)
    assert run_cli("run", "-C", cache, "--", "true").returncode == 0


def test_a_program_that_fails_before_it_uses_jax_is_said_to_fail(
    run_cli: RunCli, cache: Path, script: Any, jax_python: str
) -> None:
    path = script("import jax\ndef step(:\n")
    cache.mkdir(exist_ok=True)
    for command in ("warm", "explain"):
        done = run_cli(command, "-C", cache, "--python", jax_python, path)
        assert done.returncode == 1, done.stderr
        assert "the program failed before any use of jax was seen" in done.stderr
        assert "exit code 1" in done.stderr
        assert "no use of jax was seen" not in done.stderr
    assert "[program-failed]" in done.stderr
    done = run_cli("explain", "-C", cache, "--python", jax_python, script("import jax\n1 / 0\n"))
    assert done.returncode == 1
    assert "exit code 1: the program failed before its first compile" in done.stderr


def test_a_python_without_jax_is_named(run_cli: RunCli, cache: Path) -> None:
    program = "import sys; sys.modules['jax'] = None; import jax"
    done = run_cli("run", "-C", cache, "--", sys.executable, "-c", program)
    notes = [line for line in done.stderr.splitlines() if line.startswith("note: ")]
    assert f"note: the program's Python, {sys.executable}, has no jax" in notes
    assert not any("no use of jax" in note for note in notes)


@pytest.mark.parametrize("stop", [False, True])
def test_where(run_cli: RunCli, jax_python: str, tmp_path: Path, stop: bool) -> None:
    """The script overrides the variable, and where says so."""
    asked, used = tmp_path / "asked", tmp_path / "used"
    command = (jax_python, _WORKLOAD, used, "{}")
    args = ("where", *(("--stop",) if stop else ()), "--", *command)
    done = run_cli(*args, env={"JAX_COMPILATION_CACHE_DIR": str(asked), "PYTHONWARNINGS": ""})
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [str(used)]
    nothing = run_cli("where", "--json", "--", jax_python, "-c", "print(1)")
    assert nothing.returncode == 10
    assert json.loads(nothing.stdout)["processes"] == []
