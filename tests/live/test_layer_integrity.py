"""Checked reads and whole writes inside a real JAX."""

import json
import os
import signal
import subprocess
import textwrap
from pathlib import Path

import pytest
import refuse_calls
from conftest import RunCli, find_jax_pythons
from processes import sh

from jaxcache.live.frame import decode
from live.conftest import PROGRAM, TELL, RunLive, entries, live_environment
from live.machines import PORTABLE

pytestmark = pytest.mark.jax
PLAIN = {"JAXCACHE_LIVE": "0"}


def test_keys_and_results_are_those_of_plain_jax_and_both_hit_the_others(
    run_live: RunLive, run_cli: RunCli, tmp_path: Path
) -> None:
    live = run_live(cache_dir=tmp_path / "live", **PORTABLE)
    plain = run_live(cache_dir=tmp_path / "plain", **PLAIN, **PORTABLE)
    assert live.result == plain.result
    assert plain.document["counts"] is None
    names = [p.name for p in entries(tmp_path / "live")]
    assert names == [p.name for p in entries(tmp_path / "plain")]
    again = run_live(cache_dir=tmp_path / "plain", **PORTABLE)
    assert (again["hits_local"], again["misses"], again["written"]) == (len(names), 0, 0)
    assert again.result == plain.result
    before = {p.name: p.stat().st_mtime_ns for p in entries(tmp_path / "live")}
    hit = run_live(cache_dir=tmp_path / "live", **PLAIN, **PORTABLE)
    assert hit.result == plain.result
    assert {p.name: p.stat().st_mtime_ns for p in entries(tmp_path / "live")} == before
    verified = run_cli("verify", "-C", tmp_path / "live")
    assert f"{len(names)} match their checksum" in verified.stderr


#: Flips one bit of an entry, forgets what is in memory, and computes again; many times.
FLIPS = """
import os, random, glob, sys
trials, seed = int(sys.argv[1]), int(sys.argv[2])
directory = os.environ["JAX_COMPILATION_CACHE_DIR"]
choice = random.Random(seed)
files = sorted(glob.glob(directory + "/jit_first*-cache"))
files = sorted(files + glob.glob(directory + "/jit_second*-cache"))
good, wrong, left, harmless = result, [], [], 0
from jax._src import compilation_cache as cc
for trial in range(trials):
    path = choice.choice(files)
    with open(path, "rb") as f:
        whole = f.read()
    if trial % 4 == 3:
        bad = whole[: choice.randrange(len(whole))]
    else:
        bit = choice.randrange(len(whole) * 8)
        bad = bytearray(whole); bad[bit // 8] ^= 1 << bit % 8
    with open(path, "wb") as f:
        f.write(bad)
    jax.clear_caches()
    if [first(x).tolist(), second(x).tolist()] != good:
        wrong.append(trial)
    with open(path, "rb") as f:
        now = f.read()
    if now == bytes(bad):
        # Of some bits nothing in the content depends; the checksum proves that.
        if cc.decompress_executable(bytes(bad)) == cc.decompress_executable(whole):
            harmless += 1
        else:
            left.append(trial)
result = {"wrong": wrong, "left": left, "harmless": harmless}
"""


