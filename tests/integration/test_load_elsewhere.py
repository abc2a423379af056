"""``verify --level load`` judges only what can be judged on this machine by this jax."""

import json
import os
import shutil
import socket
import subprocess
import time
from pathlib import Path

import pytest
from conftest import RunCli, clean_environment, jax_version

pytestmark = pytest.mark.jax
PROGRAM = Path(__file__).with_name("two_processes.py")
LONG_AGO = time.time() - 3600


def load(run_cli: RunCli, cache: Path, python: str, *args: str) -> dict[str, str]:
    """The kind of each finding by file; the exit code must be 0."""
    for path in cache.iterdir():
        os.utime(path, (LONG_AGO, LONG_AGO))
    done = run_cli("verify", "-C", cache, "--level", "load", "--python", python, "--json", *args)
    assert done.returncode == 0, (done.stdout, done.stderr)
    problems = json.loads(done.stdout)["problems"]
    return {p["file"]: p["kind"] for p in problems if p["kind"] not in ("unsealed", "legacy-name")}


def test_a_program_of_two_processes_is_sound_and_stays(
    run_cli: RunCli, jax_python: str, tmp_path: Path
) -> None:
    if jax_version(jax_python) < (0, 5):
        pytest.skip("no collectives between processes on a CPU")
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    cache = tmp_path / "cache"
    env = clean_environment(tmp_path) | {"JAX_PLATFORMS": "cpu", "PYTHONWARNINGS": "default"}
    del env["PYTHONPATH"]
    running = [
        subprocess.Popen(
            [jax_python, PROGRAM, str(port), str(number), cache],
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for number in range(2)
    ]
    for process in running:
        said, _ = process.communicate(timeout=200)
        assert process.returncode == 0, said
    names = {p.name for p in cache.glob("*-cache")}
    (shared,) = cache.glob("jit_total-*-cache")
    assert list(cache.glob("jit_single-*-cache"))
    assert load(run_cli, cache, jax_python, "--fix") == {shared.name: "not-loadable-here"}
    assert {p.name for p in cache.glob("*-cache")} == names


@pytest.mark.parametrize("version", ["0.4.38", "0.8.3"])
def test_what_another_jaxlib_wrote_is_not_called_damaged(
    run_cli: RunCli, jax_python: str, corpus: Path, tmp_path: Path, version: str
) -> None:
    if jax_version(jax_python) == tuple(map(int, version.split("."))):
        pytest.skip("it is its own")
    cache = tmp_path / "cache"
    shutil.copytree(corpus / f"{version}-cpu-zstd", cache, copy_function=shutil.copyfile)
    names = {p.name for p in cache.glob("*-cache")}
    assert set(load(run_cli, cache, jax_python, "--fix").values()) <= {"not-loadable-here"}
    assert {p.name for p in cache.glob("*-cache")} == names


def test_what_is_for_another_platform_stays(
    run_cli: RunCli, jax_python: str, corpus: Path, tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    source = corpus / "0.8.3-cuda13-h200-zstd"
    shutil.copytree(source, cache, copy_function=shutil.copyfile)
    found = load(run_cli, cache, jax_python, "--fix")
    assert set(found.values()) == {"not-loadable-here"}
    assert set(found) == {p.name for p in cache.glob("*-cache")}
