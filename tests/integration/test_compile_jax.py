"""Record a run, compile its recipe elsewhere, and have the run hit everything there."""

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import REPOSITORY, RunCli, clean_environment, jax_version
from warm_checks import STEP

from jaxcache.cache.recipe import encode_recipe, open_recipe

pytestmark = pytest.mark.jax

WORKLOAD = Path(__file__).with_name("recipe_workload.py")
MODES = {
    "devices": ("--devices", "8"),
    "together": ("--processes", "2", "--devices", "2"),
}

ModuleRecorded = Callable[..., Path]


def entries(directory: Path) -> set[str]:
    return {p.name for p in directory.iterdir() if p.name.endswith("-cache")}


@pytest.fixture
def recorded(run_cli: RunCli, each_jax_python: str, tmp_path: Path) -> ModuleRecorded:
    """Run a program with its cache in ``first`` and return its recipe."""
    if jax_version(each_jax_python) < (0, 5):
        pytest.skip("recipes are compiled by JAX 0.5 and later")

    def record(path: Path, *args: str, options: tuple[str, ...] = (), code: int = 0) -> Path:
        recipe = tmp_path / f"{len(list(tmp_path.glob('*.recipe')))}.recipe"
        done = run_cli(
            "warm",
            "-C",
            tmp_path / "first",
            "--record",
            recipe,
            "--python",
            each_jax_python,
            *options,
            path,
            *args,
        )
        assert done.returncode == code, done.stderr
        return recipe

    return record


@pytest.fixture
def compiled(run_cli: RunCli, each_jax_python: str) -> Callable[..., dict[str, Any]]:
    """Run ``compile --json`` and return its document; the exit code is checked."""

    def run(recipe: Path, cache: Path, *options: str, code: int = 0, **kw: Any) -> dict[str, Any]:
        done = run_cli(
            "compile", recipe, "-C", cache, "--json", "--python", each_jax_python, *options, **kw
        )
        assert done.returncode == code, done.stderr + done.stdout
        document: dict[str, Any] = json.loads(done.stdout)
        return document

    return run


@pytest.mark.parametrize("mode", MODES)
def test_the_program_hits_everything_that_its_recipe_compiled(
    run_cli: RunCli,
    recorded: ModuleRecorded,
    compiled: Any,
    each_jax_python: str,
    tmp_path: Path,
    mode: str,
) -> None:
    recipe = recorded(WORKLOAD, mode, options=MODES[mode])
    first = tmp_path / "first"
    written = entries(first)
    shutil.rmtree(first)
    document = compiled(recipe, first, "--jobs", "2")
    assert {m["outcome"] for m in document["modules"]} == {"written"}
    # Into the directory where it was recorded: every key is the recorded one.
    assert all(m["key"] == m["recorded_key"] for m in document["modules"])
    # The processes of a program beyond the first write nothing themselves.
    assert entries(first) == written or (mode == "together" and entries(first) > written)
    other = tmp_path / "other"
    assert compiled(recipe, other)["summary"]["written"] == document["summary"]["written"]
    done = run_cli(
        "warm",
        "-C",
        other,
        "--fail-on-miss",
        "--python",
        each_jax_python,
        *MODES[mode],
        WORKLOAD,
        mode,
    )
    assert done.returncode == 0, done.stderr
    assert " written " not in done.stderr


def test_check_says_what_would_hit_and_why_not(
    recorded: ModuleRecorded, compiled: Any, each_jax_python: str, tmp_path: Path, script: Any
) -> None:
    recipe = recorded(script(STEP))
    cache = tmp_path / "first"
    document = compiled(recipe, cache, "--check")
    assert document["summary"]["already_cached"] == document["summary"]["requested"]
    (gone,) = cache.glob("jit_step-*-cache")
    gone.unlink()
    document = compiled(recipe, cache, "--check", code=1)
    (missing,) = [m for m in document["modules"] if m["outcome"] == "missing"]
    assert (missing["module"], missing["differs"]) == ("jit_step", [])
    assert not gone.exists()
    flags = {"XLA_FLAGS": "--xla_cpu_enable_fast_math=true"}  # ours are not the recipe's
    assert compiled(recipe, cache, "--check", code=1, env=flags)["summary"]["missing"] == 1


@pytest.mark.slow
def test_four_shards_merge_to_what_one_compile_makes(
    run_cli: RunCli, recorded: ModuleRecorded, compiled: Any, tmp_path: Path
) -> None:
    recipe = recorded(WORKLOAD, "single")
    place = tmp_path / "place"
    whole = compiled(recipe, tmp_path / "whole", "--used-at", str(place))
    shards = [
        compiled(
            recipe, tmp_path / f"part{i}", "--shard", f"{i}/4", "--used-at", str(place), "--jobs=1"
        )
        for i in range(1, 5)
    ]
    parts = [{m["key"] for m in s["modules"]} for s in shards]
    assert sum(map(len, parts)) == len(set().union(*parts)) == whole["summary"]["requested"]
    assert all(parts)
    for i in range(1, 5):
        done = run_cli("copy", tmp_path / f"part{i}", place)
        assert done.returncode == 0, done.stderr
    assert entries(place) == entries(tmp_path / "whole")
    run = compiled(recipe, place)["summary"]
    assert run["already_cached"] == run["requested"]


