"""The screen of ``warm``: a headline, the user's functions with reasons, the rest in a line."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from command_line import run_in_process
from conftest import REPOSITORY, RunCli, clean_environment, has_modules, jax_version
from plain_jax import run_plain
from processes import sh
from test_warm_options import SHARDED
from warm_checks import STEP, Warm, outcomes

from jaxcache.cache.explain.say import NOT_KNOWN

pytestmark = pytest.mark.jax
PROGRAM = """
import sys
import jax, jax.numpy as jnp
size, factor = int(sys.argv[1]), float(sys.argv[2])
@jax.jit
def step(x):
    return jnp.sin(x) * factor @ x
step(jnp.full((size, size), 0.5)).sum()
"""
#: A function of many arrays.
MANY = """
import sys
import jax, jax.numpy as jnp
width = int(sys.argv[1])
@jax.jit
def train(params, x):
    return [(w * x.sum(), b + 1) for w, b in params]
train([(jnp.ones((4, width)), jnp.ones(width))] * 2, jnp.ones(3))
"""
#: Compiles for some seconds; says when it begins, and once more where it was not interrupted.
SLOW = """
import jax, jax.numpy as jnp
@jax.jit
def slow(x):
    for i in range(60):
        x = jnp.sin(x) @ jnp.cos(x) + i
    return x
