"""``--fail-on-miss`` over a filled cache: no false alarm, and no alarm that is missing.

``JAXCACHE_TEST_RUNS`` repeats each program (``make test-observed``: 20 times).
"""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from conftest import RunCli
from test_run_unobserved import make_environment

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
    "eight-at-once": """
import subprocess, sys
children = [subprocess.Popen([sys.executable, "work.py"]) for _ in range(8)]
sys.exit(any([child.wait() for child in children]))
""",
    "thirty-short": """
import subprocess, sys
for _ in range(15):
    pair = [subprocess.Popen([sys.executable, "-c", "import jax"]) for _ in range(2)]
    assert not any([child.wait() for child in pair])
subprocess.check_call([sys.executable, "work.py"])
""",
    "ten-forks": """
import os, warnings, jax, work
for _ in range(10):
    if not os.fork():
        work.work()
        os._exit(0)
for _ in range(10):
    assert os.wait()[1] == 0
""",
    "spawn-pool": """
import multiprocessing, work
if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(3) as pool:
        pool.map(work.work, [0.0] * 6)
""",
    "forkserver-pool": """
import multiprocessing, work
if __name__ == "__main__":
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["jax"])
    with context.Pool(3) as pool:
        pool.map(work.work, [0.0] * 6)
""",
    "joblib": """
import joblib, work
joblib.Parallel(n_jobs=3)(joblib.delayed(work.work)(0.0) for _ in range(6))
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
    "jaxlib-alone": """
import subprocess, sys, time, work
code = "import jaxlib.xla_client, time; time.sleep(2)"
subprocess.check_call([sys.executable, "-I", "-c", code])
work.work()
""",
}
#: Each hits, and one Python in it loses the hook.
UNHEARD = {
    "exec": """
import os, sys, work
work.work()
os.execv(sys.executable, [sys.executable, "-I", "work.py"])
""",
    "double-fork": """
import os, sys, work
work.work()
read, write = os.pipe()
if not os.fork():
    os.setsid()
    if os.fork():
        os._exit(0)
    os.set_inheritable(write, True)
    os.execv(sys.executable, [sys.executable, "-I", "work.py"])
os.close(write)
os.read(read, 1)
""",
    "env-i": """
import subprocess, sys, work
work.work()
subprocess.check_call(["env", "-i", sys.executable, "work.py"])
""",
    "isolated": """
import subprocess, sys, work
work.work()
subprocess.check_call([sys.executable, "-I", "work.py"])
""",
    "ignoring-the-environment": """
import subprocess, sys, work
work.work()
subprocess.check_call([sys.executable, "-E", "work.py"])
""",
}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "work.py").write_text(WORK)
    return tmp_path


@pytest.fixture
def observe(spawn_cli: RunCli, place: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Runs a program over the cache that the same program has filled: exit code and unobserved."""
    cache = tmp_path_factory.mktemp("observed") / "cache"

    def run(python: str, *command: str, times: int = _RUNS) -> list[tuple[int, list[str]]]:
        options = ("--json", "-C", cache, "--fail-on-miss", "--", python, *command)
        env = {**_LOW, "PYTHONWARNINGS": "ignore", "PYTHONPATH": str(place)}
        seen = []
        for attempt in range(times + 1):
            done = spawn_cli("run", *options, cwd=place, env=env)
            document = json.loads(done.stdout)
            if attempt:
                seen.append((done.returncode, document["unobserved"]))
        return seen

    return run


@pytest.mark.parametrize("step", range(28))
def test_a_program_is_heard_whenever_it_ends(observe: Any, jax_python: str, step: int) -> None:
    """The ends sweep what lies between two looks at the processes."""
    assert set(map(str, observe(jax_python, "work.py", str(step * _STEP_SECONDS)))) == {"(0, [])"}


@pytest.mark.parametrize("name", HEARD)
def test_every_python_with_the_hook_is_heard(
    observe: Any, jax_python: str, place: Path, name: str
) -> None:
    code = f"import {name}" if name == "joblib" else "pass"
    if subprocess.run([jax_python, "-c", code], capture_output=True, check=False).returncode:
        pytest.skip(f"{jax_python} has no {name}")
    (place / "main.py").write_text(HEARD[name])
    assert observe(jax_python, "main.py") == [(0, [])] * _RUNS


@pytest.mark.parametrize("name", UNHEARD)
def test_a_python_that_loses_the_hook_is_noticed(
    observe: Any, jax_python: str, place: Path, tmp_path: Path, name: str
) -> None:
    make_environment(jax_python, tmp_path / "venv")
    alone = str(tmp_path / "venv" / "bin" / "python")
    (place / "main.py").write_text(UNHEARD[name])
    for code, unobserved in observe(alone, "main.py"):
        assert code == 1
        assert "ran jax unobserved" in " ".join(unobserved)