DEADLY = Path(__file__).with_name("deadly")


def deadly(**env: str) -> dict[str, str]:
    """An environment in which workers die."""
    return {"PYTHONPATH": f"{DEADLY}{os.pathsep}{REPOSITORY}", **env}


def test_a_worker_that_is_killed_is_replaced(
    recorded: ModuleRecorded, compiled: Any, tmp_path: Path, script: Any
) -> None:
    recipe = recorded(script(STEP))
    once = tmp_path / "once"
    env = deadly(DEADLY="jit_step", DEADLY_ONCE=str(once))
    document = compiled(recipe, tmp_path / "other", "--jobs=1", env=env)
    assert once.exists()
    assert {m["outcome"] for m in document["modules"]} == {"written"}
    assert [m["module"] for m in document["modules"] if m["attempts"] == 2] == ["jit_step"]


def test_a_module_that_kills_every_worker_is_named_and_the_rest_go_on(
    run_cli: RunCli, recorded: ModuleRecorded, compiled: Any, tmp_path: Path, script: Any
) -> None:
    recipe = recorded(script(STEP))
    cache = tmp_path / "other"
    document = compiled(recipe, cache, code=3, env=deadly(DEADLY="jit_step"))
    (failed,) = [m for m in document["modules"] if m["outcome"] == "failed"]
    assert (failed["module"], failed["reason"], failed["attempts"]) == (
        "jit_step",
        "worker-died",
        2,
    )
    assert "SIGKILL" in failed["detail"]
    summary = document["summary"]
    assert (summary["failed"], summary["written"]) == (1, summary["requested"] - 1)
    assert run_cli("verify", "-C", cache).returncode == 0
    assert compiled(recipe, cache)["summary"]["written"] == 1


def test_a_parent_that_is_killed_leaves_nothing_torn_and_the_next_one_completes(
    run_cli: RunCli, recorded: ModuleRecorded, compiled: Any, each_jax_python: str, tmp_path: Path
) -> None:
    recipe = recorded(WORKLOAD, "single")
    cache = tmp_path / "other"
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    parent = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "jaxcache",
            "compile",
            recipe,
            "-C",
            cache,
            "--jobs=2",
            "--python",
            each_jax_python,
        ],
        env=clean_environment(tmp_path) | {"TMPDIR": str(scratch)},
        stdout=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 300
    while not (cache.is_dir() and entries(cache)) and time.monotonic() < deadline:
        time.sleep(0.005)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    left = entries(cache)
    assert left
    wait_until_empty(scratch)
    summary = compiled(recipe, cache)["summary"]
    assert summary["written"] + summary["already_cached"] == summary["requested"]
    assert summary["already_cached"] == len(left)
    assert run_cli("verify", "-C", cache, "--level", "full").returncode == 0
    assert len(entries(cache)) == summary["requested"]


