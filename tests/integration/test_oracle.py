"""Plain JAX is the oracle: it hits what jaxcache filled, and the other way round."""

import os
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import jax_version

from tools.oracle.world import (
    MODULES,
    SPELLINGS,
    Counts,
    Spelling,
    World,
    faults,
    faults_after_plain,
)

pytestmark = pytest.mark.jax

WORKING = [spelling for spelling in SPELLINGS.values() if not spelling.cannot]
#: The first compile opens the directory, and then the program leaves it.
LEFT = Spelling(
    "left",
    None,
    "jax.config.update('jax_compilation_cache_dir', 'jc'); "
    "jax.jit(lambda x: x)(np.ones(3)); os.chdir('x')",
)

MakeWorld = Callable[[Spelling], World]


@pytest.fixture
def make_world(tmp_path: Path, each_jax_python: str) -> MakeWorld:
    """Make a world with a spelling."""
    return lambda spelling: World(tmp_path / "world", each_jax_python, spelling)


@pytest.mark.parametrize("spelling", WORKING, ids=lambda s: s.name)
def test_plain_jax_hits_what_warm_filled(spelling: Spelling, make_world: MakeWorld) -> None:
    assert not faults(make_world(spelling))


@pytest.mark.parametrize("name", ["link", "code"])
def test_jaxcache_hits_what_plain_jax_filled(name: str, make_world: MakeWorld) -> None:
    assert not faults_after_plain(make_world(SPELLINGS[name]))


def test_without_a_directory_the_program_gets_none(make_world: MakeWorld) -> None:
    world = make_world(SPELLINGS["unset"])
    done = world.run_jaxcache("warm", "--python", world.python, "program.py")
    assert done.returncode == 1
    assert "failed: nothing was cached, because JAX has no cache directory" in done.stderr
    assert "export JAX_COMPILATION_CACHE_DIR=DIR" in " ".join(done.stderr.split())
    assert not world.entries()


def test_a_directory_of_each_run_is_named(make_world: MakeWorld) -> None:
    world = make_world(SPELLINGS["chdir anew"])
    _, report = world.report("warm", "--python", world.python, "program.py")
    assert report["cache_dir"].startswith(str(world.directory / "runs"))
    (note,) = [n for n in report["notes"] if "changed its working directory" in n]
    assert f"instead of {world.directory / '.jc'}" in note
    assert world.plain() == Counts(0, MODULES)


def test_a_write_into_a_directory_that_the_program_left(make_world: MakeWorld) -> None:
    world = make_world(LEFT)
    done = world.run_jaxcache("warm", "--python", world.python, "program.py")
    shown = " ".join(done.stderr.split())
    assert f"{world.directory}/x/jc does not exist: JAX opened the relative directory jc" in shown
    assert f"jaxcache doctor -C {world.directory}/jc" in shown


def test_the_option_names_the_spelling_that_hits(make_world: MakeWorld) -> None:
    world = make_world(SPELLINGS["unset"])
    if not (0, 5) <= jax_version(world.python) < (0, 11):
        pytest.skip("this JAX keeps the path out of its keys")
    done = world.run_jaxcache("warm", "-C", "jc", "--python", world.python, "program.py")
    (note,) = [line for line in done.stderr.splitlines() if "hit only with" in line]
    (setting,) = [w for w in shlex.split(note.replace(",", "")) if w.startswith("JAX_")]
    name, _, value = setting.partition("=")
    assert value == os.path.realpath(world.directory / "jc")
    world.extra[name] = value
    assert world.plain() == Counts(MODULES, 0)


def test_a_restored_relative_directory_hits(make_world: MakeWorld) -> None:
    world = make_world(SPELLINGS[".jc"])
    world.plain()
    for command in (
        ("ci", "save", "../saved"),
        ("rm", "--yes", "*"),
        ("ci", "restore", "../saved"),
        ("warm", "--fail-on-miss", "--python", world.python, "program.py"),
    ):
        done = world.run_jaxcache(*command)
        assert done.returncode == 0, (command, done.stderr)
    assert world.plain() == Counts(MODULES, 0)


@pytest.mark.parametrize("value", [".jc", "link", "~/jc", "file:///srv/jc"])
def test_doctor_names_a_spelling(value: str, make_world: MakeWorld) -> None:
    world = make_world(Spelling(value, value))
    if value == "link" and not (0, 5) <= jax_version(world.python) < (0, 11):
        world.spelling = Spelling(value, str(world.directory / value))
    _, found = world.report("doctor", "-C", ".", "--python", world.python)
    (finding,) = [f for f in found["findings"] if f["trap"] == "directory-spelling"]
    assert value in finding["seen"]
