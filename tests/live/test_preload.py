"""Executables that are loaded before JAX asks for them, inside a real JAX."""

import hashlib
import json
import os
import random
import signal
from pathlib import Path

import pytest

from jaxcache.core.system import available_cores
from live.conftest import ON, PLAIN, PROGRAM, START, Ran, RunLive, can_load_ahead, entries

pytestmark = pytest.mark.jax


def records(cache: Path) -> list[Path]:
    """The records of last runs."""
    return sorted((cache / ".jaxcache" / "live" / "starts").glob("*"))


# Answers to JAX's requests.
#: Asks for one module with another compile option than the last run did.
OTHER_OPTION = """
from jax._src import compilation_cache as cc
real = cc.get_executable_and_time
def other(key, options, *rest):
    if key.startswith("jit_first"):
        options.profile_version = 7
    return real(key, options, *rest)
cc.get_executable_and_time = other
"""


def test_a_load_with_other_options_is_left_to_jax(run_ahead: RunLive, first: Ran) -> None:
    number = first["written"]
    ran = run_ahead(OTHER_OPTION + PROGRAM, wait=number)
    used = (ran["preloaded"], ran["preload_used"], ran["preload_dropped"])
    assert (*used, ran["hits_local"]) == (number, number - 1, 1, number)
    assert ran.result == first.result


#: XLA cannot load one module yet, such as one with a custom call that is registered later.
FAILING = """
from jaxcache.core.seams.cache import LoadSeam
real = LoadSeam.load
def failing(self, backend, load, serialized):
    if load.key.startswith("jit_first"):
        raise RuntimeError("no custom call of that name")
    return real(self, backend, load, serialized)
LoadSeam.load = failing
"""


def test_what_cannot_be_loaded_yet_is_left_to_jax(run_ahead: RunLive, first: Ran) -> None:
    number = first["written"]
    ran = run_ahead(before=FAILING, wait=number - 1)
    assert (ran["preloaded"], ran["preload_used"]) == (number - 1, number - 1)
    assert (ran["hits_local"], ran["troubles"], ran.result) == (number, 0, first.result)


#: A JAX whose loads take one more argument.
NEWER = """
from jax._src.lib import xla_client
real = xla_client.Client.deserialize_executable
def newer(*args, memory=0, **kwargs):
    return real(*args, **kwargs)
known = getattr(real, "__nb_signature__", ())  # JAX before 0.8 has none
newer.__nb_signature__ = (*known, ("def deserialize_executable(memory: int)",))
xla_client.Client.deserialize_executable = newer
"""


def test_an_unknown_argument_switches_it_off(
    run_live: RunLive, run_ahead: RunLive, first: Ran
) -> None:
    """It says so only where somebody asks for it."""
    ran = run_ahead(before=NEWER)
    assert (ran["preloaded"], ran["hits_local"]) == (0, first["written"])
    assert "nothing is loaded ahead" in ran.err
    assert "memory" in ran.err
    ran = run_live(NEWER + PROGRAM)
    assert (ran["preloaded"], ran["hits_local"], ran["troubles"]) == (0, first["written"], 0)
    assert "ahead" not in ran.err


def test_it_is_on_where_nobody_sets_it(run_ahead: RunLive, first: Ran) -> None:
    number = first["written"]
    assert run_ahead(wait=number, JAXCACHE_LIVE_PRELOAD=None)["preload_used"] == number
    assert run_ahead(JAXCACHE_LIVE_PRELOAD="0")["preloaded"] == 0


def test_on_one_core_nothing_is_loaded_ahead(run_ahead: RunLive, first: Ran) -> None:
    one_core = "import os\nos.sched_setaffinity(0, list(os.sched_getaffinity(0))[:1])\n"
    ran = run_ahead(before=one_core)
    assert (ran["preloaded"], ran["hits_local"]) == (0, first["written"])


#: Counts what was loaded ahead before and after, and asks for everything again.
DROPPED = """
def forget():
    %s
forget()
ready = layer.counters["preloaded"]
result = [first(x).tolist(), second(x).tolist()]
assert layer.counters["preload_used"] + layer.counters["preload_dropped"] == ready
"""


@pytest.mark.parametrize(
    "forget",
    ["jax.clear_caches()", "from jax._src import compilation_cache as cc; cc.reset_cache()"],
    ids=["clear_caches", "reset_cache"],
)
def test_jax_forgets_what_is_ready_too(run_ahead: RunLive, first: Ran, forget: str) -> None:
    used = PROGRAM.partition("result =")[0]
    ran = run_ahead(used + DROPPED % forget, wait=first["written"])
    assert ran["preload_dropped"] >= 2
    assert (ran["misses"], ran.result) == (0, first.result)


