"""What jaxcache is for, once each with real JAX: ``make test`` runs these, too.

Plain JAX is the judge: it counts its own hits in a process without jaxcache.
"""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from command_line import WorldInProcess
from conftest import PYTHONPATH, MakeOnce

from tools.oracle.world import MODULES, SPELLINGS, Counts, World, fill

pytestmark = [pytest.mark.jax, pytest.mark.core]

HITS = Counts(MODULES, 0)
LONG_AGO = (1_700_000_000, 1_700_000_000)
Run = Callable[..., str]


@pytest.fixture
def world(tmp_path: Path, jax_python: str) -> World:
    """A program whose cache is the absolute directory ``jc``, under keys without its path."""
    world = WorldInProcess(tmp_path / "world", jax_python, SPELLINGS["absolute"])
    world.extra["JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES"] = "none"
    return world


@pytest.fixture
def full(world: World, make_once: MakeOnce) -> World:
    """A world that has the entries of its program, which ``run`` wrote once for all tests."""
    cache = world.directory / "jc"

    def run(directory: Path) -> None:
        fill(world, "run")
        cache.rename(directory / "jc")

    shutil.copytree(make_once("smoke", run) / "jc", cache)
    for path in cache.iterdir():
        os.utime(path, LONG_AGO)
    return world


@pytest.fixture
def run(world: World) -> Run:
    """Run a command to its expected exit code; what it printed."""

    def run_to_end(*words: str, code: int = 0) -> str:
        done = world.run_jaxcache(*words)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    return run_to_end


@pytest.mark.parametrize("way", ["warm --live", "compile RECIPE"])
def test_plain_jax_hits_what_jaxcache_filled(world: World, way: str) -> None:
    fill(world, way)
    assert world.plain() == HITS


def test_plain_jax_hits_what_was_sealed_and_moved(full: World, run: Run) -> None:
    """In a bundle, by way of a directory, and from a job to the next."""
    assert "sealed" in run("seal")
    for save, load in (
        (("export", "../x.jxb"), ("import", "../x.jxb")),
        (("push", "../there"), ("pull", "../there")),
        (("ci", "save", "../saved"), ("ci", "restore", "../saved", *full.choice)),
    ):
        run(*save)
        shutil.rmtree(full.directory / "jc")
        run(*load)
    assert full.plain() == HITS


def test_warm_hits_what_plain_jax_filled_and_explain_names_an_edit(world: World, run: Run) -> None:
    assert world.plain() == Counts(0, MODULES)
    run("warm", "--fail-on-miss", *world.choice, "program.py")
    program = world.directory / "program.py"
    program.write_text(program.read_text().replace("numpy.sin", "numpy.cosh"))
    assert "jit_first" in run("explain", *world.choice, "program.py")


def test_plain_jax_compiles_what_verify_and_prune_have_removed(full: World, run: Run) -> None:
    (path,) = (full.directory / "jc").glob("jit_first-*-cache")
    os.truncate(path, path.stat().st_size // 2)
    os.utime(path, LONG_AGO)
    assert "truncated" in run("verify", code=1)
    run("verify", "--fix", "--yes")
    assert not path.exists()
    run("prune", "--max-entries", "1", "--yes")
    assert full.plain() == Counts(1, MODULES - 1)


def test_a_guard_refuses_to_compile_and_allows_hits(full: World, run: Run) -> None:
    guarded = ("run", "--guard", "compile:raise:0", "--", full.python, "program.py")
    run(*guarded)
    shutil.rmtree(full.directory / "jc")
    assert "UnexpectedCompileError" in run(*guarded, code=1)


def test_a_program_that_watches_itself_counts_as_jax_does(full: World) -> None:
    (full.directory / "watched.py").write_text(
        "import jaxcache, program\n"
        "with jaxcache.watch() as report:\n"
        "    program.main()\n"
        "told = (report.hits, report.written)\n"
        "assert told == (program.COUNTS['cache_hits'], program.COUNTS['cache_misses']), told\n"
    )
    (path,) = (full.directory / "jc").glob("jit_first-*-cache")
    path.unlink()
    full.extra["PYTHONPATH"] = PYTHONPATH
    assert full.plain(full.python, "watched.py") == Counts(MODULES - 1, 1)