@pytest.mark.parametrize(
    "trials", [24, pytest.param(120, marks=pytest.mark.slow)], ids=["sample", "sweep"]
)
def test_damaged_entries_are_compiled_again_and_replaced(
    jax_python: str, tmp_path: Path, trials: int
) -> None:
    env = live_environment(jax_python, tmp_path, tmp_path / "cache")
    done = sh(
        [jax_python, "-c", PROGRAM + FLIPS + TELL, str(trials), "5"],
        env=env | {"JAX_RAISE_PERSISTENT_CACHE_ERRORS": "1"},
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert (told["result"]["wrong"], told["result"]["left"]) == ([], [])
    damaged = trials - told["result"]["harmless"]
    assert damaged > 0.95 * trials
    assert told["counts"]["rotten"] == told["counts"]["replaced"] == damaged
    assert "UserWarning" not in done.stderr


def test_an_unsealed_entry_is_refused_where_the_seal_is_required(
    run_live: RunLive, tmp_path: Path
) -> None:
    plain = run_live(**PLAIN)
    strict = run_live(JAXCACHE_LIVE_REQUIRE_SEAL="always")
    assert strict["unsealed"] == strict["replaced"] == len(entries(tmp_path / "cache"))
    assert strict.result == plain.result
    assert run_live(JAXCACHE_LIVE_REQUIRE_SEAL="always")["misses"] == 0


def test_a_full_disk_leaves_no_torn_entry(run_live: RunLive, tmp_path: Path) -> None:
    limited = """
    import resource, signal
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1500, resource.RLIM_INFINITY))
    """
    ran = run_live(textwrap.dedent(limited) + PROGRAM)
    assert ran["write_failed"] > 0
    assert "Error writing persistent compilation cache entry" in ran.err
    assert [p.name for p in (tmp_path / "cache").iterdir() if ".jaxcache-tmp" in p.name] == []
    after = run_live()
    assert after["rotten"] == 0
    assert after.result == ran.result
    assert run_live()["misses"] == 0


def test_a_torn_entry_of_plain_jax_is_mended(run_live: RunLive, tmp_path: Path) -> None:
    good = run_live(**PLAIN).result
    torn, empty = entries(tmp_path / "cache", "first")[0], entries(tmp_path / "cache", "second")[0]
    torn.write_bytes(torn.read_bytes()[:-7])
    empty.write_bytes(b"")
    ran = run_live()
    assert (ran["rotten"], ran["replaced"], ran.result) == (2, 2, good)
    plain = run_live(**PLAIN)
    assert (plain.result, plain.err.count("UserWarning")) == (good, 0)


#: Dies while it loads the module ``first``, as over a damaged executable.
DEADLY = """
import os, signal
from jax._src import compilation_cache, xla_bridge
real = compilation_cache.decompress_executable
def deadly(value):
    content = real(value)
    if b"jit_first" in content:
        os.kill(os.getpid(), signal.SIGKILL)
    return content
import jax
jax.devices()
real = compilation_cache.decompress_executable
compilation_cache.decompress_executable = deadly
"""


@pytest.mark.parametrize("preload", ["0", pytest.param("1", marks=pytest.mark.slow)])
def test_an_entry_that_killed_a_process_is_in_quarantine_the_next_time(
    run_live: RunLive, run_cli: RunCli, tmp_path: Path, preload: str
) -> None:
    good = run_live(JAXCACHE_LIVE_PRELOAD="0").result  # without a record nothing is loaded ahead
    died = run_live(DEADLY + PROGRAM, check=False, JAXCACHE_LIVE_PRELOAD=preload)
    assert died.code == -signal.SIGKILL
    ran = run_live()
    assert (ran["died_loading"], ran.result) == (1, good)
    assert "in quarantine" in ran.err
    (moved,) = (tmp_path / "cache" / ".jaxcache" / "quarantine").rglob("*-cache")
    assert moved.name.startswith("jit_first")
    after = run_live()
    assert (after["died_loading"], after["misses"]) == (0, 0)
    assert "jit_first" in run_cli("verify", "--restore", "-n", "-C", tmp_path / "cache").stdout
    assert list((tmp_path / "cache" / ".jaxcache" / "live" / "loading").iterdir()) == []


#: Forks children, before JAX has a backend, that write entries until each kills itself; the first
#: one not before an entry was uploaded.
KILLED = """
import glob, os, random, sys, threading, time
import jax
choice = random.Random(3)
uploaded = os.environ["JAXCACHE_LIVE_TIERS"] + "/jit_k*-cache"

def kill_after(delay):
    deadline = time.monotonic() + 120
    while not glob.glob(uploaded) and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(delay)
    os.kill(os.getpid(), 9)

def work(delay):
    jax.devices()
    from jax._src import compilation_cache
    cache = compilation_cache.LRUCache(os.environ["JAX_COMPILATION_CACHE_DIR"], max_size=-1)
    value = compilation_cache.compress_executable(b"\\0\\0\\0\\1" + os.urandom(400_000))
    threading.Thread(target=kill_after, args=(delay,), daemon=True).start()
    n = 0
    while True:
        n += 1
        cache._directory.put("jit_k%d-%s" % (n % 40, os.urandom(32).hex()), value)

for _ in range(int(sys.argv[1])):
    child = os.fork()
    if child == 0:
        try:
            work(choice.uniform(0.01, 0.4))
        finally:
            os._exit(1)
    status = os.waitpid(child, 0)[1]
    assert os.waitstatus_to_exitcode(status) == -9, status
"""


@pytest.mark.parametrize(
    "kills", [4, pytest.param(200, marks=pytest.mark.slow)], ids=["sample", "sweep"]
)
def test_a_kill_in_the_middle_of_writes_uploads_and_evictions_loses_nothing(
    jax_python: str, tmp_path: Path, kills: int
) -> None:
    cache, shared = tmp_path / "cache", tmp_path / "shared"
    env = live_environment(jax_python, tmp_path, cache) | {
        "JAXCACHE_LIVE_MAX_SIZE": "6MB",
        "JAXCACHE_LIVE_TIERS": str(shared),
        "JAXCACHE_LIVE_PREFETCH": "0",
    }
    cache.mkdir()
    kills = max(min(kills, 40), kills // len(find_jax_pythons()))  # the versions share the sweep
    command = [jax_python, "-c", KILLED, str(kills)]
    done = sh(command, env=env, timeout=900)
    assert done.returncode == 0, done.stderr
    found, up = list(cache.glob("jit_k*-cache")), list(shared.glob("jit_k*-cache"))
    assert found
    assert up
    assert all(decode(p.read_bytes()).sealed for p in (*found, *up))
    waiting = {p.name for p in (cache / ".jaxcache" / "live" / "spool").rglob("jit_*")}
    there = {p.name for p in up}
    assert [p.name for p in found if p.name not in there and p.name[:-6] not in waiting] == []
    patient = env | {"JAXCACHE_LIVE_FLUSH": "600s"}  # a fast machine has written thousands
    ended = subprocess.run([jax_python, "-c", PROGRAM], env=patient, cwd=tmp_path, check=False)
    assert ended.returncode == 0
    assert sum(p.stat().st_size for p in cache.glob("*-cache")) <= 6_000_000


#: Writes more than the bound, and dies before any of it is evicted.
OVER = """
import os, random, sys
from jaxcache.live.layer import LAYER
from jax._src import compilation_cache
(directory,) = LAYER.directories.values()
directory.evictor.evict = lambda: None
value = compilation_cache.compress_executable(b"\\0\\0\\0\\1" + random.randbytes(400_000))
for n in range(20):
    directory.put("jit_k-%064x" % n, value)
    os.utime(directory.path("jit_k-%064x" % n), (1e9, 1e9))
os.kill(os.getpid(), 9)
"""


def test_after_a_kill_the_bound_holds_at_the_end_of_the_next_run(
    run_live: RunLive, tmp_path: Path
) -> None:
    bound = {"JAXCACHE_LIVE_MAX_SIZE": "6MB"}
    run_live()
    assert run_live(PROGRAM + OVER, check=False, **bound).code == -signal.SIGKILL
    assert sum(p.stat().st_size for p in entries(tmp_path / "cache")) > 6_000_000
    ran = run_live(**bound)
    assert ran["misses"] == 0  # nothing was written that would have made it look
    assert sum(p.stat().st_size for p in entries(tmp_path / "cache")) <= 6_000_000


#: Nothing can be evicted in this process.
UNABLE = """
import jax
jax.devices()
from jaxcache.live.evictor import Evictor
def evict(self):
    raise OSError("no")
Evictor.evict = evict
"""


def test_after_a_failed_eviction_the_bound_holds_at_the_end_of_the_next_run(
    run_live: RunLive, tmp_path: Path
) -> None:
    bound = {"JAXCACHE_LIVE_MAX_ENTRIES": "2"}
    assert run_live(UNABLE + PROGRAM, **bound)["written"] > 2
    assert len(entries(tmp_path / "cache")) > 2
    ran = run_live(**bound)
    assert ran["died_loading"] == 0
    assert len(entries(tmp_path / "cache")) <= 2
    assert list((tmp_path / "cache/.jaxcache/live/loading").iterdir()) == []


def test_a_read_only_directory_is_as_with_plain_jax(run_live: RunLive, tmp_path: Path) -> None:
    if os.getuid() == 0:
        pytest.skip("root writes everywhere")
    (tmp_path / "cache").mkdir(mode=0o555)
    ran = run_live()
    assert ran["write_failed"] > 0
    assert "Error writing persistent compilation cache entry" in ran.err


@pytest.mark.skipif(refuse_calls.why_not() is not None, reason=str(refuse_calls.why_not()))
def test_a_directory_without_locks_is_written_bounded_and_counted(
    run_live: RunLive, jax_python: str, tmp_path: Path
) -> None:
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
