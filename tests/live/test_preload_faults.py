"""Damaged entries and records, deaths and kills, where entries are loaded ahead."""

import json
import os
import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import has_modules
from processes import sh

from jaxcache.core.system import available_cores
from jaxcache.live.frame import DamagedEntryError, decode
from live.conftest import PROGRAM, Ran, RunLive, can_load_ahead, entries, live_environment
from live.loading_ahead import MANY, ON, OTHER_OPTION, START, records, write_record
from live.test_preload import loads
from live.test_start_methods import KERNEL, run_distributed

pytestmark = pytest.mark.jax


def test_damaged_entries_are_compiled_again_and_replaced(
    run_ahead: RunLive, first: Ran, tmp_path: Path
) -> None:
    flipped, torn, gone = entries(tmp_path / "cache")[:3]
    data = bytearray(flipped.read_bytes())
    data[len(data) // 2] ^= 1
    flipped.write_bytes(data)
    torn.write_bytes(torn.read_bytes()[:-9])
    gone.unlink()
    ran = run_ahead()
    assert (ran["rotten"], ran["replaced"], ran["written"]) == (2, 2, 1)
    assert (ran.result, ran["misses"], ran["troubles"]) == (first.result, 3, 0)
    assert run_ahead(wait=first["written"])["preload_used"] == first["written"]


@pytest.mark.usefixtures("first")
def test_a_record_counts_only_if_this_user_alone_wrote_it(
    run_ahead: RunLive, tmp_path: Path
) -> None:
    (path,) = records(tmp_path / "cache")
    good = loads(tmp_path / "cache")
    faults: dict[str, Callable[[], object]] = {
        "writable": lambda: path.chmod(0o666),
        "damaged": lambda: path.write_bytes(path.read_bytes()[:-1]),
        "of another version": lambda: write_record(path, b'{"loads": []}'),
        "of another script": lambda: path.rename(path.with_name("0" * 16)),
    }
    for fault, damage in faults.items():
        damage()
        ran = run_ahead()
        assert (ran["preloaded"], ran["misses"], ran["troubles"]) == (0, 0, 0), fault
        path.with_name("0" * 16).unlink(missing_ok=True)
        assert (loads(tmp_path / "cache"), path.stat().st_mode & 0o022) == (good, 0), fault
    assert run_ahead(wait=1)["preloaded"] > 0  # that run has written a good one


#: Dies while the module ``first`` is loaded ahead.
DEADLY = """
import jax, os, signal
from jaxcache.core.seams.cache import LoadSeam
real = LoadSeam.load
def deadly(self, backend, load, serialized):
    if load.key.startswith("jit_first"):
        os.kill(os.getpid(), signal.SIGKILL)
    return real(self, backend, load, serialized)
LoadSeam.load = deadly
"""


def test_after_a_death_while_loading_ahead_the_entry_stays_and_is_loaded_by_request(
    run_live: RunLive, run_ahead: RunLive, first: Ran, tmp_path: Path
) -> None:
    number = first["written"]
    died = run_live(DEADLY + START + PROGRAM, WAIT="99", check=False, **ON)
    assert died.code == -signal.SIGKILL
    ran = run_ahead()
    assert (ran["preloaded"], ran["died_loading"], ran["hits_local"]) == (0, 0, number)
    assert ran.result == first.result
    assert not (tmp_path / "cache" / ".jaxcache" / "quarantine").exists()
    assert run_ahead(wait=number)["preload_used"] == number


@pytest.mark.usefixtures("first")
def test_after_a_death_the_records_of_other_users_are_removed_too(
    run_live: RunLive, run_ahead: RunLive, tmp_path: Path
) -> None:
    """As far as this user may; whoever sees the mark of the death is the only one."""
    if os.geteuid() != 0:
        pytest.skip("only root may remove the record of another user")
    (path,) = records(tmp_path / "cache")
    run_live(DEADLY + START + PROGRAM, WAIT="99", check=False, **ON)
    other = path.rename(path.with_name("0" * 16))
    os.chown(other, 12345, 12345)
    run_ahead()
    assert not other.exists()


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
    run_live: RunLive, run_ahead: RunLive, first: Ran, tmp_path: Path
) -> None:
    number = first["written"]
    program = START + HANDED_OVER + PROGRAM
    died = run_live(program, WAIT=str(number), check=False, **ON)
    assert died.code == -signal.SIGKILL
    ran = run_ahead(wait=number)
    assert (ran["preload_used"], ran["died_loading"], ran["misses"]) == (number, 0, 0)
    assert not (tmp_path / "cache" / ".jaxcache" / "quarantine").exists()


