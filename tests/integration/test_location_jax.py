"""However a directory is spelled, plain JAX hits what jaxcache filled, and the other way round."""

import json
import os
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest
from command_line import WorldInProcess
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

MakeWorld = Callable[[Spelling], World]


@pytest.fixture
def make_world(tmp_path: Path, each_jax_python: str) -> MakeWorld:
    """Make a world with a spelling."""
    return lambda spelling: WorldInProcess(tmp_path / "world", each_jax_python, spelling)


# One of each kind; `make oracle` tries all spellings, ways to fill and starts.
@pytest.mark.parametrize(
    "name", [".jc", pytest.param("link", marks=pytest.mark.slow), "code, chdir"]
)
def test_plain_jax_hits_what_warm_filled(name: str, make_world: MakeWorld) -> None:
    assert not faults(make_world(SPELLINGS[name]))


def test_jaxcache_hits_what_plain_jax_filled(make_world: MakeWorld) -> None:
    assert not faults_after_plain(make_world(SPELLINGS["code"]))


def test_a_notebook_runs_in_its_directory(make_world: MakeWorld) -> None:
    world = make_world(SPELLINGS[".jc"])
    source = "import program; program.main()"
    document = {"cells": [{"cell_type": "code", "source": source}]}
    (world.directory / "program.py").rename(world.directory / "x/program.py")
    (world.directory / "x/program.ipynb").write_text(json.dumps(document))
    done = world.run_jaxcache("warm", "--python", world.python, "x/program.ipynb")
    assert done.returncode == 0, done.stderr
    assert len(list((world.directory / "x/.jc").glob("*-cache"))) == MODULES


def test_the_option_names_the_spelling_that_hits(make_world: MakeWorld) -> None:
    world = make_world(SPELLINGS["unset"])
    if not (0, 5) <= jax_version(world.python) < (0, 11):
        pytest.skip("this JAX keeps the path out of its keys")
    done = world.run_jaxcache("warm", "-C", "jc", "--python", world.python, "program.py")
    (note,) = [line for line in done.stderr.splitlines() if "hits only as" in line]
    assert note.endswith("; to move it, fill it with --portable")
    (setting,) = [w for w in shlex.split(note.replace(";", "")) if w.startswith("JAX_")]
    name, _, value = setting.partition("=")
    assert value == os.path.realpath(world.directory / "jc")
    world.extra[name] = value
    assert world.plain() == Counts(MODULES, 0)
