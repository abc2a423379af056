"""The layer in programs with signal handlers, forks, a wrong clock, and plain JAX beside them."""

import json
from pathlib import Path

import pytest
from conftest import RunCli
from processes import sh

from live.conftest import PROGRAM, RunLive, entries, live_environment
from live.machines import PORTABLE
from live.test_loading import start_together
from live.test_tiers import UNREACHABLE

pytestmark = pytest.mark.jax
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
DONE = """
sys.settrace(None)
result = {"result": result, "signals": len(checkpoints), "right": all(checkpoints)}
"""


def test_a_signal_handler_compiles_whatever_line_of_the_layer_it_interrupts(
    run_live: RunLive, tmp_path: Path
) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / ".lockfile").touch()  # as of a JAX with a size cap
    settings = PORTABLE | {
        "JAXCACHE_LIVE_TIERS": str(tmp_path / "shared"),
        "JAXCACHE_LIVE_SINGLE_FLIGHT": "10m",
        "JAXCACHE_LIVE_MAX_SIZE": "1GB",
    }
    right = run_live(cache_dir=tmp_path / "plain", JAXCACHE_LIVE="0").result
    for _ in range(2):  # the second one hits
        ran = run_live(AT_EACH_LINE + PROGRAM + DONE, **settings)
        assert ran.result["result"] == right
        assert ran.result["right"]
        assert ran.result["signals"] > 100
        assert (ran["troubles"], ran.err) == (0, "")


# Children that are forked while the layer of their parent uses a bucket.


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
    print(json.dumps({"children": children, "parent": work(9)}))
"""


@pytest.mark.parametrize(
    ("how", "place"),
    [
        *(("fork", "there"), ("os.fork", "refuses"), ("forkserver", "there")),
        *(
            pytest.param(how, place, marks=pytest.mark.slow)
            for how, place in (("fork", "refuses"), ("os.fork", "there"), ("forkserver", "refuses"))
        ),
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
    counts = json.loads(done.stdout)

    def asks(process: dict[str, int]) -> bool:
        return any("tier" in name for name in process)

    assert asks(counts["parent"])
    assert all(asks(child) == (how == "forkserver") for child in counts["children"])


#: Opens a bucket, and once more in a child.
OPEN = """
import os, sys, jaxcache
jaxcache.open(sys.argv[1])
if os.fork() == 0:
    try:
        jaxcache.open(sys.argv[1])
    except jaxcache.JaxcacheError as error:
        print(error, "|", error.hint)
    os._exit(0)
os.wait()
"""


def test_a_forked_child_of_a_program_that_has_opened_a_bucket_opens_none(
    newer_python: str, bucket: str, tmp_path: Path
) -> None:
    env = live_environment(newer_python, tmp_path, None)
    done = sh([newer_python, "-c", OPEN, bucket], env=env)
    assert done.returncode == 0, done.stderr
    assert "the process that this one was forked from has opened a bucket" in done.stdout


# A program whose clock is wrong, or jumps while it runs: what it leaves is as with a right one.


#: The first lines of a program: how far its clock is off, in years, one after the other.
CLOCK = """
import itertools, time
_years = itertools.cycle(%r)
_real_time_ns = time.time_ns
time.time_ns = lambda: max(0, _real_time_ns() + int(next(_years) * 365.25 * 86_400e9))
time.time = lambda: time.time_ns() / 1e9
"""
#: A module that only this program has.
THIRD = """
@jax.jit
def third(x):
    return x * %d
third(x)
"""


def test_a_wrong_clock_removes_and_accuses_nothing(
    run_live: RunLive, run_cli: RunCli, tmp_path: Path
) -> None:
    settings = {
        "JAXCACHE_LIVE_MAX_SIZE": "1GB",
        "JAXCACHE_LIVE_SINGLE_FLIGHT": "2s",
        "JAXCACHE_LIVE_TIERS": str(tmp_path / "tier"),
        "JAXCACHE_LIVE_FLUSH": "60s",
    }
    first = run_live(**settings)
    first_names = entries(tmp_path / "cache")
    for number, years in enumerate([(-10,), (10,), (5, -5), (0, -60)], 2):
        before = {path.name for path in entries(tmp_path / "cache")}
        ran = run_live(CLOCK % (years,) + PROGRAM + THIRD % number, **settings)
        assert ran.result == first.result
        assert (ran["hits_local"], ran["misses"]) == (len(first_names), 1)
        assert (ran["troubles"], ran["wait_seconds"]) == (0, 0)
        names = {path.name for path in entries(tmp_path / "cache")}
        assert len(names - before) == 1
        assert names > before
    again = run_live(PROGRAM + THIRD % number, **settings)
    assert (again["misses"], again["rotten"], again["died_loading"]) == (0, 0, 0)
    assert {path.name for path in entries(tmp_path / "tier")} == names
    done = run_cli("verify", "--fix", "--grace", "0s", "-C", tmp_path / "cache")
    assert f"{len(names)} match their checksum" in done.stderr
    assert {path.name for path in entries(tmp_path / "cache")} == names


# A plain JAX with a size cap and the layer at work in one directory.


#: Reads and writes through the layer; the first process, through JAX's own class below it.
WORK = """
import random
from jax._src import compilation_cache as cc
try:
    os.close(os.open(directory + "/plain", os.O_CREAT | os.O_EXCL))
    kind, looks = cc.LRUCache.__mro__[1], 200
except FileExistsError:
    kind, looks = cc.LRUCache, 2000
made = kind(os.environ["JAX_COMPILATION_CACHE_DIR"], max_size=300_000)
choice = random.Random(os.getpid())
for _ in range(looks):
    key = "jit_%d-%064x" % (choice.randrange(150), 7)
    value = made.get(key)
    if value is None:
        made.put(key, cc.compress_executable(b"\\0\\0\\0\\1" + choice.randbytes(4000)))
    else:
        assert len(cc.decompress_executable(value)) == 4004
result = []
"""


def test_a_capped_jax_and_the_layer_disturb_neither(jax_python: str, tmp_path: Path) -> None:
    def size_bytes() -> int:
        return sum(path.stat().st_size for path in entries(tmp_path / "cache"))

    for number, limit_bytes in ((3, 600_000), (1, 300_000)):
        ended = start_together(jax_python, tmp_path, number, WORK, JAXCACHE_LIVE_SINGLE_FLIGHT="0s")
        assert all(p.returncode == 0 for p, _, _ in ended), [err for _, _, err in ended]
        assert size_bytes() <= limit_bytes
