"""A sample of the faults that ``make faults`` tries in full."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from processes import sh

from tools.faults.world import copy_of

ROOT = Path(__file__).parents[1]


def run_python(*args: str) -> "subprocess.CompletedProcess[str]":
    """In a process of its own, because trials fork."""
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = sh([sys.executable, *args], env=env, timeout=1_800)
    if done.returncode == 77:
        pytest.skip(done.stdout.strip())
    return done


@pytest.mark.parametrize(
    ("rows", "least"),
    [(("into nothing", "prune by size"), 2), pytest.param((), 100, marks=pytest.mark.slow)],
    ids=["two", "all"],
)
def test_commands_keep_every_entry(rows: tuple[str, ...], least: int) -> None:
    only = [word for row in rows for word in ("--only", row)]
    done = run_python("-m", "tools.faults", "--sample", "1", *only)
    assert done.returncode == 0, done.stdout + done.stderr
    assert int(done.stdout.splitlines()[-1].split()[0]) > least


def test_every_copy_of_a_world_has_the_same_access_times(tmp_path: Path) -> None:
    template = tmp_path / "world"
    template.mkdir()
    entry = template / "entry"
    entry.write_bytes(b"payload")
    os.utime(entry, ns=(10**18, 10**18))
    for number in ("1", "2"):
        with copy_of(template, number) as copy:
            assert (copy / "entry").stat().st_atime_ns == 10**18


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
    done = run_python("-c", CARELESS)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "not one of" in done.stdout


@pytest.mark.jax
@pytest.mark.parametrize(
    "rows",
    [
        # In place, into a new directory, and what a child writes.
        ("verify --fix", "import into nothing", "warm --record", "compile into nothing"),
        pytest.param((), marks=pytest.mark.slow),
    ],
    ids=["some", "all"],
)
def test_jax_runs_right_on_what_a_kill_leaves(jax_python: str, rows: tuple[str, ...]) -> None:
    done = run_python("-m", "tools.faults.with_jax", jax_python, "1", *rows)
    assert done.returncode == 0, done.stdout + done.stderr
    assert int(done.stdout.splitlines()[-1].split()[0]) >= (len(rows) or 11)


@pytest.mark.jax
def test_the_live_layer_loses_nothing(jax_python: str) -> None:
    if os.path.abspath(jax_python) != sys.executable:
        pytest.skip("runs in the Python of the tests")
    done = run_python("-m", "tools.faults.with_live", "2")
    assert done.returncode == 0, done.stdout + done.stderr
