"""Locks that another process holds for ever: no compile waits for one of them twice."""

import fcntl
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from acting import act, acts_on
from processes import sh

from live.conftest import PROGRAM, RunLive, entries

#: Notes each request for a lock, with the entries that are there by then.
COUNTED = """
import os, pathlib, sys
cache = pathlib.Path(os.environ["JAX_COMPILATION_CACHE_DIR"])
requests = []
def note(event, args):
    if event == "fcntl.flock" and os.readlink(f"/proc/self/fd/{args[0]}").endswith("/.lockfile"):
        requests.append(len(list(cache.glob("jit_*-cache"))))
sys.addaudithook(note)
"""


@pytest.fixture
def held_lockfile(tmp_path: Path) -> Iterator[Path]:
    """JAX's lock of the cache, which this process holds."""
    (tmp_path / "cache").mkdir()
    path = tmp_path / "cache" / ".lockfile"
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield path


@acts_on("nothing while it is held; jaxcache doctor -C … names its holder")
@pytest.mark.jax
def test_a_program_waits_for_jaxs_lock_once(
    run_live: RunLive, held_lockfile: Path, tmp_path: Path
) -> None:
    """What is written later asks for the lock without waiting; the bound waits, too."""
    ran = run_live(COUNTED + PROGRAM + "\nresult = requests", JAXCACHE_LIVE_MAX_ENTRIES="1")
    assert len(entries(tmp_path / "cache")) == ran["written"] > 1
    asked = [ran.result.count(number) for number in range(ran["written"])]
    assert asked[0] > 2
    assert all(number <= 4 for number in asked[1:])  # one of the write, and those of sweeps
    (line,) = ran.err.splitlines()
    assert f"another process held {held_lockfile} for 10 s" in line
    told = act(line, tmp_path, until=" names")
    assert "lock-held" in told.stdout, told


#: Writes a file while each lock that it requests is held, as by another user who watches.
WATCHED = """
import fcntl, os, sys
from jaxcache.core.atomic import replace_file
held = []
def hold(event, args):
    if event == "fcntl.flock" and not held:
        assert args[1] & fcntl.LOCK_NB, "it would wait for ever"
        held.append(os.open(f"/proc/self/fd/{args[0]}", os.O_RDONLY))
        fcntl.flock(held[0], fcntl.LOCK_EX)
sys.addaudithook(hold)
replace_file(sys.argv[1], [b"whole"])
assert held
"""


def test_a_new_file_that_another_process_has_locked_is_written_all_the_same(tmp_path: Path) -> None:
    done = sh([sys.executable, "-c", WATCHED, tmp_path / "file"])
    assert done.returncode == 0, done.stderr
    assert [p.read_bytes() for p in tmp_path.iterdir()] == [b"whole"]
