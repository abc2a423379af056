"""``--fail-on-miss`` over a filled cache: no false alarm, and one for what nobody reported.

``JAXCACHE_TEST_RUNS`` repeats each program (``make test-observed``: 20 times).
"""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from conftest import RunCli
from test_run_jax import make_environment

pytestmark = [pytest.mark.jax, pytest.mark.slow]

_RUNS = int(os.environ.get("JAXCACHE_TEST_RUNS", "1"))
_STEP_SECONDS = 0.025
_LOW = {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
#: What each Python does: a module that imports jax and compiles one function.
WORK = """
def work(pause=0.0):
    import time, jax
    jax.jit(lambda x: x * 2 + 1)(1.0).block_until_ready()
    time.sleep(pause)

if __name__ == "__main__":
    import sys
    work(float(sys.argv[1]) if len(sys.argv) > 1 else 0.0)
"""
HEARD = {
    "ten-forks": """
import os, warnings, jax, work
for _ in range(10):
    if not os.fork():
        work.work()
        os._exit(0)
for _ in range(10):
    assert os.wait()[1] == 0
""",
    "forkserver-pool": """
import multiprocessing, work
if __name__ == "__main__":
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["jax"])
    with context.Pool(3) as pool:
        pool.map(work.work, [0.0] * 6)
""",
    "daemon-that-closes-everything": """
import os, sys, work
read, write = os.pipe()
if not os.fork():
    os.setsid()
    if os.fork():
        os._exit(0)
    os.dup2(write, 3)
    os.closerange(4, 256)
    work.work()
    os._exit(0)
os.close(write)
os.read(read, 1)
""",
}
#: In each one Python reports, and one loses the hook.
UNHEARD = {
    "exec": """
import os, sys, work
work.work()
os.execv(sys.executable, [sys.executable, "-I", "unheard.py"])
""",
    "env-i": """
import subprocess, sys, work
work.work()
subprocess.check_call(["env", "-i", sys.executable, "unheard.py"])
""",
}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "work.py").write_text(WORK)
    return tmp_path


@pytest.fixture
def observe(spawn_cli: RunCli, place: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Runs a program over the cache of the test: exit code and unobserved."""
    cache = tmp_path_factory.mktemp("observed") / "cache"

    def run(python: str, *command: str) -> tuple[int, list[str]]:
        options = ("--json", "-C", cache, "--fail-on-miss", "--", python, *command)
        env = {**_LOW, "PYTHONWARNINGS": "ignore", "PYTHONPATH": str(place)}
        done = spawn_cli("run", *options, cwd=place, env=env)
        return done.returncode, json.loads(done.stdout)["unobserved"]

    return run


@pytest.mark.parametrize("step", range(28))
def test_a_program_is_heard_whenever_it_ends(observe: Any, jax_python: str, step: int) -> None:
    """The ends sweep what lies between two looks of jaxcache at the clock."""
    command = (jax_python, "work.py", str(step * _STEP_SECONDS))
    observe(*command)
    assert [observe(*command) for _ in range(_RUNS)] == [(0, [])] * _RUNS


@pytest.mark.parametrize("name", HEARD)
def test_every_python_with_the_hook_is_heard(
    observe: Any, jax_python: str, place: Path, name: str
) -> None:
    (place / "main.py").write_text(HEARD[name])
    observe(jax_python, "main.py")
    assert [observe(jax_python, "main.py") for _ in range(_RUNS)] == [(0, [])] * _RUNS


@pytest.mark.parametrize("name", UNHEARD)
def test_a_python_that_loses_the_hook_is_noticed_by_the_entry_that_it_writes(
    observe: Any, jax_python: str, place: Path, name: str
) -> None:
    """Where it only hits, it passes. The Python has jax, and no ``jaxcache.pth``."""
    make_environment(jax_python, place / "venv")
    alone = str(place / "venv" / "bin" / "python")
    (place / "main.py").write_text(UNHEARD[name])
    (place / "unheard.py").write_text(WORK)
    observe(alone, "main.py")
    assert [observe(alone, "main.py") for _ in range(_RUNS)] == [(0, [])] * _RUNS
    for number in range(_RUNS if name != "env-i" else 0):  # which has lost the cache, too
        # Longer each time: Python finds bytecode stale by the second and the length.
        (place / "unheard.py").write_text(WORK.replace("x * 2", "x * 2" + " + 1" * (number + 1)))
        code, unobserved = observe(alone, "main.py")
        assert code == 1
        assert "1 entry was written that no process reported" in " ".join(unobserved)
