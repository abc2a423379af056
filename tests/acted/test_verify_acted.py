"""What ``verify`` prints as a repair repairs what it found."""

import os
import shutil
import time
from pathlib import Path

import pytest
from acting import act, fragile_python


@pytest.fixture
def filled(corpus: Path, tmp_path: Path) -> Path:
    target = tmp_path / "cache"
    shutil.copytree(corpus / "0.12.0.1-cpu-zstd", target, copy_function=shutil.copy)
    return target


def damaged(cache: Path, *, age: float) -> Path:
    path = sorted(cache.glob("*-cache"))[0]
    path.write_bytes(path.read_bytes()[:-9])
    os.utime(path, (time.time() - age,) * 2)
    return path


def test_the_repair_of_old_damage(run_cli, filled: Path, tmp_path: Path) -> None:
    path = damaged(filled, age=3600)
    told = run_cli("verify", "-C", filled)
    assert told.returncode == 1
    assert act(told.stderr, tmp_path).returncode == 0
    assert not path.exists()
    assert run_cli("verify", "-C", filled).returncode == 0


def test_the_repair_of_young_damage(run_cli, filled: Path, tmp_path: Path) -> None:
    path = damaged(filled, age=0)
    told = run_cli("verify", "-C", filled, "--fix")
    assert told.returncode == 1 and path.exists()
    assert "1 file younger than 60 s, left because JAX may still be writing" in told.stderr
    assert act(told.stderr, tmp_path).returncode == 0
    assert not path.exists()


@pytest.mark.jax
def test_the_repair_of_what_only_loading_finds(
    run_cli, each_jax_python: str, warm, script, cache: Path, tmp_path: Path
) -> None:
    warm(script("import jax, numpy\njax.jit(lambda x: x * 3)(numpy.ones(3))\n"))
    path = next(cache.glob("jit__lambda-*-cache"))
    fragile = fragile_python(tmp_path, each_jax_python, "jit__lambda")
    words = ("verify", "-C", cache, "--level", "load", "--python", fragile)
    told = run_cli(*words)
    assert told.returncode == 1, told
    repaired = act(told.stderr, tmp_path)
    assert repaired.returncode == 0, (told.stderr, repaired)
    assert not path.exists()
    assert run_cli(*words).returncode == 0
