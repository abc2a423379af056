"""What one machine pushed, another pulls, and its JAX hits all of it."""

import shutil
from pathlib import Path

import pytest
from conftest import RunCli, jax_version
from test_bundle_hits import run_jax


@pytest.mark.jax
def entries(cache: Path) -> set[str]:
    """The names of entries; JAX 0.4.30 writes none with ``-cache`` at its end."""
    return {p.name for p in cache.glob("jit_*") if not p.name.endswith("-atime")}


def test_pushed_here_pulled_there(
    run_cli: RunCli, each_jax_python: str, bucket: str, tmp_path: Path
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    cold = run_jax(each_jax_python, first, tmp_path)
    names = entries(first)
    compiles = len(names)
    assert compiles >= 2
    assert cold["cache_hits"] == 0
    assert run_cli("push", bucket, "-C", first).returncode == 0
    shutil.rmtree(first)
    # JAX 0.4.36 to 0.10 hash the directory into the key: there the place must be the same.
    for place in (second, first):
        assert run_cli("pull", bucket, "-C", place).returncode == 0
        assert entries(place) == names
    warm = run_jax(each_jax_python, first, tmp_path)
    assert (warm["cache_hits"], warm["cache_misses"]) == (compiles, 0)
    assert warm["result"] == cold["result"]
    moved = run_jax(each_jax_python, second, tmp_path)
    bound = (0, 4, 36) <= jax_version(each_jax_python) < (0, 11)
    assert (moved["cache_hits"], moved["cache_misses"]) == (
        (0, compiles) if bound else (compiles, 0)
    )