lowered = slow.lower(jnp.ones((8, 8)))
print("compiling", flush=True)
lowered.compile()
print("compiled", flush=True)
"""


def test_a_cache_that_cannot_be_opened_is_told_once_and_in_full(
    run_cli: RunCli, jax_python: str, script: Any, cache: Path, tmp_path: Path
) -> None:
    """JAX needs filelock for a size cap, and does not install it."""
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "filelock.py").write_text("raise ImportError('hidden for a test')\n")
    cap = {"JAX_COMPILATION_CACHE_MAX_SIZE": "1000000", "PYTHONPATH": str(hidden)}
    words = ("warm", "-C", cache, "--python", jax_python, str(script(PROGRAM)), "8", "1", "--all")
    done = run_cli(*words, env=cap | {"COLUMNS": "80", "PYTHONWARNINGS": "ignore"})
    assert done.returncode == 1, done.stderr
    told = " ".join(done.stderr.partition(" hits · ")[2].split())
    assert told.count("JAX could not open the cache") == 1
    assert told.count("Please install the `filelock` package to set `jax_compilation_") == 1
    assert told.count(f"to find the cause and the cure: jaxcache doctor -C {cache}") == 1


def test_the_screen_says_why_each_function_was_compiled(
    run_cli: RunCli, each_jax_python: str, script: Any, cache: Path
) -> None:
    path = script(PROGRAM, "a_program_of_a_long_name_of_which_no_run_is_recorded.py")

    def warm(*words: str) -> list[str]:
        options = ("-C", cache, "--python", each_jax_python)
        done = run_cli("warm", *options, *words, env={"COLUMNS": "160"})
        assert done.returncode == 0, done.stderr
        lines = done.stderr.splitlines()
        return lines[next(i for i, line in enumerate(lines) if " hits · " in line) :]

    first = warm(str(path), "8", "1")
    assert first[0].startswith("0 of ")
    assert first[1].split() == ["MODULE", "SOURCE", "OUTCOME", "COMPILE", "SIZE", "WHY"]
    (row,) = [line for line in first if line.startswith("jit_step")]
    assert f"{path.name}:5" in row or f"{path.name}:6" in row
    assert row.endswith(f"first time in {path.name}")
    assert not [line for line in first if "in full: " in line]  # there is no more to say
    (folded,) = [line for line in first if line.startswith("and ")]
    assert "of JAX" in folded
    assert "(--all lists them)" in folded
    assert not [line for line in first if line.startswith("jit_broadcast_in_dim")]

    (row,) = [line for line in warm(str(path), "16", "1") if line.startswith("jit_step")]
    assert row.endswith("x float32[8,8] (weak) → float32[16,16] (weak)"), row
    assert " 0.0 s" not in row
    words = ("-C", cache, "--json", "--python", each_jax_python, str(path), "16", "3")
    modules = json.loads(run_cli("warm", *words).stdout)["modules"]
    causes = {m["module"]: m["cause"] for m in modules}
    assert causes["jit_step"].endswith("1 → 3")
    assert all(m["cause"] is None for m in modules if m["outcome"] == "hit")
    again = warm("--all", str(path), "16", "3")
    assert (again[0].split()[0], "retrieved in" in "".join(again)) == (again[0].split()[2], True)
    assert len([line for line in again if line.startswith("jit_")]) > 1
    assert not [line for line in again if line.startswith("and ")]


def test_explain_ends_with_the_compile_that_ctrl_c_interrupted(
    jax_python: str, script: Any, cache: Path, tmp_path: Path
) -> None:
    path = script(SLOW)
    cache.mkdir()
    command = [sys.executable, "-m", "jaxcache", "explain", "-C", str(cache)]
    child = subprocess.Popen(
        [*command, "--python", jax_python, str(path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=clean_environment(tmp_path),
        start_new_session=True,
    )
    try:
        assert child.stderr is not None
        assert "compiling\n" in iter(child.stderr.readline, "")
        time.sleep(0.5)  # now XLA compiles
        os.killpg(child.pid, signal.SIGINT)  # as a terminal does
        said, shown = child.communicate(timeout=180)
    finally:
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGKILL)
    assert (child.returncode, said.splitlines()[-1][:8]) == (128 + signal.SIGINT, "jit_slow")
    assert "interrupted; the explanation ends with the compile that was running" in shown


def test_trouble_in_finding_causes_ends_no_run(
    run_cli: RunCli, each_jax_python: str, script: Any, step_cache: Path
) -> None:
    path = script(STEP.replace("(8, 8)", "(9, 9)"))
    for entry in step_cache.glob("jit_step*-cache"):
        entry.write_bytes(b"\x28\xb5\x2f\xfd rotten")
    options = ("--portable", "-C", step_cache, "--python", each_jax_python)
    done = run_cli("warm", *options, path)
    assert done.returncode == 0
    (row,) = [line for line in done.stderr.splitlines() if line.startswith("jit_step")]
    assert row.split()[-1] != "kB", row


def test_beside_entries_of_jax_alone_the_reason_is_not_known(
    jax_python: str, cache: Path, tmp_path: Path
) -> None:
    path = tmp_path / "train.py"
    path.write_text(MANY)
    env = clean_environment(tmp_path) | {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    alone = env | {"JAX_COMPILATION_CACHE_DIR": str(cache)}
    run_plain([jax_python, path, "8"], env=alone)
    words = ["warm", "-C", cache, "--python", jax_python, path, "12"]
    done = run_in_process(words, env=env | {"COLUMNS": "160"}, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    lines = done.stderr.splitlines()
    (row,) = [line for line in lines if line.startswith("jit_train")]
    assert row.endswith(f"  {NOT_KNOWN}")
    words = ["warm", "-C", cache, "--python", jax_python, path, "16"]
    assert run_in_process(words, env=env, cwd=tmp_path).returncode == 0
    words = ["explain", "-C", cache, "--python", jax_python, path, "--", "16"]
    done = run_in_process(words, env=env, cwd=tmp_path)
    hits, _, asked = done.stderr.splitlines()[-1].partition(" of ")
    assert asked == f"{hits} hit now; below is why they were compiled when they were written", (
        done.stderr
    )
    done = run_in_process([*words[:5], "--json", *words[5:]], env=env, cwd=tmp_path)
    (found,) = [c for c in json.loads(done.stdout)["hits"] if c["module"] == "jit_train"]
    assert found["cause"] == "params[0][0] float32[4,12] → float32[4,16], +3 more"
    assert (found["outcome"], bool(found["differences"])) == ("hit", True)
    words[-1] = "12"  # what was written first has nothing before it
    done = run_in_process([*words[:5], "--json", *words[5:]], env=env, cwd=tmp_path)
    (found,) = [c for c in json.loads(done.stdout)["hits"] if c["module"] == "jit_train"]
    assert (found["cause"], found["left_key"]) == ("first time", None)


def test_a_path_in_the_key_is_named_with_the_way_to_avoid_it(
    run_cli: RunCli, jax_python: str, script: Any, tmp_path: Path
) -> None:
    """Portable entries beside those whose keys contain the cache's path, moved elsewhere."""
    words = ("--python", jax_python, str(script(PROGRAM)), "8", "1")

    def why(cache: str, *options: str) -> tuple[str, str]:
        done = run_cli("warm", "-C", tmp_path / cache, *options, *words, env={"COLUMNS": "200"})
        assert done.returncode == 0, done.stderr
        (row,) = [s for s in done.stderr.splitlines() if s.startswith("jit_step")]
        return row, done.stderr

    first, _ = why("first")
    portable, said = why("first", "--portable")
    assert "  first time in " in first
    if portable.split()[2] == "hit":
        pytest.skip("keys of this JAX do not contain the path")
    assert re.search(r"cache path: \S*first → none \(--portable\)$", portable), portable
    assert "fill it with --portable" not in said
    shutil.copytree(tmp_path / "first", tmp_path / "second")
    moved, said = why("second")
    assert re.search(r"cache path: \S.* → \S*second$", moved), moved
    assert "sha256" not in said
    told = re.search(r"hits only as JAX_COMPILATION_CACHE_DIR=(\S+);", said)
    assert told and told[1] == str(tmp_path / "second")
    assert "to move it, fill it with --portable" in said
    twice = "import sys, jax, runpy\nrunpy.run_path(sys.argv[3])\njax.clear_caches()\n" * 2
    again = tmp_path / "twice.py"
    again.write_text(twice)  # hits what it has written itself
    line = ("warm", "-C", tmp_path / "third", "--python", jax_python, again, "8", "1")
    done = run_cli(*line, script(PROGRAM))
    assert re.match(r"[1-9]\d* of \d+ hits", done.stderr), done.stderr
    assert "hits only as" in done.stderr
    words = ("--python", jax_python, str(script(PROGRAM)), "9", "1")
    _, said = why("second")
    assert " written: " in said
    assert "hits only as" not in said


# Programs as people start them: modules, directories, notebooks; what ``run`` shares with warm.


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
    done = sh([sys.executable, "-c", script], cwd=tmp_path)
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


def test_what_no_cache_can_serve_may_be_excepted(
    warm: Warm, script: Any, run_cli: RunCli, step_cache: Path, each_jax_python: str
) -> None:
    if jax_version(each_jax_python) >= (0, 11):
        pytest.skip("this JAX caches programs with callbacks")
    path = script(STEP + "\njax.jit(lambda x: jax.debug.print('{}', x))(1.0)")
    warm(path, options=("--portable", "--fail-on-miss"), code=1)
    warm(path, options=("--portable", "--fail-on-miss", "--except", "uncacheable"))
    done = run_cli("warm", "-C", step_cache, "--fail-on-miss", "--except", "misses", path)
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
