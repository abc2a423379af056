"""What ``verify`` prints as a repair repairs what it found."""

import os
import time
from pathlib import Path

import pytest
from acting import act, fragile_python, refused


@pytest.mark.parametrize(("age_seconds", "options"), [(3600, ()), (0, ("--fix",))])
def test_the_repair_of_damage(
    run_cli, local: Path, tmp_path: Path, age_seconds: float, options: tuple[str, ...]
) -> None:
    """What is young is left until a person says otherwise."""
    path = min(local.glob("*-cache"))
    path.write_bytes(path.read_bytes()[:-9])
    os.utime(path, (time.time() - age_seconds,) * 2)
    told = refused(run_cli, 1, "verify", "-C", local, *options)
    young = "1 file younger than 60 s, left because JAX may still be writing" in told
    assert (path.exists(), young) == (True, bool(options))
    act(told, tmp_path)
    assert not path.exists()


@pytest.mark.jax
def test_the_repair_of_what_only_loading_finds(
    run_cli, each_jax_python: str, warm, script, cache: Path, tmp_path: Path
) -> None:
    warm(script("import jax, numpy\njax.jit(lambda x: x * 3)(numpy.ones(3))\n"))
    path = next(cache.glob("jit__lambda-*-cache"))
    fragile = fragile_python(tmp_path, each_jax_python, "jit__lambda")
    words = ("verify", "-C", cache, "--level", "load", "--python", fragile)
    act(refused(run_cli, 1, *words), tmp_path)
    assert not path.exists()
    assert run_cli(*words).returncode == 0