#: Only one executable fits, and nobody asks for it in time.
IMPATIENT = """
from jaxcache.live import preload
preload._UNUSED_SECONDS = 0.1
preload._MAX_READY_BYTES = 1
"""
#: Waits until what is ready was dropped.
UNUSED = """
while not layer.counters["preload_dropped"] and time.monotonic() < end:
    time.sleep(0.01)
"""


def test_what_nobody_asks_for_is_dropped(run_ahead: RunLive, first: Ran) -> None:
    ran = run_ahead(UNUSED + PROGRAM, before=IMPATIENT, wait=1)
    counts = (ran["preloaded"], ran["preload_dropped"], ran["preload_used"], ran["hits_local"])
    assert counts == (1, 1, 0, first["written"])


#: So many modules, each with an entry of its own.
MANY = """
import numpy as np
x = jax.device_put(np.arange(4, dtype=np.float32))
def make(number):
    def function(x):
        return jax.numpy.sin(x * (number + 1)) @ x
    function.__name__ = f"many{number}"
    return jax.jit(function)
result = [make(number)(x).tolist() for number in range(int(os.environ["NUMBER"]))]
"""
#: Few entries are loaded beyond those that JAX has asked for.
CAREFUL = "from jaxcache.live import preload\npreload._MAX_UNASKED = 2\n"
#: Asks for half of the entries, and waits until more are loaded ahead than without that.
HALF = """
half = [make(number)(x).tolist() for number in range(6)]
while layer.counters["preloaded"] < 4 and time.monotonic() < end:
    time.sleep(0.01)
"""


def test_a_record_of_another_program_costs_few_loads(run_ahead: RunLive) -> None:
    first = run_ahead(MANY, NUMBER="12")
    impatient = CAREFUL + "preload._UNUSED_SECONDS = 0.1\n"
    other = run_ahead(UNUSED + "result = 0", before=impatient, wait=3)
    assert (other["preloaded"], other["preload_dropped"]) == (3, 3)
    program = MANY.replace("result =", f"{HALF}result =")
    again = run_ahead(program, before=CAREFUL, wait=3, NUMBER="12")
    assert again["preloaded"] >= 4
    assert (again.result, again["misses"]) == (first.result, 0)


#: A child forked while everything is ready, and while a thread of the parent holds the lock.
FORKED = """
import shutil
import signal
with layer.preload._lock:
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        is_on = layer.preload.is_on
        layer.preload.drop()
        layer.preload.close()
        os._exit(9 if is_on or layer.counters["preloaded"] else 0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""


def test_a_fork_takes_nothing_along(run_ahead: RunLive, first: Ran) -> None:
    number = first["written"]
    ran = run_ahead(FORKED + PROGRAM, wait=number)
    assert (ran["preload_used"], "Exception ignored" in ran.err) == (number, False)


def test_a_cap_set_after_the_backends_started_counts(run_ahead: RunLive, tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir()
    cap = 'jax.config.update("jax_compilation_cache_max_size", 1)\n'
    assert run_ahead(cap + PROGRAM)["written"] == 0
    assert entries(tmp_path / "cache") == []


def test_loading_ahead_is_no_use(run_ahead: RunLive, first: Ran, tmp_path: Path) -> None:
    number = first["written"]
    long_ago = 10**18
    for path in entries(tmp_path / "cache"):
        os.utime(path, ns=(long_ago, long_ago))
    assert run_ahead("result = 0", wait=number)["preloaded"] == number
    assert {p.stat().st_atime_ns for p in entries(tmp_path / "cache")} == {long_ago}


def test_each_program_has_its_record(run_ahead: RunLive, first: Ran, tmp_path: Path) -> None:
    ran = run_ahead(before="import os\nos.chdir('/')\n")
    assert (ran["preloaded"], ran["hits_local"]) == (0, first["written"])
    assert len(records(tmp_path / "cache")) == 2


def test_what_only_a_tier_has_is_loaded_ahead(run_ahead: RunLive, tmp_path: Path) -> None:
    """A damaged entry here is not: JAX's request reports it, although a tier has it."""
    tier = {"JAXCACHE_LIVE_TIERS": str(tmp_path / "tier")}
    first = run_ahead(**tier)
    number = len(entries(tmp_path / "tier"))
    (damaged,) = entries(tmp_path / "cache", "first")
    for entry in entries(tmp_path / "cache"):
        entry.unlink()
    damaged.write_bytes(b"entry")
    ran = run_ahead(wait=number - 1, **tier)
    assert (ran["preload_used"], ran["rotten"]) == (number - 1, 1)
    assert (ran["hits_tier"], ran["misses"], ran.result) == (number, 0, first.result)


