"""What ``doctor`` prints as a cure makes plain JAX write and hit."""

import json
import subprocess
from pathlib import Path

import pytest
from acting import plain_hits

PROGRAM = """
import jax, numpy
for n in range(2):
    jax.jit(lambda x: x * n)(numpy.ones(3)).block_until_ready()
"""
HASH = "ab" * 32


def put_directory(cache: Path) -> None:
    (cache / "build-cache").mkdir()


def put_broken_link(cache: Path) -> None:
    (cache / "old-cache").symlink_to(cache / "nowhere")


def put_attributes(cache: Path) -> None:
    (cache / f"._jit_f-{HASH}-cache").write_bytes(b"\0\5\x16\7")


@pytest.mark.jax
def test_names_like_those_of_entries(run_cli, each_jax_python: str, tmp_path: Path) -> None:
    kinds = (put_directory, put_attributes, put_broken_link)
    settings = {
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_COMPILATION_CACHE_MAX_SIZE": "1000000000",
        "PYTHONWARNINGS": "ignore",
    }
    for put in kinds:
        cache = tmp_path / put.__name__
        cache.mkdir()
        put(cache)
        env = {**settings, "JAX_COMPILATION_CACHE_DIR": str(cache)}
        first, second = (plain_hits(each_jax_python, PROGRAM, tmp_path, env) for _ in range(2))
        done = run_cli("doctor", "--json", "--python", each_jax_python, env=env)
        findings = json.loads(done.stdout)["findings"]
        traps = {f["trap"]: f for f in findings if f["trap"] == "foreign-name"}
        assert first == 0
        assert (done.returncode == 0) is (second == 2), (put.__name__, second, done.stdout)
        assert traps
    # The last one stops the writes of every JAX.
    subprocess.run(traps["foreign-name"]["fix"], shell=True, check=True, cwd=tmp_path)
    plain_hits(each_jax_python, PROGRAM, tmp_path, env)
    assert plain_hits(each_jax_python, PROGRAM, tmp_path, env) == 2
    assert run_cli("doctor", "--python", each_jax_python, env=env).returncode == 0
