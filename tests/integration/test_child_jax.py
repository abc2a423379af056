"""The Python that ``--python`` names: how it is found, what its jax lacks, and its children."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command_line import run_in_process
from conftest import CORPUS, REPOSITORY, RunCli, StepRuns, clean_environment, jax_version
from processes import sh
from warm_checks import STEP

from tools.matrix import ASK

pytestmark = pytest.mark.jax
#: A cache with something to load.
GOLDEN = CORPUS / "0.10.2-cpu-zstd"


@pytest.fixture
def run_cli(tmp_path: Path) -> RunCli:
    """Run a command in this process: what the variables of these tests change are its children."""

    def run(
        *args: str | Path, env: dict[str, str] | None = None
    ) -> "subprocess.CompletedProcess[str]":
        given = clean_environment(tmp_path) | (env or {})
        return run_in_process(args, env=given, cwd=tmp_path)

    return run


def test_a_relative_python_is_found_from_any_directory(
    run_cli: RunCli, each_jax_python: str, cache: Path, tmp_path: Path
) -> None:
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.write_text(f'#!/bin/sh\nexec "{each_jax_python}" "$@"\n')
    python.chmod(0o755)
    # A probe runs it in another directory.
    done = run_cli("ci", "key", "-C", cache, "--python", "bin/python")
    assert done.returncode == 0, done.stderr


def test_a_python_that_is_not_there_is_one_error(run_cli: RunCli, cache: Path) -> None:
    for command in (
        ("verify", "-C", GOLDEN, "--level", "load"),
        ("compile", REPOSITORY / "tests/data/golden/inputs/some.recipe", "-C", cache),
        ("ci", "key", "-C", cache),
    ):
        done = run_cli(*command, "--python", "bin/none", "--json")
        error = json.loads(done.stderr)["error"]
        assert (done.returncode, error["code"]) == (13, "no-python")


SAFE = {"PYTHONSAFEPATH": "1"}


def test_a_safe_path_hides_nothing_that_is_needed(
    run_cli: RunCli, each_jax_python: str, cache: Path, tmp_path: Path
) -> None:
    env = SAFE | {"JAX_ENABLE_X64": "1"}
    done = run_cli("target", "capture", "--python", each_jax_python, env=env)
    assert json.loads(done.stdout)["environment"] == {"JAX_ENABLE_X64": "1"}
    (tmp_path / "library").mkdir()
    (tmp_path / "library" / "models.py").write_text("def step(x):\n    return x * 2\n")
    path = os.pathsep.join([str(tmp_path / "library"), str(REPOSITORY)])
    words = ("warm", "-C", cache, "--python", each_jax_python, "models:step", "--arg", "f32[3]")
    done = run_cli(*words, env=SAFE | {"PYTHONPATH": path})
    assert done.returncode == 0, done.stderr


def test_entries_are_loaded_by_the_jax_that_programs_import(
    run_cli: RunCli, each_jax_python: str, tmp_path: Path
) -> None:
    (tmp_path / "jax.py").write_text('raise ImportError("the jax on PYTHONPATH")\n')
    env = {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(REPOSITORY)])}
    command = ("verify", "-C", GOLDEN, "--level", "load", "--python", each_jax_python)
    done = run_cli(*command, env=env)
    assert (done.returncode, "the jax on PYTHONPATH" in done.stderr) == (13, True)


# A jax that lacks a private name, as another version of it might.


def lack(name: str) -> dict[str, str]:
    """The environment of a jax without that name."""
    path = f"{Path(__file__).with_name('broken')}{os.pathsep}{REPOSITORY}"
    return {"LACKING": name, "PYTHONPATH": path}


LISTENED = "jax._src.compiler._cache_write"


def test_a_program_with_an_unknown_jax_runs_and_asserts_nothing(
    run_cli: RunCli, each_jax_python: str, cache: Path, script: Any
) -> None:
    path = script("import jax\nprint('ran')\n")
    env = lack(LISTENED)
    place = ("-C", cache)
    for command, code in (
        (("warm", *place, "--python", each_jax_python), 0),
        (("run", *place, "--strict", "--fail-on-miss", "--", each_jax_python), 1),
    ):
        done = run_cli(*command, path, env=env)
        assert (done.returncode, done.stdout) == (code, "ran\n"), done.stderr
        assert "upgrade jaxcache, or use an older jax" in done.stderr
        assert ("could be observed" in done.stderr) is bool(code)


#: What moves, how the line about it begins, and the first JAX where that is looked for.
MOVED: tuple[tuple[str, str, tuple[int, ...]], ...] = (
    (LISTENED, "a private name has moved: cannot listen to jax", (0,)),
    ("jax._src.lru_cache._CACHE_SUFFIX", "a private name has moved: the live layer: ", (0, 5)),
    ("jax._src.cache_key._log_cache_key_hash", "a private name has moved: targets: ", (0, 11)),
)


def test_the_matrix_says_which_private_name_has_moved(each_jax_python: str, tmp_path: Path) -> None:
    version = jax_version(each_jax_python)
    moved = {name: line for name, line, first in MOVED if version >= first}
    env = clean_environment(tmp_path) | lack(" ".join(moved))
    done = sh([each_jax_python, "-c", ASK, str(REPOSITORY)], check=True, env=env)
    told = done.stdout.splitlines()[1:]
    assert len(told) == len(moved)
    for name, line in moved.items():
        assert any(t.startswith(line) and name.rpartition(".")[2] in t for t in told), told


def refuses(done: "subprocess.CompletedProcess[str]", says: str = "hint") -> bool:
    """Whether a command refused a JAX that it does not know, and said what to do."""
    error = json.loads(done.stderr.splitlines()[-1])["error"]
    assert "upgrade jaxcache" in error[says]
    return (done.returncode, error["code"]) == (13, "unknown-jax")


def test_what_must_listen_says_that_it_cannot(
    run_cli: RunCli, each_jax_python: str, cache: Path, script: Any
) -> None:
    path = script("import jax\n")
    cache.mkdir()
    for command in (
        ("explain", "-C", cache, "--json", "--python", each_jax_python, path),
        ("where", "--json", "--", each_jax_python, path),
    ):
        assert refuses(run_cli(*command, env=lack(LISTENED)), says="message")


def test_nothing_is_tried_or_blamed_on_an_unknown_jax(
    run_cli: RunCli, step_runs: StepRuns, each_jax_python: str, cache: Path
) -> None:
    """Neither a recipe nor an entry."""
    compile_ = ("compile", step_runs.directory / "step.recipe", "-C", cache)
    for name, words in (
        ("cache_key.xla_flags_to_exclude_from_cache_key", compile_),
        ("compiler.get_compile_options", ("verify", "-C", GOLDEN, "--level", "load")),
    ):
        command = (*words, "--json", "--python", each_jax_python)
        assert refuses(run_cli(*command, env=lack(f"jax._src.{name}")))


def test_nothing_is_made_for_a_target_by_an_unknown_jax(
    run_cli: RunCli, each_jax_python: str, cache: Path, script: Any, tmp_path: Path
) -> None:
    if jax_version(each_jax_python) < (0, 11):
        pytest.skip("this jax cannot rebuild a topology")
    profile = tmp_path / "host.json"
    run_cli("target", "capture", "--python", each_jax_python, profile)
    words = ("warm", "-C", cache, "--python", each_jax_python, "--target", profile, "--json")
    for name in ("interpreters.pxla.lower_sharding_computation", "cache_key.get"):
        assert refuses(run_cli(*words, script(STEP), env=lack(f"jax._src.{name}")))


# What else runs in a child, and what remains of it when jaxcache is killed.


Noisy = Callable[..., dict[str, str]]


_NOISE = """
import os, sys
if "jaxcache" not in sys.orig_argv:
    print("good morning from sitecustomize")
    os.write(1, b'{"event": "ready", "platform": "noise"}\\n')
