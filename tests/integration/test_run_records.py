"""The records of runs that real programs leave, and what of them leaves the cache."""

import json
import os
import subprocess
import sys
import zlib
from pathlib import Path

import pytest
from conftest import RunCli, clean_environment

from jaxcache.cache.bundle.format import encode_manifest, open_bundle, read_bundle
from jaxcache.core import runs
from jaxcache.core.runs import Record

pytestmark = pytest.mark.jax

PASSWORD = "correct-horse-battery"
HELPER = """
import jax, jax.numpy as jnp

@jax.jit
def loss(w, x):
    return jnp.mean(jnp.tanh(x @ w) ** 2)

def slope(w, x):
    return jax.grad(loss)(w, x)
"""
PROGRAM = f"""
import jax, jax.numpy as jnp, sys
from model import loss, slope
jax.config.update("jax_default_matmul_precision", "highest")
password = "{PASSWORD}"
w = jnp.ones((4, 4))
x = jnp.ones((int(sys.argv[-1]) if len(sys.argv) > 1 else 8, 4))
loss(w, x)
slope(w, x)
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    directory = tmp_path / "project"
    directory.mkdir()
    (directory / "model.py").write_text(HELPER)
    (directory / "train.py").write_text(PROGRAM)
    for path in directory.iterdir():  # clearly before the runs
        os.utime(path, (1e9, 1e9))
    return directory / "train.py"


def records(cache: Path) -> list[Record]:
    found = []
    for path in sorted((cache / runs.RUNS_DIR).glob("*")):
        if runs.is_record(path.name):
            record = runs.decode(path.read_bytes())
            assert record is not None
            found.append(record)
    return found


def warm(run_cli: RunCli, cache: Path, *words: str | Path, cwd: Path) -> None:
    done = run_cli("warm", "-C", cache, *words, cwd=cwd)
    assert done.returncode == 0, done.stderr


def test_a_run_records_where_and_how_each_key_was_made(
    run_cli: RunCli, cache: Path, program: Path
) -> None:
    warm(run_cli, cache, program.name, "8", cwd=program.parent)
    (record,) = records(cache)
    (run,) = record.runs
    assert (record.program, run.argv, record.travelled) == ("train.py", ("8",), False)
    own = [row for row in run.rows if row.function == "loss"]
    assert [row.kind for row in own] == ["primal", "linearize", "backward"]
    assert {(row.file, row.line) for row in own} == {("model.py", 4)}
    assert [(row.call_file, row.call_line) for row in own] == [
        ("train.py", 8),
        ("model.py", 9),
        ("model.py", 9),
    ]
    assert {row.definition for row in own} == {runs.digest_line(b"def loss(w, x):")}
    assert own[0].call == runs.digest_line(b"loss(w, x)")
    assert "eager" in {row.kind for row in run.rows}
    assert all(row.outcome == "written" and row.seconds > 0 for row in own)
    assert len({row.signature for row in own}) == 3
    assert run.settings == {"jax_default_matmul_precision": ["highest", "code"]}
    assert run.versions.keys() >= {"jax", "jaxlib"}
    assert {n: len(d) // 8 for n, d in run.sources.items()} == {
        "model.py": HELPER.count("\n"),
        "train.py": PROGRAM.count("\n"),
    }


def test_a_hit_is_recorded_too_and_an_equal_run_once(
    run_cli: RunCli, cache: Path, program: Path
) -> None:
    warm(run_cli, cache, program.name, cwd=program.parent)
    cold = records(cache)[0].runs[0]
    for _ in range(2):
        warm(run_cli, cache, program, cwd=cache.parent)
    (record,) = records(cache)
    (hot,) = record.runs
    assert hot.at > cold.at
    assert {row.outcome for row in hot.rows} == {"hit"}
    assert [r._replace(outcome="", reason="") for r in hot.rows] == [
        r._replace(outcome="", reason="", written=cold.at) for r in cold.rows
    ]
    assert hot.sources == cold.sources


def test_an_edit_changes_the_digest_of_its_line_alone(
    run_cli: RunCli, cache: Path, program: Path
) -> None:
    warm(run_cli, cache, program.name, cwd=program.parent)
    model = program.with_name("model.py")
    model.write_text(HELPER.replace("** 2", "** 3"))
    os.utime(model, (1e9, 1e9))
    warm(run_cli, cache, program.name, cwd=program.parent)
    new, old = (run.sources["model.py"] for run in records(cache)[0].runs)
    changed = [n // 8 + 1 for n in range(0, len(old), 8) if old[n : n + 8] != new[n : n + 8]]
    assert changed == [6]


def test_every_way_to_run_a_program_is_recorded(
    run_cli: RunCli, cache: Path, program: Path
) -> None:
    warm(run_cli, cache, "-m", "train", cwd=program.parent)
    command = ("run", "-C", cache, "--", sys.executable, program.name)
    assert run_cli(*command, cwd=program.parent).returncode == 0
    cells = [
        {"cell_type": "code", "source": text}
        for text in ("import jax", "jax.jit(lambda x: x * 3)(2.0)")
    ]
    notebook = {"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": cells}
    (program.parent / "train.ipynb").write_text(json.dumps(notebook))
    warm(run_cli, cache, "train.ipynb", cwd=program.parent)
    assert {r.program for r in records(cache)} == {"-m train", "train.py", "train.ipynb"}


def test_nothing_is_recorded_where_nothing_is_written(
    run_cli: RunCli, cache: Path, program: Path
) -> None:
    warm(run_cli, cache, program.name, cwd=program.parent)
    before = records(cache)
    warm(run_cli, cache, "--no-write", program.name, "9", cwd=program.parent)
    assert run_cli("explain", "-C", cache, program.name, "10", cwd=program.parent).returncode == 0
    assert records(cache) == before


def run_python(program: str, *words: str, cwd: Path, **variables: str) -> None:
    env = {**clean_environment(cwd), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0", **variables}
    command = [sys.executable, program, *words]
    subprocess.run(command, cwd=cwd, env=env, check=True, capture_output=True)


def test_watch_records_the_blocks_of_a_process_as_one_run(cache: Path, program: Path) -> None:
    text = (
        "import jaxcache, jax\n"
        "with jaxcache.watch():\n    jax.jit(lambda x: x * 3)(2.0)\n"
        "with jaxcache.watch():\n    jax.jit(lambda x: x * 4)(2.0)\n"
    )
    program.write_text(text)
    os.utime(program, (1e9, 1e9))
    for _ in range(2):
        run_python("train.py", "--n", "3", cwd=program.parent, JAX_COMPILATION_CACHE_DIR=str(cache))
    (record,) = records(cache)
    (run,) = record.runs
    assert (record.program, run.argv) == ("train.py", ("--n", "3"))
    assert [(row.call_line, row.outcome) for row in run.rows] == [(3, "hit"), (5, "hit")]


def test_the_live_layer_records_its_keys_and_keeps_what_is_known_of_them(
    run_cli: RunCli, cache: Path, program: Path
) -> None:
    live = {"JAX_COMPILATION_CACHE_DIR": str(cache), "JAXCACHE_LIVE": "1"}
    run_python("train.py", "8", cwd=program.parent, **live)
    (run,) = records(cache)[0].runs
    assert {row.outcome for row in run.rows} == {"written"}
    assert {row.kind for row in run.rows} == {""}
    warm(run_cli, cache, program.name, "8", cwd=program.parent)
    run_python("train.py", "8", cwd=program.parent, **live)
    assert "backward" in {row.kind for row in records(cache)[0].runs[0].rows}


def test_pytest_records_the_run_of_its_tests(cache: Path, tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        "import jax\ndef test_it():\n    jax.jit(lambda x: x * 3)(2.0)\n"
    )
    environment = {
        **clean_environment(tmp_path),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    }
    command = (sys.executable, "-m", "pytest", "-p", "jaxcache.inprocess.pytest_plugin")
    subprocess.run(
        [*command, f"--jaxcache={cache}", "-q", "--no-header"],
        cwd=tmp_path,
        env=environment,
        check=True,
        capture_output=True,
    )
    (record,) = records(cache)
    assert record.program == "-m pytest"
    assert [(r.call_file, r.call_line) for r in record.runs[0].rows] == [("test_it.py", 3)]


def test_nothing_private_leaves_the_cache(
    run_cli: RunCli, cache: Path, program: Path, tmp_path: Path
) -> None:
    words = (f"--name={PASSWORD}", PASSWORD, "--password", PASSWORD, "8")
    done = run_cli(
        *("warm", "-C", cache, "--portable", program.name, *words),
        cwd=program.parent,
        env={"API_PASSWORD": PASSWORD},
    )
    assert done.returncode == 0, done.stderr
    shared = tmp_path / "shared"
    assert run_cli("push", "-C", cache, shared).returncode == 0
    assert run_cli("export", "-C", cache, tmp_path / "all.jxb").returncode == 0
    other = tmp_path / "other"
    other.mkdir()
    assert run_cli("import", "-C", other, tmp_path / "all.jxb").returncode == 0
    copied = tmp_path / "copied"
    assert run_cli("copy", cache, copied).returncode == 0
    with open_bundle(str(tmp_path / "all.jxb")).file as file:
        manifest = encode_manifest(read_bundle(file, "all.jxb").manifest)
    assert b'"runs":{' in manifest
    assert PASSWORD.encode() not in manifest
    (own,) = records(cache)
    for place in (cache, shared, other, copied):
        for path in (place / runs.RUNS_DIR).iterdir():
            data = path.read_bytes()
            head, _, packed = data.partition(b"\n")
            text = head + zlib.decompress(packed) if runs.is_record(path.name) else data
            for private in (PASSWORD, str(tmp_path), "API_PASSWORD"):
                assert private.encode() not in text
    for place in (shared, other, copied):
        assert not list((place / runs.RUNS_DIR).glob("salt*"))
        (record,) = records(place)
        assert record.travelled
        assert record.runs[0].argv == ("--name=#", "#", "--password", "***", "8")
        assert record.runs[0].rows == own.runs[0].rows


def test_records_are_the_caches_own_for_every_command(
    run_cli: RunCli, cache: Path, program: Path
) -> None:
    warm(run_cli, cache, program.name, cwd=program.parent)
    before = records(cache)
    verified = run_cli("verify", "-C", cache, "--fix")
    assert (verified.returncode, "runs" in verified.stdout) == (0, False)
    assert (
        run_cli("prune", "-C", cache, "--max-size", "0", "--grace", "0s", "--yes").returncode == 0
    )
    assert records(cache) == before
