"""Settings of public start scripts: ``doctor`` names each, and its cure mends it."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from acting import acts_on, says
from conftest import clean_environment, find_jax_pythons

DOCTOR = f"exec {sys.executable} -m jaxcache doctor --json"
SECONDS = "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"
LOW = {SECONDS: "0"}
DIRECTORY = "JAX_COMPILATION_CACHE_DIR"
Setting = Callable[[Path], dict[str, str]]


def examine(home: Path, env: dict[str, str], words: str, before: str = "") -> dict[str, Any]:
    """What ``doctor`` prints after the commands of a cure."""
    done = subprocess.run(
        f"{before}{DOCTOR} {words}",
        shell=True,
        cwd=home,
        env=clean_environment(home) | {"USER": "me"} | LOW | env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def cure_of(fix: str) -> str:
    """The commands of a cure, for a shell."""
    says(fix)
    commands = re.search(r"(export JAX_\w+=|chmod ).*", fix)
    assert commands, fix
    return f"{commands[0]} && "


def open_to_all(home: Path) -> dict[str, str]:
    (home / "open").mkdir()
    (home / "open").chmod(0o777)
    return {DIRECTORY: str(home / "open")}


#: How the cure of each finding begins.
CURES = {
    "directory-spelling": "name the directory by one absolute path everywhere: export …",
    "temporary-directory": "export JAX_COMPILATION_CACHE_DIR=…",
    "threshold": "export JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS=0",
    "unsafe-permissions": "chmod -R go-w …",
}


def row(name: str, trap: str, meant: str, set_up: Setting) -> Any:
    """A setting, its finding, and the directory that the user meant."""
    return pytest.param(set_up, trap, meant, marks=acts_on(CURES[trap]), id=name)


@pytest.mark.parametrize(
    ("set_up", "trap", "meant"),
    [
        row("a quoted ~", "directory-spelling", "c", lambda _: {DIRECTORY: "~/c"}),
        row("a quoted variable", "directory-spelling", "c", lambda _: {DIRECTORY: "$HOME/c"}),
        row("a user", "directory-spelling", "me/c", lambda h: {DIRECTORY: f"{h}/${{USER}}/c"}),
        row("quotes of docker", "directory-spelling", "c", lambda h: {DIRECTORY: f'"{h}/c"'}),
        row(
            "mktemp -d",
            "temporary-directory",
            ".cache/jax",
            lambda h: {DIRECTORY: f"{h}/tmp.0Az9bcdEFg"},
        ),
        row(
            "tempfile",
            "temporary-directory",
            ".cache/jax",
            lambda h: {DIRECTORY: f"{h}/tmpk3j_ab12/c"},
        ),
        row("the threshold", "threshold", "c", lambda h: {DIRECTORY: f"{h}/c", SECONDS: "1"}),
        row("chmod 777", "unsafe-permissions", "open", open_to_all),
    ],
)
def test_the_cure_of_a_setting(tmp_path: Path, set_up: Setting, trap: str, meant: str) -> None:
    env = set_up(tmp_path)
    (tmp_path / "c").mkdir()
    words = "--python /nonexistent"
    found = {f["trap"]: f for f in examine(tmp_path, env, words)["findings"]}
    told = examine(tmp_path, env, words, cure_of(found[trap]["fix"]))
    assert trap not in {f["trap"] for f in told["findings"]}
    assert told["cache_dir"] == str(tmp_path / meant)


@pytest.mark.jax
@acts_on("remove that line of the program, or export JAX_COMPILATION_CACHE_DIR=…")
def test_a_program_that_overrides_the_variable(tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text(
        "import jax\n"
        f"jax.config.update('jax_compilation_cache_dir', {str(tmp_path / 'own one')!r})\n"
        "print(jax.jit(lambda x: x + 1)(1.0))\n"
    )
    env = {DIRECTORY: str(tmp_path / "c")}
    words = f"-- {find_jax_pythons()[0]} {program}"
    found = {f["trap"]: f for f in examine(tmp_path, env, words)["findings"]}
    told = examine(tmp_path, env, words, cure_of(found["overridden"]["fix"]))
    assert "overridden" not in {f["trap"] for f in told["findings"]}
    assert told["cache_dir"] == str(tmp_path / "own one")
