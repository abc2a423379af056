"""What JAX promises of its cache holds over directories that jaxcache has changed."""

import json
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from conftest import RunCli, find_jax_pythons, has_modules
from once import fill_once
from plain_jax import run_plain

pytestmark = pytest.mark.jax

HERE = Path(__file__).parent
LONG_AGO = time.time() - 86_400


@dataclass
class Place:
    """A cache that JAX has filled, always at one path: some versions hash it into the key."""

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

    def compile(self, **more: str) -> Any:
        return self.jax("compile_program.py", **more)

    def cli(self, *args: str | Path, code: int = 0) -> None:
        done = self.run_cli(*args)
        assert done.returncode == code, done.stderr

    def entries(self) -> list[Path]:
        """Of either generation, oldest JAX's without a suffix."""
        others = ("CACHEDIR.TAG", ".lockfile")
        found = (p for p in self.path.iterdir() if p.is_file() and p.name not in others)
        return sorted(p for p in found if not p.name.endswith("-atime"))

    def age(self) -> None:
        for path in self.entries():
            os.utime(path, (LONG_AGO, LONG_AGO))

    def wipe(self) -> None:
        shutil.rmtree(self.path)


def leave(place: Place) -> None:
    """The cache as JAX made it: what the others are compared with."""


def seal(place: Place) -> None:
    place.cli("seal", "-C", place.path)


def prune(place: Place) -> None:
    count = str(len(place.entries()) - 2)
    limit = ("--max-entries", count, "--policy", "lru", "--grace", "0s", "--yes")
    place.cli("prune", "-C", place.path, *limit)


def import_(place: Place) -> None:
    bundle = place.path.with_name("b.jxb")
    place.cli("export", bundle, "-C", place.path)
    place.wipe()
    place.cli("import", bundle, "-C", place.path)


def pull(place: Place) -> None:
    other = place.path.with_name("other")
    place.cli("push", other, "-C", place.path)
    place.wipe()
    place.cli("pull", other, "-C", place.path)


def repair(place: Place) -> None:
    torn = place.entries()[1]
    os.truncate(torn, torn.stat().st_size // 2)
    place.age()
    code = 0 if torn.name.endswith("-cache") else 1  # legacy names remain a finding
    place.cli("verify", "-C", place.path, "--fix", "--atimes", code=code)
    assert not torn.exists()


CHANGES: list[Callable[[Place], None]] = [leave, seal, prune, import_, pull, repair]


@pytest.fixture(params=CHANGES, ids=lambda change: change.__name__)
def changed(
    request: pytest.FixtureRequest,
    each_jax_python: str,
    tmp_path_factory: pytest.TempPathFactory,
    run_cli: RunCli,
) -> tuple[Place, Any]:
    """A cache that JAX has filled, after a change, and what JAX said before it."""
    if not has_modules(each_jax_python, "filelock"):
        pytest.skip("JAX needs filelock for a cap")
    home = tmp_path_factory.getbasetemp() / f"cold-jax{find_jax_pythons().index(each_jax_python)}"
    place = Place(home / "cache", each_jax_python, run_cli)
    home.mkdir(exist_ok=True)

    def fill() -> None:
        (home / "cold.json").write_text(json.dumps(place.compile()))

    fill_once(home, fill)
    cold = json.loads((home / "cold.json").read_text())
    assert (cold["hits"], cold["warnings"]) == (0, [])
    request.param(place)
    return place, cold


def test_jax_keeps_its_promises_over_it(changed: tuple[Place, Any]) -> None:
    place, cold = changed
    there = len(place.entries())
    tried = place.jax("lru_program.py", place.path)
    assert tried == {"tried": 6, "broken": {}}
    # Every entry that is there is a hit, what is not there is compiled and written.
    raising = {"JAX_RAISE_PERSISTENT_CACHE_ERRORS": "true"}
    first = place.compile(**raising)
    assert (first["results"], first["warnings"]) == (cold["results"], [])
    assert first["hits"] == there
    assert len(place.entries()) == cold["requests"]
    if there < cold["requests"]:
        again = place.compile(**raising)
        assert (again["results"], again["hits"]) == (cold["results"], cold["requests"])
