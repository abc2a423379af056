"""The Python that ``--python`` names: however it is named and set up, whatever its jax lacks."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from conftest import REPOSITORY, RunCli, StepRuns, clean_environment, jax_version
from processes import sh
from warm_checks import STEP

from tools.matrix import ASK

pytestmark = pytest.mark.jax

LACKING = Path(__file__).with_name("lacking")


def test_a_relative_python_is_found_from_any_directory(
    run_cli: RunCli, each_jax_python: str, cache: Path, tmp_path: Path
) -> None:
    (tmp_path / "bin").mkdir()
    python = tmp_path / "bin" / "python"
    python.write_text(f'#!/bin/sh\nexec "{each_jax_python}" "$@"\n')
    python.chmod(0o755)
    # A probe runs it in another directory.
    done = run_cli("ci", "key", "-C", cache, "--python", "bin/python")
    assert done.returncode == 0, done.stderr


def test_a_python_that_is_not_there_is_one_error(
    run_cli: RunCli, golden_jax: Path, cache: Path
) -> None:
    for command in (
        ("verify", "-C", golden_jax, "--level", "load"),
        ("compile", REPOSITORY / "tests/data/golden/inputs/some.recipe", "-C", cache),
        ("ci", "key", "-C", cache),
    ):
        done = run_cli(*command, "--python", "bin/none", "--json")
        error = json.loads(done.stderr)["error"]
        assert (done.returncode, error["code"]) == (13, "no-python")


@pytest.fixture
def golden_jax(corpus: Path) -> Path:
    """A cache with something to load."""
    return corpus / "0.10.2-cpu-zstd"


SAFE = {"PYTHONSAFEPATH": "1"}


def test_a_safe_path_hides_nothing_that_is_needed(
    run_cli: RunCli, each_jax_python: str, cache: Path, tmp_path: Path
) -> None:
    done = run_cli("target", "capture", "--python", each_jax_python, env=SAFE)
    assert done.returncode == 0, done.stderr
    (tmp_path / "library").mkdir()
    (tmp_path / "library" / "models.py").write_text("def step(x):\n    return x * 2\n")
    path = os.pathsep.join([str(tmp_path / "library"), str(REPOSITORY)])
    words = ("warm", "-C", cache, "--python", each_jax_python, "models:step", "--arg", "f32[3]")
    done = run_cli(*words, env=SAFE | {"PYTHONPATH": path})
    assert done.returncode == 0, done.stderr


def test_entries_are_loaded_by_the_jax_that_programs_import(
    run_cli: RunCli, each_jax_python: str, golden_jax: Path, tmp_path: Path
) -> None:
    (tmp_path / "jax.py").write_text('raise ImportError("the jax on PYTHONPATH")\n')
    env = {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(REPOSITORY)])}
    command = ("verify", "-C", golden_jax, "--level", "load", "--python", each_jax_python)
    done = run_cli(*command, env=env)
    assert (done.returncode, "the jax on PYTHONPATH" in done.stderr) == (13, True)


def lack(name: str) -> dict[str, str]:
    """The environment of a jax without that name."""
    return {"LACKING": name, "PYTHONPATH": os.pathsep.join([str(LACKING), str(REPOSITORY)])}


LISTENED = "jax._src.compiler._cache_write"


def test_a_program_with_an_unknown_jax_runs_and_asserts_nothing(
    run_cli: RunCli, each_jax_python: str, cache: Path, script: Any
) -> None:
    path = script("import jax\nprint('ran')\n")
    env = lack(LISTENED)
    place = ("-C", cache)
    for command, code in (
        (("warm", *place, "--python", each_jax_python), 0),
        (("run", *place, "--strict", "--", each_jax_python), 1),
        (("warm", *place, "--fail-on-miss", "--python", each_jax_python), 1),
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


@pytest.mark.parametrize("moves", [False, True])
def test_the_matrix_says_which_private_name_has_moved(
    each_jax_python: str, tmp_path: Path, moves: bool
) -> None:
    version = jax_version(each_jax_python)
    moved = {name: line for name, line, first in MOVED if moves and version >= first}
    env = clean_environment(tmp_path) | (lack(" ".join(moved)) if moved else {})
    done = sh([each_jax_python, "-c", ASK, str(REPOSITORY)], check=True, env=env)
    told = done.stdout.splitlines()[1:]
    assert len(told) == len(moved)
    for name, line in moved.items():
        assert any(t.startswith(line) and name.rpartition(".")[2] in t for t in told), told


def test_what_must_listen_says_that_it_cannot(
    run_cli: RunCli, each_jax_python: str, cache: Path, script: Any
) -> None:
    path = script("import jax\n")
    cache.mkdir()
    for command in (
        ("explain", "-C", cache, "--json", "--python", each_jax_python, path),
        ("where", "--json", "--", each_jax_python, path),
    ):
        check_unknown(run_cli(*command, env=lack(LISTENED)), says="message")


def check_unknown(done: "subprocess.CompletedProcess[str]", says: str = "hint") -> None:
    """Check that a command refused a JAX that it does not know, and said what to do."""
    error = json.loads(done.stderr.splitlines()[-1])["error"]
    assert (done.returncode, error["code"]) == (13, "unknown-jax")
    assert "upgrade jaxcache" in error[says]


def test_no_entry_is_blamed_for_what_an_unknown_jax_lacks(
    run_cli: RunCli, each_jax_python: str, golden_jax: Path
) -> None:
    env = lack("jax._src.compiler.get_compile_options")
    words = ("verify", "-C", golden_jax, "--level", "load", "--python", each_jax_python, "--json")
    check_unknown(run_cli(*words, env=env))


@pytest.mark.parametrize(
    "name",
    [
        "jax._src.cache_key.xla_flags_to_exclude_from_cache_key",
        "jax._src.interpreters.mlir.make_ir_context",
    ],
)
def test_a_recipe_is_not_tried_on_an_unknown_jax(
    run_cli: RunCli, step_runs: StepRuns, each_jax_python: str, cache: Path, name: str
) -> None:
    words = ("compile", step_runs.directory / "step.recipe", "-C", cache, "--json", "--python")
    check_unknown(run_cli(*words, each_jax_python, env=lack(name)))


def test_nothing_is_made_for_a_target_by_an_unknown_jax(
    run_cli: RunCli, each_jax_python: str, cache: Path, script: Any, tmp_path: Path
) -> None:
    if jax_version(each_jax_python) < (0, 11):
        pytest.skip("this jax cannot rebuild a topology")
    profile = tmp_path / "host.json"
    run_cli("target", "capture", "--python", each_jax_python, profile)
    words = ("warm", "-C", cache, "--python", each_jax_python, "--target", profile, "--json")
    for name in (
        "jax._src.interpreters.pxla.lower_sharding_computation",
        "jax._src.cache_key.get",
    ):
        check_unknown(run_cli(*words, script(STEP), env=lack(name)))
