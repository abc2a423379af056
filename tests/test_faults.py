"""Samples of the faults that ``make faults``, and of the inputs that ``make fuzz`` tries."""

import os
import sys
from pathlib import Path

import pytest
from conftest import REPOSITORY
from processes import sh

from tools.fuzz.targets import TARGETS


def run_python(*args: str, code: int = 0) -> str:
    """In a process of its own, because trials fork."""
    env = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    done = sh([sys.executable, *args], env=env, timeout=1_800)
    if done.returncode == 77:
        pytest.skip(done.stdout.strip())
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


def test_commands_keep_every_entry() -> None:
    rows = ("--only", "into nothing", "--only", "prune by size")
    shown = run_python("-m", "tools.faults", "--sample", "1", *rows)
    assert int(shown.splitlines()[-1].split()[0]) > 2


#: A store that writes in place, as JAX does.
CARELESS = """
import pathlib, sys
from tools.faults import __main__, process
process.preload()
from jaxcache.store.local import LocalStore
def write(self, name, chunks, *, mtime_ns=None, replace=True):
    path = pathlib.Path(self.url, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb", buffering=0) as file:
        for chunk in chunks:
            file.write(chunk)
    return self.info(name)
LocalStore.write = write
LocalStore.write_many = lambda self, files: (write(self, f.name, f.chunks) for f in files)
sys.argv = ["faults", "kill", "--only", "into nothing", "--sample", "12", "--jobs", "1"]
sys.exit(__main__.main())
"""


@pytest.mark.slow
def test_a_store_that_writes_in_place_is_found_out() -> None:
    assert "not one of" in run_python("-c", CARELESS, code=1)


@pytest.mark.jax
def test_jax_runs_right_on_what_a_kill_leaves(jax_python: str) -> None:
    rows = ("verify --fix", "import into nothing")  # in place, and into a new directory
    shown = run_python("-m", "tools.faults.with_jax", jax_python, "1", *rows)
    assert int(shown.splitlines()[-1].split()[0]) >= len(rows)


@pytest.mark.jax
def test_the_live_layer_loses_nothing(jax_python: str) -> None:
    if os.path.abspath(jax_python) != sys.executable:
        pytest.skip("runs in the Python of the tests")
    run_python("-m", "tools.faults.with_live", "2")


# What is fuzzed runs, and what fuzzing once broke stays whole; ``make fuzz`` looks for more.


FUZZ = Path(__file__).with_name("data") / "fuzz"


@pytest.mark.parametrize("name", TARGETS)
def test_neither_seeds_nor_what_once_broke_it_break_a_target(name: str) -> None:
    seeds = list(TARGETS[name].seeds())
    assert seeds
    for seed in (*seeds, *(path.read_bytes() for path in (FUZZ / name).glob("*"))):
        TARGETS[name].run(seed)
        TARGETS[name].run(seed[: len(seed) // 2])
