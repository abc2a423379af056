"""A cache directory in a real JAX: checked reads, whole writes, its bounds and its locks."""

import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import refuse_calls
from conftest import RunCli

from jaxcache.cache.ledger.record import Event
from jaxcache.cache.ledger.write import append
from jaxcache.store import open_store
from live.conftest import DEFINITIONS, PLAIN, PORTABLE, PROGRAM, RunLive, entries

pytestmark = pytest.mark.jax


@pytest.fixture
def plain_cache(plain: tuple[Path, Any], tmp_path: Path) -> tuple[Path, Path]:
    """Entries of plain JAX, without a checksum; the files of ``first`` and ``second``."""
    shutil.copytree(plain[0], tmp_path / "cache")
    (first,) = entries(tmp_path / "cache", "first")
    (second,) = entries(tmp_path / "cache", "second")
    return first, second


@pytest.mark.usefixtures("plain_cache")
def test_the_layer_and_plain_jax_hit_the_same_entries(
    run_live: RunLive, run_cli: RunCli, right: object, tmp_path: Path
) -> None:
    live = run_live(cache_dir=tmp_path / "live", **PORTABLE)
    names = [p.name for p in entries(tmp_path / "live")]
    assert names == [p.name for p in entries(tmp_path / "cache")]
    again = run_live(**PORTABLE)
    assert (again["hits_local"], again["misses"], again["written"]) == (len(names), 0, 0)
    before = {p.name: p.stat().st_mtime_ns for p in entries(tmp_path / "live")}
    hit = run_live(cache_dir=tmp_path / "live", **PLAIN, **PORTABLE)
    assert live.result == again.result == hit.result == right
    assert {p.name: p.stat().st_mtime_ns for p in entries(tmp_path / "live")} == before
    verified = run_cli("verify", "-C", tmp_path / "live")
    assert f"{len(names)} match their checksum" in verified.stderr


# Damage, and entries that nothing proves.


@pytest.mark.usefixtures("plain_cache")
def test_a_seal_can_be_required(run_live: RunLive, right: object, tmp_path: Path) -> None:
    """Where JAX has a cap, too, which asks for a stamp of each entry."""
    cap = {"JAX_COMPILATION_CACHE_MAX_SIZE": "1000000000"}
    strict = run_live(JAXCACHE_LIVE_REQUIRE_SEAL="always", **cap, **PORTABLE)
    number = len(entries(tmp_path / "cache"))
    assert (strict["unsealed"], strict["replaced"], strict.result) == (number, number, right)
    assert len(list((tmp_path / "cache").glob("*-atime"))) == number


def test_an_entry_of_another_key_never_reaches_xla(
    run_live: RunLive, right: object, plain_cache: tuple[Path, Path]
) -> None:
    first, second = plain_cache
    shutil.copy(second, first)
    ran = run_live(**PORTABLE)
    assert ran.result == right
    assert (ran["rotten"], ran["replaced"]) == (1, 1)


def test_an_entry_is_as_recorded_or_replaced(
    run_live: RunLive, plain_cache: tuple[Path, Path], tmp_path: Path
) -> None:
    """What was recorded of another file of the name says nothing."""
    for number, entry in enumerate(plain_cache):  # of either, other bytes
        status = entry.stat()
        facts = {"payload_sha256": "a" * 64, "file_inode": status.st_ino + number}
        facts |= {"file_mtime_ns": status.st_mtime_ns, "file_size_bytes": status.st_size}
        event = Event(entry.name.removesuffix("-cache"), "payload", time.time_ns(), facts)
        append(open_store(str(tmp_path / "cache")), [event])
    ran = run_live(**PORTABLE)
    assert (ran["rotten"], ran["replaced"]) == (1, 1)
    assert ran["hits_local"] == len(entries(tmp_path / "cache")) - 1


# Deaths.
#: Dies while it loads the module ``first``, as over a damaged executable.
DEADLY = """
import os, signal
def deadly(value):
    content = real(value)
    if b"jit_first" in content:
        os.kill(os.getpid(), signal.SIGKILL)
    return content
import jax
from jax._src import compilation_cache
jax.devices()
real = compilation_cache.decompress_executable
compilation_cache.decompress_executable = deadly
"""


