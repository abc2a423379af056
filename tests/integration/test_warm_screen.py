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
from conftest import RunCli, clean_environment
from plain_jax import run_plain

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
    for i in range(100):
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
    assert row.endswith(f"first time: no run of {path.name} is recorded")
    assert not [line for line in first if "in full: " in line]  # there is no more to say
    (folded,) = [line for line in first if line.startswith("and ")]
    assert "of JAX" in folded
    assert "(--all lists them)" in folded
    assert not [line for line in first if line.startswith("jit_broadcast_in_dim")]

    (row,) = [line for line in warm(str(path), "16", "1") if line.startswith("jit_step")]
    assert row.endswith("x float32[8,8] (weak) → float32[16,16] (weak)"), row
    assert " 0.0 s" not in row
    (row,) = [line for line in warm(str(path), "16", "3") if line.startswith("jit_step")]
    assert row.endswith("1 → 3"), row
    again = warm("--all", str(path), "16", "3")
    assert (again[0].split()[0], "retrieved in" in "".join(again)) == (again[0].split()[2], True)
    assert len([line for line in again if line.startswith("jit_")]) > 1
    assert not [line for line in again if line.startswith("and ")]
    report = run_cli(
        "warm", "-C", cache, "--json", "--python", each_jax_python, str(path), "4", "3"
    )
    modules = json.loads(report.stdout)["modules"]
    said = {m["module"]: m["cause"] for m in modules}
    assert said["jit_step"].startswith("x float32[")
    assert all(m["cause"] is None for m in modules if m["outcome"] == "hit")


def test_ctrl_c_lists_the_compile_that_was_running_as_interrupted(
    jax_python: str, script: Any, cache: Path, tmp_path: Path
) -> None:
    path = script(SLOW)
    command = [sys.executable, "-m", "jaxcache", "warm", "-C", str(cache)]
    child = subprocess.Popen(
        [*command, "--python", jax_python, str(path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=clean_environment(tmp_path),
        start_new_session=True,
    )
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "compiling\n"
        time.sleep(1)  # now XLA compiles
        os.killpg(child.pid, signal.SIGINT)  # as a terminal does
        said, shown = child.communicate(timeout=180)
    finally:
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGKILL)
    assert said == "", shown
    # Without jaxcache, too, JAX may end so: its threads compile on while Python exits.
    assert child.returncode in (128 + signal.SIGINT, 128 + signal.SIGSEGV), shown
    (row,) = [line for line in shown.splitlines() if line.startswith("jit_slow")]
    assert "interrupted" in row
    assert "error" not in row
    assert "note: interrupted" in shown


def test_trouble_in_finding_causes_ends_no_run(
    run_cli: RunCli, jax_python: str, script: Any, cache: Path
) -> None:
    path = script(PROGRAM)
    options = ("-C", cache, "--python", jax_python)
    assert run_cli("warm", *options, path, "8", "1").returncode == 0
    for entry in cache.glob("jit_step*-cache"):
        entry.write_bytes(b"\x28\xb5\x2f\xfd rotten")
    done = run_cli("warm", *options, path, "16", "1")
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
    assert "  first time: no run of " in first
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
