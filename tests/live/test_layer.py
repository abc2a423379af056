"""The layer inside programs of every kind: whatever they do, they run as with plain JAX."""

import json
import socket
import subprocess
from pathlib import Path

import pytest
from processes import sh

from live.conftest import PORTABLE, PROGRAM, TELL, RunLive, entries, live_environment
from live.test_tiers import UNREACHABLE

pytestmark = pytest.mark.jax


RESETS = """
import os
from jax._src import compilation_cache
compilation_cache.reset_cache()
jax.clear_caches()
again = [first(x).tolist(), second(x).tolist()]
assert again == result
jax.config.update("jax_compilation_cache_dir", os.environ["OTHER"])
compilation_cache.reset_cache()
jax.clear_caches()
assert [first(x).tolist(), second(x).tolist()] == result
# What JAX's own check of the contents does: put what was read and compared.
cache = compilation_cache._cache
key = next(iter(cache._path.glob("jit_first*-cache"))).name[: -len("-cache")]
value = cache.get(key)
before = (cache._path / (key + "-cache")).stat().st_mtime_ns
cache.put(key, value)
if hasattr(compilation_cache, "VerificationCache"):
    checked = compilation_cache.VerificationCache(cache)
    assert checked.get(key) is None
    checked.put(key, value)
assert (cache._path / (key + "-cache")).stat().st_mtime_ns == before
# A program that JAX could not load is compiled again, and what it puts then counts.
content = compilation_cache.decompress_executable(value)
other = compilation_cache.compress_executable(content + b"x")
cache.get(key)
cache.put(key, other)
assert cache.get(key) == other
"""


def test_a_reset_and_another_directory_are_survived(run_live: RunLive, tmp_path: Path) -> None:
    ran = run_live(PROGRAM + RESETS, OTHER=str(tmp_path / "other"))
    assert ran["hits_local"] >= len(entries(tmp_path / "cache"))
    assert len(entries(tmp_path / "other")) >= 2
    assert (ran["replaced"], ran["troubles"]) == (1, 0)


#: What may go wrong in the layer itself, and the words on standard error.
SABOTAGE = {
    "an unknown JAX": (
        "import jax._src.lru_cache as cache\ncache._CACHE_SUFFIX = '-future'",
        "live is off: cannot stand in front of the cache of jax ",
    ),
    "at import": ("sys.modules['jaxcache.live.process'] = None", "live is off: Module"),
    "when JAX opens its cache": ("sys.modules['jaxcache.live.directory'] = None", "live: Module"),
    "at each call": (
        "from jaxcache.live.directory import Directory\n"
        "def fail(*_, **__): raise RuntimeError('broken')\n"
        "Directory.get = Directory.put = Directory.loaded = Directory.close = fail",
        "live: RuntimeError: broken",
    ),
    "in the background": (
        "from jaxcache.live import evictor, uses\n"
        "def fail(*_, **__): raise RuntimeError('broken')\n"
        "evictor.Evictor._look = uses.UseLog.flush = fail",
        "live: RuntimeError: broken",
    ),
}


@pytest.mark.parametrize("where", SABOTAGE)
def test_whatever_fails_the_program_runs_on(
    run_live: RunLive, right: object, tmp_path: Path, where: str
) -> None:
    """With errors of the cache as exceptions, too: then one in its constructor is the user's."""
    script, said = SABOTAGE[where]
    env = {"JAX_RAISE_PERSISTENT_CACHE_ERRORS": "1", "JAXCACHE_LIVE_MAX_SIZE": "1GB"}
    for _ in range(2 if where == "at each call" else 1):
        ran = run_live(f"import sys\n{script}\n{PROGRAM}", **env)
        assert ran.result == right
        (line,) = ran.err.splitlines()
        assert line.startswith(f"jaxcache: {said}")
    assert len(list((tmp_path / "cache").glob("jit_*"))) > 1


# Signals.
#: Sends a signal before each line of the layer that the main thread runs, once. Its handler runs
#: a function that is new, and one that the program itself runs. The alarm ends a deadlock.
AT_EACH_LINE = """
import os, signal, sys
import jax, jax.numpy as jnp
signal.alarm(200)
lines = set()
checkpoints = []
in_handler = False

def first(x):
    return jnp.sin(x) @ x.T + 1

def checkpoint(*_):
    global in_handler
    in_handler = True
    value = jnp.ones((2, 2))
    number = len(checkpoints)
    flat, same = jax.jit(lambda x: (x.reshape(4), number))(value)  # XLA has no code to make
    checkpoints.append(int(same) == number and flat.tolist() == [1, 1, 1, 1])
    jax.jit(first)(value).block_until_ready()
    in_handler = False

signal.signal(signal.SIGUSR1, checkpoint)

def at_line(frame, event, _):
    place = frame.f_code.co_filename, frame.f_lineno
    if event == "line" and not in_handler and place not in lines:
        lines.add(place)
        signal.raise_signal(signal.SIGUSR1)
    return at_line

def at_call(frame, event, _):
    if f"{os.sep}jaxcache{os.sep}live{os.sep}" in frame.f_code.co_filename:
        return at_line
    return None

jax.devices()
jax.jit(first)(jnp.ones((2, 2)))
sys.settrace(at_call)
"""
#: The second time everything hits.
AGAIN = """
missed = result
jax.clear_caches()
result = [first(x).tolist(), second(x).tolist()]
sys.settrace(None)
result = {"first": missed, "again": result}
result |= {"signals": len(checkpoints), "right": all(checkpoints)}
"""