@pytest.mark.usefixtures("plain_cache")
def test_an_entry_kills_one_process(
    run_live: RunLive, right: object, run_cli: RunCli, tmp_path: Path
) -> None:
    died = run_live(DEADLY + PROGRAM, check=False, **PORTABLE)
    assert died.code == -signal.SIGKILL
    ran = run_live(**PORTABLE)
    assert (ran["died_loading"], ran.result) == (1, right)
    assert "in quarantine" in ran.err
    (moved,) = (tmp_path / "cache" / ".jaxcache" / "quarantine").rglob("*-cache")
    assert moved.name.startswith("jit_first")
    after = run_live(**PORTABLE)
    assert (after["died_loading"], after["misses"]) == (0, 0)
    assert "jit_first" in run_cli("verify", "--restore", "-n", "-C", tmp_path / "cache").stdout
    assert list((tmp_path / "cache/.jaxcache/live/loading").iterdir()) == []


#: Loads two programs, executes the second, and dies.
DIES = """
import os, signal, sys
x = jax.device_put(jnp.asarray([[0.5, 1.5], [2.5, 3.5]]))
first.lower(x).compile()
second(x).block_until_ready()
layer = sys.modules["jaxcache.live.layer"].LAYER
while layer.first_runs._is_looking: pass
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_crash_before_the_first_execution_counts(
    run_live: RunLive, plain_cache: tuple[Path, Path]
) -> None:
    first, _ = plain_cache
    run_live(DEFINITIONS + DIES, check=False, **PORTABLE)
    ran = run_live(**PORTABLE)
    assert ran["died_loading"] == 1
    assert f"{first.name.removesuffix('-cache')} is in quarantine" in ran.err
    assert first.exists()
    run_live(DEFINITIONS + DIES, check=False, **PORTABLE)  # now it has one
    assert run_live(**PORTABLE)["died_loading"] == 0


@pytest.mark.parametrize(
    ("evict", "end"), [("raise OSError('no')", ""), ("return", "os.kill(os.getpid(), 9)")]
)
def test_after_a_failed_sweep_the_next_run_evicts(
    run_live: RunLive, tmp_path: Path, evict: str, end: str
) -> None:
    """Whether a sweep failed, or the process died before it."""
    unable = f"""
import jax, os
jax.devices()
from jaxcache.live.evictor import Evictor
def evict(self):
    {evict}
Evictor.evict = evict
"""
    bound = {"JAXCACHE_LIVE_MAX_ENTRIES": "2"}
    run_live(unable + PROGRAM + end, check=False, **bound)
    assert len(entries(tmp_path / "cache")) > 2
    ran = run_live(**bound)
    assert ran["died_loading"] == 0
    assert len(entries(tmp_path / "cache")) <= 2
    assert list((tmp_path / "cache/.jaxcache/live/loading").iterdir()) == []


# Disks and file systems.


def test_a_full_disk_leaves_no_torn_entry(run_live: RunLive, tmp_path: Path) -> None:
    limited = (
        "import resource, signal\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1500, resource.RLIM_INFINITY))\n"
    )
    ran = run_live(limited + PROGRAM, options=())
    assert ran["write_failed"] > 0
    assert "Error writing persistent compilation cache entry" in ran.err
    assert list((tmp_path / "cache").glob(".jaxcache-tmp*")) == []
    after = run_live()
    assert (after["rotten"], after.result) == (0, ran.result)
    assert run_live()["misses"] == 0


@pytest.mark.skipif(refuse_calls.why_not() is not None, reason=str(refuse_calls.why_not()))
def test_no_locks_are_needed(run_live: RunLive, jax_python: str, tmp_path: Path) -> None:
    """As on a network file system without a lock server."""
    lockless = {"options": (refuse_calls.__file__, "locks", jax_python)}
    ran = run_live(JAXCACHE_LIVE_MAX_ENTRIES="2", **lockless)
    assert (ran["write_failed"], ran["troubles"], "Warning" in ran.err) == (0, 0, False)
    assert len(entries(tmp_path / "cache")) <= 2 < ran["written"]
    again = run_live(**lockless)
    assert again["hits_local"] > 0
    live = tmp_path / "cache" / ".jaxcache" / "live"
    assert list((live / "loading").iterdir()) == []
    assert (live / "totals").exists()