# Modules with host callbacks.
#: Every way to call back into Python, and one module that does not.
CALLBACKS = """
import jax.numpy as jnp, numpy as np
seen = []
one = jax.ShapeDtypeStruct((), np.float32)

@jax.jit
def printed(x):
    jax.debug.print("sum {}", x.sum())
    return x + 1

@jax.jit
def pure(x):
    return jax.pure_callback(lambda v: np.float32(v.sum()), one, x) * 2

@jax.jit
def scanned(x):
    def body(carry, _):
        jax.debug.callback(lambda v: seen.append(float(v)), carry.sum())
        return carry * 2, carry.sum()
    return jax.lax.scan(body, x, None, length=3)[1]

@jax.jit
def plain(x):
    return jnp.sin(x) @ jnp.linalg.cholesky(x @ x.T + jnp.eye(2))

x = jax.device_put(np.asarray([[0.5, 1.5], [2.5, 3.5]], np.float32))
result = [np.asarray(f(x)).tolist() for f in (printed, pure, scanned, plain)]
jax.effects_barrier()
result.append(sorted(seen))
"""
CALLING = ("printed", "pure", "scanned")


def test_what_calls_back_is_never_loaded_ahead(run_ahead: RunLive, tmp_path: Path) -> None:
    first = run_ahead(CALLBACKS)
    # JAX before 0.11 caches none that calls back.
    cached = {f"jit_{name}" for name in CALLING if entries(tmp_path / "cache", name)}
    (path,) = records(tmp_path / "cache")
    document = json.loads(path.read_bytes().partition(b"\n")[2])
    recorded = {key.rpartition("-")[0]: is_plain for key, _, _, is_plain in document["loads"]}
    assert {module for module, is_plain in recorded.items() if not is_plain} == cached
    ready = len(entries(tmp_path / "cache")) - len(cached)
    ahead = run_ahead(CALLBACKS, wait=ready)
    counts = (ahead["preloaded"], ahead["preload_used"], ahead["hits_local"])
    assert (*counts, ahead.result) == (ready, ready, ready + len(cached), first.result)
    assert ahead.out.splitlines()[:-1] == ["sum 8.0"]
    # A request with callbacks is left to JAX whatever the record says.
    document["loads"] = [[*load[:3], True] for load in document["loads"]]
    text = json.dumps(document).encode()
    path.write_bytes(hashlib.sha256(text).hexdigest().encode() + b"\n" + text)
    claimed = run_ahead(CALLBACKS, wait=ready + len(cached))
    counts = (claimed["preloaded"], claimed["preload_used"], claimed.result)
    assert counts == (ready + len(cached), ready, first.result)


# Deaths, kills and damage.
#: Dies in each load of the module ``first``, as over a damaged executable.
DEADLY = """
import os
from jax._src.lib import xla_client
load = xla_client.Client.deserialize_executable
def deadly(client, serialized, *args, **kwargs):
    if b"jit_first" in serialized:
        os.kill(os.getpid(), 9)
    return load(client, serialized, *args, **kwargs)
if hasattr(load, "__nb_signature__"):  # loading ahead reads it
    deadly.__nb_signature__ = load.__nb_signature__
xla_client.Client.deserialize_executable = deadly
"""


def test_an_entry_kills_two_processes_at_most(
    run_ahead: RunLive, first: Ran, tmp_path: Path
) -> None:
    """After a death in a load ahead, which may have had another cause, JAX's request loads it."""
    number = first["written"]
    assert run_ahead(before=DEADLY, wait=99, check=False).code == -signal.SIGKILL
    ran = run_ahead()
    assert (ran["preloaded"], ran["died_loading"], ran["hits_local"]) == (0, 0, number)
    assert not (tmp_path / "cache" / ".jaxcache" / "quarantine").exists()
    for _ in range(2):  # ahead, and by request
        assert run_ahead(before=DEADLY, check=False).code == -signal.SIGKILL
    ran = run_ahead(before=DEADLY)
    assert (ran["died_loading"], ran["misses"], ran.result) == (1, 1, first.result)


#: Dies while JAX is given the module ``first``, which is ready.
HANDED_OVER = """
from jaxcache.core.seams.cache import LoadSeam
real = LoadSeam.describe_call
def deadly(self, key, *rest):
    if key.startswith("jit_first"):
        os.kill(os.getpid(), 9)
    return real(self, key, *rest)
LoadSeam.describe_call = deadly
"""


