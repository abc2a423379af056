"""What jaxcache is for, once each with real JAX: ``make test`` runs these, too.

Plain JAX is the judge: it counts its own hits in a process without jaxcache.
"""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import REPOSITORY

from tools.oracle.world import MODULES, SPELLINGS, Counts, World, fill

pytestmark = [pytest.mark.jax, pytest.mark.core]

HITS = Counts(MODULES, 0)
LONG_AGO = (1_700_000_000, 1_700_000_000)


@pytest.fixture
def world(tmp_path: Path, jax_python: str) -> World:
    """A program whose cache is the absolute directory ``jc``."""
    return World(tmp_path / "world", jax_python, SPELLINGS["absolute"])


@pytest.fixture
def run(world: World) -> Callable[..., str]:
    """Run a command to its expected exit code; what it printed."""

    def run_to_end(*words: str, code: int = 0) -> str:
        done = world.run_jaxcache(*words)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    return run_to_end


def edit(world: World) -> None:
    program = world.directory / "program.py"
    program.write_text(program.read_text().replace("numpy.sin", "numpy.cosh"))


def damage_one(world: World) -> Path:
    (path,) = (world.directory / "jc").glob("jit_first-*-cache")
    os.truncate(path, path.stat().st_size // 2)
    os.utime(path, LONG_AGO)
    return path


@pytest.mark.parametrize(
    "way", ["run", "warm --live", "compile RECIPE", "bundle", "pull", "ci restore"]
)
def test_plain_jax_hits_what_jaxcache_filled(world: World, way: str) -> None:
    fill(world, way)
    assert world.plain() == HITS


def test_warm_hits_what_plain_jax_filled_and_explain_names_an_edit(
    world: World, run: Callable[..., str]
) -> None:
    assert world.plain() == Counts(0, MODULES)
    run("warm", "--fail-on-miss", *world.choice, "program.py")
    edit(world)
    assert "jit_first" in run("explain", *world.choice, "program.py")
    run("warm", "--fail-on-miss", *world.choice, "program.py", code=1)


def test_a_damaged_entry_is_found_moved_away_and_compiled_again(
    world: World, run: Callable[..., str]
) -> None:
    fill(world, "warm")
    path = damage_one(world)
    assert "truncated" in run("verify", code=1)
    run("verify", "--fix", "--yes")
    assert not path.exists()
    assert world.plain() == Counts(MODULES - 1, 1)


def test_plain_jax_hits_what_was_sealed(world: World, run: Callable[..., str]) -> None:
    world.plain()
    for path in (world.directory / "jc").iterdir():
        os.utime(path, LONG_AGO)
    assert "sealed" in run("seal")
    assert world.plain() == HITS


def test_plain_jax_hits_what_prune_has_kept(world: World, run: Callable[..., str]) -> None:
    fill(world, "warm")
    run("prune", "--max-entries", "1", "--grace", "0s", "--yes")
    assert world.plain() == Counts(1, MODULES - 1)


def test_a_guard_refuses_to_compile_and_allows_hits(world: World, run: Callable[..., str]) -> None:
    guarded = ("run", "--guard", "compile:raise:0", "--", world.python, "program.py")
    assert "UnexpectedCompileError" in run(*guarded, code=1)
    fill(world, "warm")
    run(*guarded)


def test_a_program_that_watches_itself_counts_as_jax_does(world: World) -> None:
    (world.directory / "watched.py").write_text(
        "import jaxcache, program\n"
        "with jaxcache.watch() as report:\n"
        "    program.main()\n"
        "told = (report.hits, report.written)\n"
        "assert told == (program.COUNTS['cache_hits'], program.COUNTS['cache_misses']), told\n"
    )
    world.extra["PYTHONPATH"] = str(REPOSITORY)
    for counts in (Counts(0, MODULES), HITS):
        assert world.plain(world.python, "watched.py") == counts