#: Dies in some loads of executables.
DEADLY_LOAD = """
import os, threading
from jax._src.lib import xla_client
load = xla_client.Client.deserialize_executable
def deadly(client, serialized, *args, **kwargs):
    if %s:
        os.kill(os.getpid(), 9)
    return load(client, serialized, *args, **kwargs)
if hasattr(load, "__nb_signature__"):  # loading ahead reads it
    deadly.__nb_signature__ = load.__nb_signature__
xla_client.Client.deserialize_executable = deadly
"""
#: Dies while JAX itself loads the module ``first``, whose options differ from the record's.
REFUSED = DEADLY_LOAD % "threading.current_thread() is threading.main_thread()"
#: Dies in each load of the module ``first``, as over a damaged executable.
ALWAYS_DEADLY = DEADLY_LOAD % 'b"jit_first" in serialized'


def test_an_entry_that_kills_the_process_in_a_load_by_request_moves_to_quarantine(
    run_live: RunLive, run_ahead: RunLive, first: Ran, tmp_path: Path
) -> None:
    number = first["written"]
    program = REFUSED + START + OTHER_OPTION + PROGRAM
    died = run_live(program, WAIT=str(number), check=False, **ON)
    assert died.code == -signal.SIGKILL
    ran = run_ahead()
    assert (ran["died_loading"], ran["misses"], ran["hits_local"]) == (1, 1, number - 1)


def test_an_entry_that_kills_every_process_is_in_quarantine_after_the_second(
    run_ahead: RunLive, first: Ran, tmp_path: Path
) -> None:
    for _ in range(2):  # ahead, and by request
        died = run_ahead(before=ALWAYS_DEADLY, wait=0, check=False)
        assert died.code == -signal.SIGKILL
    ran = run_ahead(before=ALWAYS_DEADLY)
    assert (ran["died_loading"], ran["misses"], ran.result) == (1, 1, first.result)


_SWEEPS = pytest.mark.slow