def test_a_signal_handler_compiles_at_any_line_of_the_layer(
    run_live: RunLive, right: object, tmp_path: Path
) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / ".lockfile").touch()  # as of a JAX with a size cap
    settings = PORTABLE | {
        "JAXCACHE_LIVE_TIERS": str(tmp_path / "shared"),
        "JAXCACHE_LIVE_SINGLE_FLIGHT": "10m",
        "JAXCACHE_LIVE_MAX_SIZE": "1GB",
    }
    ran = run_live(AT_EACH_LINE + PROGRAM + AGAIN, **settings)
    assert (ran.result["first"], ran.result["again"]) == (right, right)
    assert ran.result["right"]
    assert ran.result["signals"] > 100
    assert (ran["troubles"], ran.err) == (0, "")


# Forked, spawned and distributed processes.


#: A child forked when everything runs; locks that another thread held are not released in it.
HELD = """
import os, signal
layer = sys.modules["jaxcache.live.layer"].LAYER
directory = next(iter(layer.directories.values()))
key = next(iter(directory._served))
assert directory.tiers is not None
with directory.loading._lock, directory._leases._lock, directory.evictor._lock:
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        layer.now.loading = True
        fine = directory.tiers is None and directory.get(key) is not None
        fine = fine and directory.get("jit_no-" + "0" * 64) is None
        directory.put("jit_no-" + "0" * 64, b"an entry")
        os._exit(0 if fine else 9)
result = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
"""


def test_a_forked_child_has_no_tiers_and_no_held_locks(run_live: RunLive, tmp_path: Path) -> None:
    settings = {"JAXCACHE_LIVE_SINGLE_FLIGHT": "5s", "JAXCACHE_LIVE_MAX_SIZE": "1GB"}
    settings["JAXCACHE_LIVE_TIERS"] = str(tmp_path / "shared")
    run_live(**settings)
    assert run_live(PROGRAM + HELD, **settings).result == 0


#: The parent imports jax, so that its layer asks the bucket; JAX starts in the children first.
POOL = """
import json, multiprocessing, os, sys
from jaxcache.injected import hook
hook.install()
import jax, jax.numpy as jnp

def work(number):
    jax.jit(lambda x: jnp.sin(x) @ x.T + number)(jnp.ones((4, 4)))
    return sys.modules["jaxcache.live.layer"].LAYER.counters.snapshot()

def fork(number):
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writing, json.dumps(work(number)).encode())
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    return json.loads(os.read(reading, 1 << 16))

if __name__ == "__main__":
    if sys.argv[1] == "os.fork":
        children = [fork(number) for number in range(4)]
    else:
        with multiprocessing.get_context(sys.argv[1]).Pool(2) as pool:
            children = pool.map(work, range(4))
    print(json.dumps([work(9), *children]))
"""


@pytest.mark.parametrize(
    ("how", "place"),
    [
        ("os.fork", "refuses"),
        ("forkserver", "there"),
        pytest.param("fork", "there", marks=pytest.mark.slow),
    ],
)
def test_a_forked_child_leaves_the_bucket_to_its_parent(
    jax_python: str, bucket: str, tmp_path: Path, how: str, place: str
) -> None:
    """The sockets of such a child would be polled by its parent, and the parent would die."""
    (tmp_path / "pool.py").write_text(POOL)
    env = live_environment(jax_python, tmp_path, tmp_path / "cache")
    env |= PORTABLE | {"JAXCACHE_LIVE_TIERS": bucket}
    if place == "refuses":
        env["AWS_ENDPOINT_URL"] = UNREACHABLE
    done = sh([jax_python, tmp_path / "pool.py", how], env=env)
    assert done.returncode == 0, done.stderr
    parent, *children = json.loads(done.stdout)
    assert any("tier" in name for name in parent)
    for child in children:
        assert any("tier" in name for name in child) is (how == "forkserver")
        assert child["written"]


#: One of two processes.
DISTRIBUTED = f"""
import os
import jax
jax.distributed.initialize(os.environ["ADDRESS"], 2, int(os.environ["RANK"]))
{PROGRAM}
{TELL}
jax.distributed.shutdown()
"""


def test_distributed_processes_hit_what_they_wrote(jax_python: str, tmp_path: Path) -> None:
    env = live_environment(jax_python, tmp_path, tmp_path / "cache")
    env["JAX_CPU_COLLECTIVES_IMPLEMENTATION"] = "gloo"

    def run_second(every: str) -> dict[str, int]:
        """Run both, and return what the layer of the second has counted."""
        with socket.create_server(("127.0.0.1", 0)) as free:
            env["ADDRESS"] = f"127.0.0.1:{free.getsockname()[1]}"
        env["JAXCACHE_LIVE_EVERY_PROCESS"] = every
        command = [jax_python, "-c", DISTRIBUTED]
        first = subprocess.Popen(command, env=env | {"RANK": "0"}, stdout=subprocess.DEVNULL)
        second = sh(command, env=env | {"RANK": "1"})
        assert (first.wait(240), second.returncode) == (0, 0), second.stderr
        line = next(text for text in second.stdout.splitlines() if text.startswith('{"result"'))
        counts: dict[str, int] = json.loads(line)["counts"]
        return counts

    run_second("0")
    first = run_second("1")
    written = first["written"]
    assert (first.get("hits_local", 0), written > 0) == (0, True)  # "0" is as with plain JAX
    after = run_second("1")
    assert (after.get("misses", 0), after["hits_local"]) == (0, written)
