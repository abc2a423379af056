"""What JAX promises of its cache holds over directories that jaxcache has changed."""

import json
import os
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from conftest import RunCli, has_modules
from plain_jax import run_plain

pytestmark = pytest.mark.jax

HERE = Path(__file__).parent
LONG_AGO = time.time() - 86_400


@dataclass
class Place:
    """A cache that JAX has filled."""

    path: Path
    python: str
    run_cli: RunCli

    def jax(self, program: str, *args: str | Path, **more: str) -> Any:
        env = {k: v for k, v in os.environ.items() if not k.startswith(("JAX", "XLA", "PYTHON"))}
        env |= {
            "JAX_PLATFORMS": "cpu",
            "JAX_COMPILATION_CACHE_DIR": str(self.path),
            "JAX_COMPILATION_CACHE_MAX_SIZE": str(10**9),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        }
        done = run_plain([self.python, HERE / program, *args], env=env | more)
        return json.loads(done.stdout.splitlines()[-1])

    def cli(self, *args: str | Path, code: int = 0) -> None:
        done = self.run_cli(*args)
        assert done.returncode == code, done.stderr

    def entries(self) -> list[Path]:
        """Of either generation, oldest JAX's without a suffix."""
        others = ("CACHEDIR.TAG", ".lockfile")
        found = (p for p in self.path.iterdir() if p.is_file() and p.name not in others)
        return sorted(p for p in found if not p.name.endswith("-atime"))


def seal_and_move(place: Place) -> None:
    place.cli("seal", "-C", place.path)
    other = place.path.with_name("other")
    for save, load in ((("export", f"{other}.jxb"), "import"), (("push", other), "pull")):
        place.cli(*save, "-C", place.path)
        shutil.rmtree(place.path)
        place.cli(load, save[1], "-C", place.path)


def prune_and_repair(place: Place) -> None:
    count = str(len(place.entries()) - 2)
    limit = ("--max-entries", count, "--policy", "lru", "--grace", "0s", "--yes")
    place.cli("prune", "-C", place.path, *limit)
    torn = place.entries()[1]
    os.truncate(torn, torn.stat().st_size // 2)
    for path in place.entries():
        os.utime(path, (LONG_AGO, LONG_AGO))
    code = 0 if torn.name.endswith("-cache") else 1  # legacy names remain a finding
    place.cli("verify", "-C", place.path, "--fix", "--atimes", code=code)
    assert not torn.exists()


def test_jax_keeps_its_promises_over_it(
    each_jax_python: str, tmp_path: Path, run_cli: RunCli
) -> None:
    if not has_modules(each_jax_python, "filelock"):
        pytest.skip("JAX needs filelock for a cap")
    place = Place(tmp_path / "cache", each_jax_python, run_cli)
    cold = place.jax("compile_program.py")
    assert (cold["hits"], cold["warnings"]) == (0, [])
    seal_and_move(place)
    assert len(place.entries()) == cold["requests"]
    prune_and_repair(place)
    there = cold["requests"] - 3
    assert len(place.entries()) == there
    assert place.jax("lru_program.py", place.path) == {"tried": 6, "broken": {}}
    # Every entry that is there is a hit, what is not there is compiled and written.
    again = place.jax("compile_program.py", JAX_RAISE_PERSISTENT_CACHE_ERRORS="true")
    assert again == cold | {"hits": there}
    assert len(place.entries()) == cold["requests"]
