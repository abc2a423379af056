"""What JAX promises of its cache holds over directories that jaxcache has changed."""

import json
import os
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
from conftest import RunCli, has_modules
from plain_jax import run_plain

pytestmark = pytest.mark.jax

HERE = Path(__file__).parent
LONG_AGO = time.time() - 86_400


def test_jax_keeps_its_promises_over_it(
    each_jax_python: str, tmp_path: Path, run_cli: RunCli
) -> None:
    if not has_modules(each_jax_python, "filelock"):
        pytest.skip("JAX needs filelock for a cap")
    cache, other = tmp_path / "cache", tmp_path / "other"

    def jax(program: str, *args: Path, **more: str) -> Any:
        env = {k: v for k, v in os.environ.items() if not k.startswith(("JAX", "XLA", "PYTHON"))}
        env |= {
            "JAX_PLATFORMS": "cpu",
            "JAX_COMPILATION_CACHE_DIR": str(cache),
            "JAX_COMPILATION_CACHE_MAX_SIZE": str(10**9),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        }
        done = run_plain([each_jax_python, HERE / program, *args], env=env | more)
        return json.loads(done.stdout.splitlines()[-1])

    def cli(*words: str | Path, code: int = 0) -> None:
        done = run_cli(*words, "-C", cache)
        assert done.returncode == code, done.stderr

    def entries() -> list[Path]:
        """Of either generation, oldest JAX's without a suffix."""
        others = ("CACHEDIR.TAG", ".lockfile")
        found = (p for p in cache.iterdir() if p.is_file() and p.name not in others)
        return sorted(p for p in found if not p.name.endswith("-atime"))

    cold = jax("compile_program.py")
    assert (cold["hits"], cold["warnings"]) == (0, [])
    # All entries are sealed, and move twice.
    cli("seal")
    for save, load in ((("export", f"{other}.jxb"), "import"), (("push", other), "pull")):
        cli(*save)
        shutil.rmtree(cache)
        cli(load, save[1])
    assert len(entries()) == cold["requests"]
    # Two are pruned, and one is damaged and repaired.
    count = str(cold["requests"] - 2)
    cli("prune", "--max-entries", count, "--policy", "lru", "--grace", "0s", "--yes")
    torn = entries()[1]
    os.truncate(torn, torn.stat().st_size // 2)
    for path in entries():
        os.utime(path, (LONG_AGO, LONG_AGO))
    code = 0 if torn.name.endswith("-cache") else 1  # legacy names remain a finding
    cli("verify", "--fix", "--atimes", code=code)
    assert not torn.exists()
    assert len(entries()) == cold["requests"] - 3
    assert jax("lru_program.py", cache) == {"tried": 6, "broken": {}}
    # Every entry that is there is a hit, what is not there is compiled and written.
    again = jax("compile_program.py", JAX_RAISE_PERSISTENT_CACHE_ERRORS="true")
    assert again == cold | {"hits": cold["requests"] - 3}
    assert len(entries()) == cold["requests"]