def test_a_kill_while_an_executable_is_handed_over_costs_no_entry(
    run_ahead: RunLive, first: Ran, tmp_path: Path
) -> None:
    number = first["written"]
    died = run_ahead(HANDED_OVER + PROGRAM, wait=number, check=False)
    assert died.code == -signal.SIGKILL
    ran = run_ahead(wait=number)
    assert (ran["preload_used"], ran["died_loading"], ran["misses"]) == (number, 0, 0)
    assert not (tmp_path / "cache" / ".jaxcache" / "quarantine").exists()


@pytest.mark.parametrize(
    "number", [12, pytest.param(120, marks=pytest.mark.slow)], ids=["sample", "sweep"]
)
def test_no_damaged_entry_is_loaded_ahead(run_ahead: RunLive, tmp_path: Path, number: int) -> None:
    first = run_ahead(MANY, NUMBER=str(number))
    total = len(entries(tmp_path / "cache"))
    at_once = min(total, 64)  # more only as JAX asks for them
    # It is loaded after the damaged ones before it were looked at.
    (sound,) = entries(tmp_path / "cache", f"many{min(number, 56) - 1}-")
    choice = random.Random(5)
    damaged = [path for path in entries(tmp_path / "cache") if path != sound]
    for trial, path in enumerate(damaged):
        data = bytearray(path.read_bytes())
        if trial % 4 == 3:
            del data[choice.randrange(len(data)) :]
        else:
            data[-choice.randrange(1, 5)] ^= 1 << choice.randrange(8)  # a bit of the checksum
        path.write_bytes(data)
    ran = run_ahead(MANY, wait=1, NUMBER=str(number))
    counts = (ran["preloaded"], ran["rotten"], ran["replaced"])
    assert counts == (1, len(damaged), len(damaged))
    assert (ran.result, ran["troubles"]) == (first.result, 0)
    again = run_ahead(MANY, wait=at_once, NUMBER=str(number))
    assert again["preload_used"] >= at_once
    assert (again["rotten"], again["misses"], again.result) == (0, 0, first.result)


#: Spoils an entry that the thread has read, and loaded ahead.
SPOILED = """
import glob
(path,) = glob.glob(os.environ["JAX_COMPILATION_CACHE_DIR"] + "/jit_first-*-cache")
with open(path, "r+b") as file:
    last = file.seek(-1, os.SEEK_END)
    byte = file.read()[0]
    file.seek(last)
    file.write(bytes([byte ^ 1]))
"""


def test_an_entry_that_changes_is_read_again(run_ahead: RunLive, first: Ran) -> None:
    number = first["written"]
    ran = run_ahead(SPOILED + PROGRAM, wait=number)
    assert (ran["rotten"], ran["replaced"], ran["preload_used"]) == (1, 1, number - 1)
    assert ran.result == first.result


# Plain JAX as the judge, of several threads.
#: Counts JAX's own events.
COUNT = """
import collections, os
import jax
events = collections.Counter()
jax.monitoring.register_event_listener(lambda name, **_: events.update([name]))
"""
COUNTED = """
cache = {n: c for n, c in events.items() if n.startswith("/jax/compilation_cache/")}
result = {"values": result, "events": cache, "used": layer and layer.counters["preload_used"]}
"""
THREADS = """
from concurrent.futures import ThreadPoolExecutor
import jax.numpy as jnp, numpy as np
x = jax.device_put(np.arange(4, dtype=np.float32))
def make(number):
    def function(x):
        return jnp.sin(x * number) @ x
    function.__name__ = f"function{number}"
    return jax.jit(function)
with ThreadPoolExecutor(4) as pool:
    result = list(pool.map(lambda number: make(number)(x).tolist(), range(6)))
"""


def test_counts_keys_and_results_are_those_of_plain_jax(
    run_live: RunLive, jax_python: str, tmp_path: Path
) -> None:
    program = COUNT + START + THREADS + COUNTED
    filled = run_live(program, **ON).result
    names = [path.name for path in entries(tmp_path / "cache")]
    plain = run_live(program, **ON | PLAIN).result
    hits = plain["events"]["/jax/compilation_cache/cache_hits"]
    loads = hits if can_load_ahead(jax_python) and available_cores() > 1 else 0
    ahead = run_live(program, WAIT=str(loads), **ON).result
    assert ahead["events"] == plain["events"]
    assert ahead["values"] == filled["values"] == plain["values"]
    assert [path.name for path in entries(tmp_path / "cache")] == names
    assert (ahead["used"], hits > 0) == (loads, True)