def wait_until_empty(directory: Path) -> None:
    """Workers whose parent is gone notice, and clean up behind themselves."""
    deadline = time.monotonic() + 300
    while list(directory.iterdir()) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not list(directory.rglob("*"))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_workers_that_have_not_begun_clean_up_too(
    recorded: ModuleRecorded, each_jax_python: str, tmp_path: Path, script: Any, number: int
) -> None:
    recipe = recorded(script(STEP))
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    parent = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "jaxcache",
            "compile",
            recipe,
            "-C",
            tmp_path / "other",
            "--jobs=2",
            "--python",
            each_jax_python,
        ],
        env=clean_environment(tmp_path) | {"TMPDIR": str(scratch)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 300
    while len(list(scratch.glob("*/*"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.005)
    time.sleep(0.2)  # their processes exist, and are importing jax
    parent.send_signal(number)
    parent.wait()
    wait_until_empty(scratch)


def test_what_cannot_be_compiled_again_is_named(
    recorded: ModuleRecorded,
    compiled: Any,
    run_cli: RunCli,
    each_jax_python: str,
    tmp_path: Path,
    script: Any,
) -> None:
    path = script(
        """
        import jax, jax.numpy as jnp, numpy as np
        @jax.jit
        def talk(x):
            jax.debug.print("x is {}", x)
            return x + 1
        @jax.jit
        def plain(x):
            return x * 2
        print(talk(np.float32(1)), plain(np.float32(2)))
        """
    )
    cache = tmp_path / "other"
    document = compiled(recorded(path), cache)
    found = {m["module"]: m["outcome"] for m in document["modules"]}
    assert found["jit_plain"] == "written"
    (talk,) = [m for m in document["modules"] if m["module"] == "jit_talk"]
    assert talk["outcome"] == "written" or (
        (talk["outcome"], talk["reason"]) == ("refused", "host-callbacks")
    )
    # Whatever was compiled: the program runs with it.
    done = run_cli("warm", "-C", cache, "--python", each_jax_python, path)
    assert done.returncode == 0, done.stderr
    assert "x is 1.0" in done.stdout


def test_other_numbers_of_devices(
    recorded: ModuleRecorded, run_cli: RunCli, each_jax_python: str, tmp_path: Path
) -> None:
    recipe = recorded(WORKLOAD, "pmapped", options=("--devices", "4"))
    done = run_cli(
        "compile", recipe, "-C", tmp_path / "x", "--devices", "2", "--python", each_jax_python
    )
    assert (done.returncode, "--devices 4" in done.stderr) == (2, True)


def test_a_recipe_for_what_is_not_here(
    recorded: ModuleRecorded, run_cli: RunCli, each_jax_python: str, tmp_path: Path, script: Any
) -> None:
    recipe = recorded(script(STEP))
    with open_recipe(str(recipe)) as file:
        moved = replace(
            file.recipe,
            environments=tuple(replace(e, platform="tpu") for e in file.recipe.environments),
        )
        recipe.write_bytes(b"".join(encode_recipe(moved, file.blob)))
    args = ("-C", tmp_path / "x", "--python", each_jax_python)
    done = run_cli("compile", recipe, "--json", *args)
    assert (done.returncode, json.loads(done.stderr)["error"]["code"]) == (1, "no-platform")
    done = run_cli("compile", recipe, "--json", "-C", tmp_path / "x", "--python", tmp_path)
    assert done.returncode == 13


def test_an_option_that_neither_we_nor_this_jaxlib_know_is_refused(
    recorded: ModuleRecorded, compiled: Any, tmp_path: Path, script: Any
) -> None:
    recipe = recorded(script(STEP))
    unknown = b"\xf8\xf0\x04\x01"  # field 9999 is 1
    build = b"\x1a" + bytes([len(unknown)]) + unknown
    more = b"\x1a" + bytes([len(build)]) + build
    with open_recipe(str(recipe)) as file:
        blobs = {d: file.blob(d) for r in file.recipe.requests for d in (r.options, r.bytecode)}
        requests = []
        for request in file.recipe.requests:
            data = blobs[request.options] + more
            blobs[digest := hashlib.sha256(data).hexdigest()] = data
            requests.append(replace(request, options=digest))
        changed = replace(file.recipe, requests=tuple(requests))
        recipe.write_bytes(b"".join(encode_recipe(changed, blobs.__getitem__)))
    document = compiled(recipe, tmp_path / "other", code=3)
    assert {m["reason"] for m in document["modules"]} == {"refused-here"}
    assert all("XLA option 9999" in m["detail"] for m in document["modules"])


def test_a_recipe_of_another_jax_says_so(
    recorded: ModuleRecorded, compiled: Any, tmp_path: Path, script: Any
) -> None:
    recipe = recorded(script(STEP))
    with open_recipe(str(recipe)) as file:
        components = {"jax_lib version": "0" * 64}
        moved = replace(
            file.recipe,
            environments=tuple(
                replace(e, jaxlib_version="0.0.1", jaxlib_digest=None)
                for e in file.recipe.environments
            ),
            requests=tuple(
                replace(r, key=f"{r.module}-{'0' * 64}", components={**r.components, **components})
                for r in file.recipe.requests
            ),
        )
        recipe.write_bytes(b"".join(encode_recipe(moved, file.blob)))
    document = compiled(recipe, tmp_path / "first", "--check")
    assert {tuple(m["differs"]) for m in document["modules"]} == {("jax_lib version",)}
    assert any("recorded with jaxlib 0.0.1" in note for note in document["notes"])


def test_bytecode_of_a_stranger_cannot_take_the_parent_down(
    recorded: ModuleRecorded, compiled: Any, tmp_path: Path, script: Any
) -> None:
    """Garbage, and text in which XLA would follow a pointer: each fails by its name."""
    recipe = recorded(script(STEP))
    partitioned = b"""
        module @jit_evil { func.func public @main(%a: tensor<4xf32>) -> tensor<4xf32> {
        %0 = stablehlo.custom_call @CustomSPMDPartitioning(%a) {backend_config = "139637976726528"}
          : (tensor<4xf32>) -> tensor<4xf32>
        return %0 : tensor<4xf32> } }"""
    for data in (b"ML\xefR" + bytes(100), partitioned):
        with open_recipe(str(recipe)) as file:
            blobs = {r.options: file.blob(r.options) for r in file.recipe.requests}
            name = hashlib.sha256(data).hexdigest()
            blobs[name] = data
            request = replace(file.recipe.requests[0], bytecode=name)
            hostile = replace(file.recipe, requests=(request,))
        path = tmp_path / "hostile.recipe"
        path.write_bytes(b"".join(encode_recipe(hostile, blobs.__getitem__)))
        document = compiled(path, tmp_path / "other", code=3)
        assert document["summary"]["failed"] == 1
    assert not entries(tmp_path / "other")