def damage(path: Path, choice: random.Random, *, truncates: bool) -> None:
    """Truncate an entry, or flip one of the bits that mean something."""
    whole = path.read_bytes()
    while True:
        bad = bytearray(whole)
        if truncates:
            bad = bad[: choice.randrange(len(whole))]
        else:
            bit = choice.randrange(len(whole) * 8)
            bad[bit // 8] ^= 1 << bit % 8
        try:
            is_damaged = decode(bytes(bad)).content != decode(whole).content
        except DamagedEntryError:
            is_damaged = True
        if is_damaged:
            path.write_bytes(bad)
            return


@pytest.mark.parametrize("number", [12, pytest.param(120, marks=_SWEEPS)], ids=["sample", "sweep"])
def test_no_damaged_entry_is_loaded_ahead(run_ahead: RunLive, tmp_path: Path, number: int) -> None:
    first = run_ahead(MANY, NUMBER=str(number))
    total = len(entries(tmp_path / "cache"))
    at_once = min(total, 64)  # more only as JAX asks for them
    # It is loaded after the damaged ones before it were looked at.
    (sound,) = entries(tmp_path / "cache", f"many{min(number, 56) - 1}-")
    choice = random.Random(5)
    damaged = [path for path in entries(tmp_path / "cache") if path != sound]
    for trial, path in enumerate(damaged):
        damage(path, choice, truncates=trial % 4 == 3)
    ran = run_ahead(MANY, wait=1, NUMBER=str(number))
    counts = (ran["preloaded"], ran["rotten"], ran["replaced"])
    assert counts == (1, len(damaged), len(damaged))
    assert (ran.result, ran["troubles"]) == (first.result, 0)
    again = run_ahead(MANY, wait=at_once, NUMBER=str(number))
    assert again["preload_used"] >= at_once
    assert (again["rotten"], again["misses"], again.result) == (0, 0, first.result)


#: Dies so many seconds after the third load ahead has begun.
MORTAL = """
import jax, os, signal, threading
from jaxcache.core.seams.cache import LoadSeam
real = LoadSeam.load
begun = []
def mortal(self, *args):
    begun.append(None)
    if len(begun) == 3:
        seconds = float(os.environ["SECONDS"])
        threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGKILL)).start()
    return real(self, *args)
LoadSeam.load = mortal
"""


@pytest.mark.parametrize("kills", [2, pytest.param(100, marks=_SWEEPS)], ids=["sample", "sweep"])
def test_a_kill_while_loading_ahead_costs_no_entry(
    run_live: RunLive, run_ahead: RunLive, tmp_path: Path, kills: int
) -> None:
    env = {"NUMBER": "12", "JAXCACHE_LIVE_PRELOAD": "1"}
    first = run_ahead(MANY, **env)
    total = len(entries(tmp_path / "cache"))
    choice = random.Random(7)
    for _ in range(kills):
        seconds = str(choice.random() * 0.02)
        died = run_live(MORTAL + START + MANY, check=False, SECONDS=seconds, WAIT="99", **env)
        assert died.code == -signal.SIGKILL
        ran = run_ahead(MANY, **env)
        assert (ran["died_loading"], ran["hits_local"], ran.result) == (0, total, first.result)
    assert not (tmp_path / "cache" / ".jaxcache" / "quarantine").exists()


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


def test_an_entry_that_changes_after_it_was_read_is_read_again(
    run_ahead: RunLive, first: Ran
) -> None:
    number = first["written"]
    ran = run_ahead(SPOILED + PROGRAM, wait=number)
    assert (ran["rotten"], ran["replaced"], ran["preload_used"]) == (1, 1, number - 1)
    assert ran.result == first.result


# Loading ahead in threads, forked children, distributed programs and notebooks: as plain JAX.


#: Counts JAX's own events, and waits until so many executables are loaded ahead as ``WAIT`` says.
BEGIN = """
import collections, json, os, sys, time
import jax
events = collections.Counter()
jax.monitoring.register_event_listener(lambda name, **_: events.update([name]))
def begin():
    jax.devices()
    module = sys.modules.get("jaxcache.live.layer")
    layer = module and module.LAYER
    end = time.monotonic() + 120
    while layer and layer.counters["preloaded"] < int(os.environ["WAIT"]):
        assert time.monotonic() < end
        time.sleep(0.01)
    return layer
def tell(layer, result):
    cache = {n: c for n, c in events.items() if n.startswith("/jax/compilation_cache/")}
    used = int(layer.counters["preload_used"]) if layer else 0
    print(json.dumps({"result": result, "events": cache, "used": used}), flush=True)
"""
THREADS = """
from concurrent.futures import ThreadPoolExecutor
import jax.numpy as jnp, numpy as np
layer = begin()
x = jax.device_put(np.arange(4, dtype=np.float32))
def make(number):
    def function(x):
        return jnp.sin(x * number) @ x
    function.__name__ = f"function{number}"
    return jax.jit(function)
with ThreadPoolExecutor(4) as pool:
    tell(layer, list(pool.map(lambda number: make(number)(x).tolist(), range(6))))
"""
#: Forks before any backend is there; the child and then the parent compute.
FORK = """
child = os.fork()
if child:
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
layer = begin()
"""
END_FORK = """
tell(layer, result)
sys.stdout.flush()
if not child:
    os._exit(0)
"""
COMPUTE = f"layer = begin()\n{PROGRAM}\ntell(layer, result)"
NOTEBOOK = [BEGIN + "layer = begin()", PROGRAM, "tell(layer, result)"]
Told = list[dict[str, Any]]
Start = Callable[[dict[str, str]], Told]


def run(command: list[str], env: dict[str, str], cwd: Path) -> Told:
    """Run one process, and return what it and its children print."""
    done = sh(command, env=env, cwd=cwd)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


@pytest.fixture(params=["threads", "fork", "distributed", "notebook"])
def start(request: pytest.FixtureRequest, jax_python: str, tmp_path: Path) -> Start:
    """Start a program in one way."""
    if request.param == "distributed":
        return lambda env: run_distributed(jax_python, BEGIN + COMPUTE, env)
    if request.param == "notebook" and not has_modules(jax_python, "ipykernel", "jupyter_client"):
        pytest.skip("no ipykernel beside this jax")
    words = {
        "threads": [BEGIN + THREADS],
        "fork": [BEGIN + FORK + PROGRAM + END_FORK],
        "notebook": [KERNEL, json.dumps(NOTEBOOK)],
    }[request.param]
    return lambda env: run([jax_python, "-c", *words], env, tmp_path)


def test_counts_keys_and_results_are_those_of_plain_jax(
    start: Start, jax_python: str, tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    env = live_environment(jax_python, tmp_path, cache) | {
        "JAXCACHE_LIVE_PRELOAD": "1",
        "JAXCACHE_LIVE_EVERY_PROCESS": "1",
        "HOME": str(tmp_path),
        "WAIT": "0",
    }
    filled = start(env)
    names = [path.name for path in entries(cache)]
    plain = start(env | {"JAXCACHE_LIVE": "0"})
    loads = min(told["events"]["/jax/compilation_cache/cache_hits"] for told in plain)
    assert loads > 0
    is_on = can_load_ahead(jax_python) and available_cores() > 1
    ahead = start(env | {"WAIT": str(loads if is_on else 0)})
    assert [told["events"] for told in ahead] == [told["events"] for told in plain]
    assert [told["result"] for told in ahead] == [told["result"] for told in filled]
    assert [told["result"] for told in ahead] == [told["result"] for told in plain]
    assert [path.name for path in entries(cache)] == names
    assert all(told["used"] == (loads if is_on else 0) for told in ahead)
