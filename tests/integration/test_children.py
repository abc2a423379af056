"""Children in the user's Python: what else runs there, and what remains when jaxcache is killed."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import REPOSITORY, RunCli, StepRuns, clean_environment, jax_version
from warm_checks import STEP

pytestmark = pytest.mark.jax

Noisy = Callable[[str], dict[str, str]]
_NOISE = """
import os, sys
if "jaxcache" not in sys.orig_argv:
    print("good morning from sitecustomize")
    os.write(1, b'{"event": "ready", "platform": "noise"}\\n')
"""
#: Stops at the first compile, and leaves its process id.
_STUCK = """
import os, sys, threading, time
def arm():
    while not hasattr(sys.modules.get("jax._src.compiler"), "_compile_and_write_cache"):
        time.sleep(0.001)
    def wait(*args):
        with open(os.environ["STUCK"] + ".new", "w") as file:
            file.write(str(os.getpid()))
        os.rename(os.environ["STUCK"] + ".new", os.environ["STUCK"])
        time.sleep(600)
    sys.modules["jax._src.compiler"]._compile_and_write_cache = wait
threading.Thread(target=arm, daemon=True).start()
"""


@pytest.fixture
def custom(tmp_path: Path) -> Noisy:
    """Put a ``sitecustomize`` on the path; the environment that finds it."""

    def make(text: str) -> dict[str, str]:
        package = tmp_path / "site" / "sitecustomize"
        package.mkdir(parents=True)
        (package / "__init__.py").write_text(text)
        return {"PYTHONPATH": f"{package.parent}{os.pathsep}{REPOSITORY}"}

    return make


def test_what_a_sitecustomize_prints_is_no_answer(
    run_cli: RunCli,
    each_jax_python: str,
    script: Callable[..., Path],
    custom: Noisy,
    tmp_path: Path,
) -> None:
    env = custom(_NOISE)
    python = ("--python", each_jax_python)
    cache, recipe, bundle = tmp_path / "cache", tmp_path / "a.recipe", tmp_path / "a.bundle"
    warmed = run_cli("warm", "-C", cache, "--record", recipe, *python, script(STEP), env=env)
    assert warmed.returncode == 0, warmed.stderr
    assert run_cli("export", bundle, "-C", cache).returncode == 0
    (key, *_) = run_cli("ls", "-C", cache, "-q").stdout.split()
    commands = [
        ("verify", "-C", cache, "--level", "load", *python),
        ("import", bundle, "-C", tmp_path / "imported", *python),
        ("doctor", "-C", cache, "--json", *python),
        ("show", key, "-C", cache, "--hlo", *python),
    ]
    if jax_version(each_jax_python) >= (0, 5):
        commands.append(("compile", recipe, "-C", tmp_path / "compiled", *python))
    if jax_version(each_jax_python) >= (0, 10):
        commands.append(("target", "capture", *python))
    for command in commands:
        done = run_cli(*command, env=env)
        assert done.returncode == 0, (command, done.stderr)
        assert "good morning" not in done.stdout


def test_a_sitecustomize_that_is_a_package_stays_one(
    run_cli: RunCli,
    each_jax_python: str,
    script: Callable[..., Path],
    custom: Noisy,
    tmp_path: Path,
) -> None:
    env = custom("from . import part\n")
    (tmp_path / "site" / "sitecustomize" / "part.py").write_text("")
    told = "import sitecustomize as s, sys; print(*s.__path__, s.part.__name__, file=sys.stderr)"
    command = ("run", "--json", "-C", tmp_path / "cache", "--", each_jax_python)
    done = run_cli(*command, script(f"{STEP}{told}"), env=env)
    assert (done.returncode, "Error in sitecustomize" in done.stderr) == (0, False), done.stderr
    assert f"{tmp_path / 'site' / 'sitecustomize'} sitecustomize.part\n" in done.stderr
    assert json.loads(done.stdout)["summary"]["skipped"] > 0, "the listener is there, too"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("command", ["compile", "ci"])
def test_no_child_outlives_jaxcache_and_nothing_stays_of_it(
    step_runs: StepRuns,
    each_jax_python: str,
    custom: Noisy,
    tmp_path: Path,
    number: int,
    command: str,
) -> None:
    if command == "compile" and jax_version(each_jax_python) < (0, 5):
        pytest.skip("recipes are compiled by JAX 0.5 and later")
    scratch, stuck = tmp_path / "scratch", tmp_path / "stuck"
    scratch.mkdir()
    lines = {
        "compile": [step_runs.directory / "step.recipe", "-C", tmp_path / "other", "--jobs=1"],
        "ci": ["key"],
    }
    line = [command, *lines[command], "--python", each_jax_python]
    env = clean_environment(tmp_path) | custom(_STUCK)
    parent = subprocess.Popen(
        [sys.executable, "-m", "jaxcache", *line],
        env=env | {"TMPDIR": str(scratch), "STUCK": str(stuck)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    _wait_until(stuck.exists)
    parent.send_signal(number)
    parent.wait()
    child = int(stuck.read_text())
    _wait_until(lambda: not Path(f"/proc/{child}").exists() or _is_zombie(child))
    _wait_until(lambda: not list(scratch.iterdir()))


def _wait_until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 300
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def _is_zombie(pid: int) -> bool:
    """Whether a process is dead, and only its new parent has not looked."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True
