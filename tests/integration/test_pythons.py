"""The Python that ``--python`` names: however it is named and set up, whatever its jax lacks."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from conftest import REPOSITORY, RunCli, clean_environment, jax_version
from processes import sh
from warm_checks import STEP

from tools.matrix import ASK

pytestmark = pytest.mark.jax

LACKING = Path(__file__).with_name("lacking")


@pytest.fixture
def relative(each_jax_python: str, tmp_path: Path) -> str:
    """The interpreter under a path that means nothing elsewhere."""
    path = tmp_path / "bin" / "python"
    path.parent.mkdir()
    path.write_text(f'#!/bin/sh\nexec "{each_jax_python}" "$@"\n')
    path.chmod(0o755)
    return "bin/python"


def test_a_relative_python_is_found_from_any_directory(
    run_cli: RunCli, relative: str, cache: Path, tmp_path: Path
) -> None:
    (tmp_path / "step.py").write_text(STEP)
    done = run_cli("warm", "-C", cache, "--python", relative, "step.py")
    assert done.returncode == 0, done.stderr
    done = run_cli("ci", "key", "-C", cache, "--python", relative)  # runs it in another directory
    assert done.returncode == 0, done.stderr


def test_a_python_that_is_not_there_is_one_error(
    run_cli: RunCli, golden_jax: Path, cache: Path
) -> None:
    for command in (
        ("verify", "-C", golden_jax, "--level", "load"),
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
    done = run_cli(
        "warm",
        "-C",
        cache,
        "--python",
        each_jax_python,
        "models:step",
        "--arg",
        "f32[3]",
        env=SAFE | {"PYTHONPATH": path},
    )
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
    for command in (
        ("warm", "-C", cache, "--python", each_jax_python),
        ("run", "-C", cache, "--", each_jax_python),
    ):
        done = run_cli(*command, path, env=env)
        assert (done.returncode, done.stdout) == (0, "ran\n"), done.stderr
        assert "upgrade jaxcache, or use an older jax" in done.stderr
    for assertion in ("--fail-on-miss", "--strict"):
        done = run_cli("warm", "-C", cache, "--python", each_jax_python, assertion, path, env=env)
        assert (done.returncode, "could be observed" in done.stderr) == (1, True)


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("", ""),
        (LISTENED, "a private name has moved: cannot listen to jax"),
        ("jax._src.lru_cache._CACHE_SUFFIX", "a private name has moved: the live layer: cannot "),
        ("jax._src.cache_key._log_cache_key_hash", "a private name has moved: targets: "),
    ],
)
def test_the_matrix_says_which_private_name_has_moved(
    each_jax_python: str, tmp_path: Path, name: str, line: str
) -> None:
    if "lru" in name and jax_version(each_jax_python) < (0, 5):
        pytest.skip("the live layer does not know JAX 0.4.30")
    if "targets" in line and jax_version(each_jax_python) < (0, 11):
        pytest.skip("targets take JAX 0.11")
    env = clean_environment(tmp_path) | (lack(name) if name else {})
    done = sh([each_jax_python, "-c", ASK, str(REPOSITORY)], check=True, env=env)
    told = done.stdout.splitlines()[1:]
    assert bool(told) is bool(name)
    assert all(name.rpartition(".")[2] in t for t in told)
    assert not name or any(t.startswith(line) for t in told)


def test_what_must_listen_says_that_it_cannot(
    run_cli: RunCli, each_jax_python: str, cache: Path, script: Any
) -> None:
    path = script("import jax\n")
    cache.mkdir()
    for command in (
        ("explain", "-C", cache, "--json", "--python", each_jax_python, path),
        ("where", "--json", "--", each_jax_python, path),
    ):
        done = run_cli(*command, env=lack(LISTENED))
        assert done.returncode == 13
        error = json.loads(done.stderr.splitlines()[-1])["error"]
        assert error["code"] == "unknown-jax"
        assert "upgrade jaxcache" in error["message"]


def test_no_entry_is_blamed_for_what_an_unknown_jax_lacks(
    run_cli: RunCli, each_jax_python: str, golden_jax: Path
) -> None:
    done = run_cli(
        "verify",
        "-C",
        golden_jax,
        "--level",
        "load",
        "--python",
        each_jax_python,
        "--json",
        env=lack("jax._src.compiler.get_compile_options"),
    )
    assert done.returncode == 13
    error = json.loads(done.stderr.splitlines()[-1])["error"]
    assert error["code"] == "unknown-jax"
    assert "upgrade jaxcache" in error["hint"]


@pytest.mark.parametrize(
    "name",
    [
        "jax._src.cache_key.xla_flags_to_exclude_from_cache_key",
        "jax._src.interpreters.mlir.make_ir_context",
    ],
)
def test_a_recipe_is_not_tried_on_an_unknown_jax(
    run_cli: RunCli, each_jax_python: str, cache: Path, script: Any, tmp_path: Path, name: str
) -> None:
    recipe = tmp_path / "step.recipe"
    made = run_cli(
        "warm", "-C", cache, "--python", each_jax_python, "--record", recipe, script(STEP)
    )
    assert made.returncode == 0, made.stderr
    done = run_cli(
        "compile",
        recipe,
        "-C",
        tmp_path / "new",
        "--python",
        each_jax_python,
        "--json",
        env=lack(name),
    )
    error = json.loads(done.stderr.splitlines()[-1])["error"]
    assert (done.returncode, error["code"]) == (13, "unknown-jax")
    assert "upgrade jaxcache" in error["hint"]


@pytest.mark.parametrize(
    "name",
    [
        "jax._src.interpreters.pxla.lower_sharding_computation",
        "jax._src.cache_key.get",
        "jax._src.core.subjaxprs",
    ],
)
def test_nothing_is_made_for_a_target_by_an_unknown_jax(
    run_cli: RunCli, each_jax_python: str, cache: Path, script: Any, tmp_path: Path, name: str
) -> None:
    if jax_version(each_jax_python) < (0, 11):
        pytest.skip("this jax cannot rebuild a topology")
    profile = tmp_path / "host.json"
    run_cli("target", "capture", "--python", each_jax_python, profile)
    done = run_cli(
        "warm",
        "-C",
        cache,
        "--python",
        each_jax_python,
        "--target",
        profile,
        "--json",
        script(STEP),
        env=lack(name),
    )
    error = json.loads(done.stderr.splitlines()[-1])["error"]
    assert (done.returncode, error["code"]) == (13, "unknown-jax")
    assert "upgrade jaxcache" in error["hint"]