"""


#: Leaves its process id, and stops; in the place of jaxlib.
_STUCK = """
import os, time
def stop(*args):
    with open(os.environ["STUCK"] + ".new", "w") as file:
        file.write(str(os.getpid()))
    os.rename(os.environ["STUCK"] + ".new", os.environ["STUCK"])
    time.sleep(600)
if __name__ == "jaxlib":
    stop()
"""
#: As a ``sitecustomize``, it stops at the first compile.
_STUCK_LATER = (
    _STUCK
    + """
import sys, threading
def arm():
    while not hasattr(sys.modules.get("jax._src.compiler"), "_compile_and_write_cache"):
        time.sleep(0.001)
    sys.modules["jax._src.compiler"]._compile_and_write_cache = stop
threading.Thread(target=arm, daemon=True).start()
"""
)


@pytest.fixture
def custom(tmp_path: Path) -> Noisy:
    """Put a ``sitecustomize``, or another package, on the path; the environment that finds it."""

    def make(text: str, name: str = "sitecustomize") -> dict[str, str]:
        package = tmp_path / "site" / name
        package.mkdir(parents=True)
        (package / "__init__.py").write_text(text)
        return {"PYTHONPATH": f"{package.parent}{os.pathsep}{REPOSITORY}"}

    return make


def test_what_a_sitecustomize_prints_is_no_answer(
    run_cli: RunCli,
    each_jax_python: str,
    step_runs: StepRuns,
    step_cache: Path,
    custom: Noisy,
    tmp_path: Path,
) -> None:
    env = custom(_NOISE)
    python = ("--python", each_jax_python)
    commands = [
        ("verify", "-C", step_cache, "--level", "load", *python),
        ("show", "jit_step", "-C", step_cache, "--hlo", *python),
    ]
    if jax_version(each_jax_python) >= (0, 5):
        recipe = step_runs.directory / "step.recipe"
        commands.append(("compile", recipe, "-C", tmp_path / "compiled", *python))
    if jax_version(each_jax_python) >= (0, 10):
        commands.append(("target", "capture", *python))
    for command in commands:
        done = run_cli(*command, env=env)
        assert done.returncode == 0, (command, done.stderr)
        assert "good morning" not in done.stdout


def test_a_sitecustomize_that_is_a_package_stays_one(
    run_cli: RunCli, each_jax_python: str, script: Any, custom: Noisy, tmp_path: Path
) -> None:
    env = custom("from . import part\n")
    package = tmp_path / "site" / "sitecustomize"
    (package / "part.py").write_text("")
    told = "import sitecustomize as s, sys; print(*s.__path__, s.part.__name__, file=sys.stderr)"
    command = ("run", "--json", "-C", tmp_path / "cache", "--", each_jax_python)
    done = run_cli(*command, script(f"{STEP}{told}"), env=env)
    assert (done.returncode, "Error in sitecustomize" in done.stderr) == (0, False), done.stderr
    assert f"{package} sitecustomize.part\n" in done.stderr
    assert json.loads(done.stdout)["summary"]["skipped"] > 0, "the listener is there, too"


@pytest.mark.parametrize(
    ("command", "number", "stuck_in"),
    [
        ("compile", signal.SIGTERM, "compile"),
        ("compile", signal.SIGKILL, "import"),
        pytest.param("ci", signal.SIGKILL, "compile", marks=pytest.mark.slow),
    ],
)
def test_no_child_outlives_jaxcache_and_nothing_stays_of_it(
    step_runs: StepRuns,
    each_jax_python: str,
    custom: Noisy,
    tmp_path: Path,
    command: str,
    number: int,
    stuck_in: str,
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
    env = custom(_STUCK, "jaxlib") if stuck_in == "import" else custom(_STUCK_LATER)
    parent = subprocess.Popen(
        [sys.executable, "-m", "jaxcache", *line],
        env=clean_environment(tmp_path) | env | {"TMPDIR": str(scratch), "STUCK": str(stuck)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    _wait_until(stuck.exists)
    parent.send_signal(number)
    parent.wait()
    child = int(stuck.read_text())
    _wait_until(lambda: not _is_alive(child))
    _wait_until(lambda: not list(scratch.iterdir()))


def _wait_until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 300
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def _is_alive(pid: int) -> bool:
    """Whether a process is there, and no zombie, at which only its new parent has not looked."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
