"""Executables that are loaded before JAX asks for them, inside a real JAX."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from conftest import RunCli, jax_version

from jaxcache.render.stats import live_line
from live.conftest import PROGRAM, Ran, RunLive, entries
from live.loading_ahead import MANY, ON, OTHER_OPTION, START, records, write_record

pytestmark = pytest.mark.jax


def test_a_load_with_other_options_is_left_to_jax(run_ahead: RunLive, first: Ran) -> None:
    number = first["written"]
    ran = run_ahead(OTHER_OPTION + PROGRAM, wait=number)
    used = (ran["preloaded"], ran["preload_used"], ran["preload_dropped"])
    assert (*used, ran["hits_local"]) == (number, number - 1, 1, number)
    assert ran.result == first.result


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


def test_an_argument_that_is_not_known_switches_it_off(run_ahead: RunLive, first: Ran) -> None:
    ran = run_ahead(before=NEWER)
    assert (ran["preloaded"], ran["hits_local"]) == (0, first["written"])
    assert "nothing is loaded ahead" in ran.err
    assert "memory" in ran.err


def test_a_jax_that_loads_nothing_ahead_is_not_reported_where_nobody_sets_it(
    run_live: RunLive,
) -> None:
    first = run_live(NEWER + PROGRAM)
    ran = run_live(NEWER + PROGRAM)
    assert (ran["preloaded"], ran["hits_local"], ran["troubles"]) == (0, first["written"], 0)
    assert "ahead" not in first.err + ran.err


def test_it_is_on_where_nobody_sets_it(run_ahead: RunLive) -> None:
    number = run_ahead(JAXCACHE_LIVE_PRELOAD=None)["written"]
    assert run_ahead(wait=number, JAXCACHE_LIVE_PRELOAD=None)["preload_used"] == number


def test_on_one_core_nothing_is_loaded_ahead(run_ahead: RunLive, first: Ran) -> None:
    ran = run_ahead(
        before="import os\nos.sched_setaffinity(0, list(os.sched_getaffinity(0))[:1])\n"
    )
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
def test_what_is_ready_is_dropped_where_jax_forgets(
    run_ahead: RunLive, first: Ran, forget: str
) -> None:
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
    other = run_ahead(
        UNUSED + "result = 0", before=CAREFUL + "preload._UNUSED_SECONDS = 0.1\n", wait=3
    )
    assert (other["preloaded"], other["preload_dropped"]) == (3, 3)
    functions = MANY.partition("result =")
    again = run_ahead(
        functions[0] + HALF + "".join(functions[1:]), before=CAREFUL, wait=3, NUMBER="12"
    )
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
    assert ran["preload_used"] == number


def test_a_cap_set_after_the_backends_started_counts(run_ahead: RunLive, tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir()
    cap = 'jax.config.update("jax_compilation_cache_max_size", 1)\n'
    assert run_ahead(cap + PROGRAM)["written"] == 0
    assert entries(tmp_path / "cache") == []


def test_loading_ahead_is_no_use_of_an_entry(
    run_ahead: RunLive, first: Ran, tmp_path: Path
) -> None:
    number = first["written"]
    long_ago = 10**18
    for path in entries(tmp_path / "cache"):
        os.utime(path, ns=(long_ago, long_ago))
    assert run_ahead("result = 0", wait=number)["preloaded"] == number
    assert {p.stat().st_atime_ns for p in entries(tmp_path / "cache")} == {long_ago}


@pytest.mark.parametrize("other", ["directory", "notebook"])
def test_programs_without_a_script_have_a_record_each(
    run_ahead: RunLive, first: Ran, tmp_path: Path, other: str
) -> None:
    if other == "directory":
        ran = run_ahead(before="import os\nos.chdir('/')\n")
    else:
        ran = run_ahead(JPY_SESSION_NAME="/home/other.ipynb")
    assert (ran["preloaded"], ran["hits_local"]) == (0, first["written"])
    assert len(records(tmp_path / "cache")) == 2


def test_run_counts_what_was_loaded_ahead_as_hits(
    run_cli: RunCli, run_ahead: RunLive, first: Ran, jax_python: str, tmp_path: Path
) -> None:
    """In a Python without jaxcache, and for whoever listens to JAX."""
    number = first["written"]
    cache = tmp_path / "cache"
    (tmp_path / "program.py").write_text(START + PROGRAM)
    env = ON | {"PYTHONWARNINGS": "", "JAX_PLATFORMS": "cpu"}
    command = ("run", "--live", "-C", cache, "--json", "--", jax_python, tmp_path / "program.py")
    for wait in (0, number):  # the program has another name than that of the first run
        done = run_cli(*command, env=env | {"WAIT": str(wait)})
        document = json.loads(done.stdout)
        assert document["summary"]["hits"] == number, done.stderr
    (process,) = document["processes"]
    counts = {n: c for n, c in process["counters"].items() if n.startswith("preload")}
    assert counts.pop("preload_hidden_seconds") > 0
    assert counts == {"preloaded": number, "preload_used": number}
    totals = json.loads(run_cli("stats", "-C", cache, "--json").stdout)["live"]
    assert totals["preload_used"] == number
    line = live_line(totals)
    assert f"{number} loaded ahead" in line
    assert line.endswith("of loads hidden")


def test_an_entry_that_only_a_tier_has_is_fetched_and_loaded_ahead(
    run_ahead: RunLive, tmp_path: Path
) -> None:
    tier = {"JAXCACHE_LIVE_TIERS": str(tmp_path / "tier")}
    first = run_ahead(**tier)
    number = len(entries(tmp_path / "tier"))
    for entry in entries(tmp_path / "cache"):
        entry.unlink()
    ran = run_ahead(wait=number, **tier)
    assert (ran["preload_used"], ran["hits_tier"], ran["misses"]) == (number, number, 0)
    assert ran.result == first.result


def test_a_damaged_entry_is_counted_although_a_tier_has_it(
    run_ahead: RunLive, tmp_path: Path
) -> None:
    tier = {"JAXCACHE_LIVE_TIERS": str(tmp_path / "tier")}
    first = run_ahead(**tier)
    (path,) = entries(tmp_path / "cache", "first")
    path.write_bytes(path.read_bytes()[:-1])
    ran = run_ahead(wait=first["written"] - 1, **tier)
    assert (ran["rotten"], ran["hits_tier"], ran["misses"]) == (1, 1, 0)
    assert ran.result == first.result


# Modules with host callbacks, and custom calls, where entries are loaded ahead.


def loads(cache: Path) -> dict[str, bool]:
    """The modules of the only record, and whether each was loaded without callbacks."""
    (path,) = records(cache)
    document = json.loads(path.read_bytes().partition(b"\n")[2])
    return {key.rpartition("-")[0]: is_plain for key, _, _, is_plain in document["loads"]}


#: Every way to call back into Python, and one module that does not.
CALLBACKS = """
import jax.numpy as jnp, numpy as np
from jax.experimental import io_callback
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
def io(x):
    return io_callback(lambda v: (seen.append(float(v.sum())), np.float32(1))[1], one, x)

@jax.jit
def scanned(x):
    def body(carry, _):
        jax.debug.callback(lambda v: seen.append(float(v)), carry.sum())
        return carry * 2, carry.sum()
    return jax.lax.scan(body, x, None, length=3)[1]

@jax.jit
def mapped(x):
    row = lambda r: jax.pure_callback(lambda v: np.float32(v[0]), one, r, vmap_method="sequential")
    return jax.vmap(row)(x)

@jax.jit
def plain(x):
    return jnp.sin(x) @ jnp.linalg.cholesky(x @ x.T + jnp.eye(2))

x = jax.device_put(np.asarray([[0.5, 1.5], [2.5, 3.5]], np.float32))
result = [np.asarray(f(x)).tolist() for f in (printed, pure, io, scanned, mapped, plain)]
jax.effects_barrier()
result.append(sorted(seen))
"""
CALLING = ("printed", "pure", "io", "scanned", "mapped")


def test_what_calls_back_into_python_is_never_loaded_ahead(
    run_ahead: RunLive, tmp_path: Path
) -> None:
    without = run_ahead(CALLBACKS, JAXCACHE_LIVE_PRELOAD="0")
    assert records(tmp_path / "cache") == []
    first = run_ahead(CALLBACKS)
    recorded = loads(tmp_path / "cache")
    cached = [name for name in CALLING if entries(tmp_path / "cache", name)]
    assert recorded["jit_plain"]
    assert not any(recorded[f"jit_{name}"] for name in cached)  # JAX before 0.11 caches none
    ready = len(entries(tmp_path / "cache")) - len(cached)
    ahead = run_ahead(CALLBACKS, wait=ready)
    assert ahead["preloaded"] == ahead["preload_used"] == ready
    assert without.result == first.result == ahead.result
    assert without.out.splitlines()[:-1] == ahead.out.splitlines()[:-1] == ["sum 8.0"]
    assert ahead["hits_local"] == first["hits_local"] == len(entries(tmp_path / "cache"))


def test_a_request_with_callbacks_is_left_to_jax_whatever_the_record_says(
    run_ahead: RunLive, jax_python: str, tmp_path: Path
) -> None:
    if jax_version(jax_python) < (0, 11):
        pytest.skip("this JAX caches no module with callbacks")
    cache = tmp_path / "cache"
    good = run_ahead(CALLBACKS)
    (path,) = records(cache)
    document = json.loads(path.read_bytes().partition(b"\n")[2])
    document["loads"] = [[*load[:3], True] for load in document["loads"]]
    write_record(path, json.dumps(document).encode())
    ran = run_ahead(CALLBACKS, wait=len(entries(cache)))
    assert ran["preloaded"] == len(entries(cache))
    assert ran["preload_used"] == len(entries(cache)) - len(CALLING)
    assert ran.result == good.result


#: A custom call by XLA's foreign function interface.
TWICE = """
#include "xla/ffi/api/ffi.h"
namespace ffi = xla::ffi;
static ffi::Error twice(ffi::Buffer<ffi::F32> x, ffi::ResultBuffer<ffi::F32> y) {
  for (size_t i = 0; i < x.element_count(); ++i) y->typed_data()[i] = 2 * x.typed_data()[i];
  return ffi::Error::Success();
}
XLA_FFI_DEFINE_HANDLER_SYMBOL(
    Twice, twice, ffi::Ffi::Bind().Arg<ffi::Buffer<ffi::F32>>().Ret<ffi::Buffer<ffi::F32>>());
"""
REGISTER = """
import ctypes, os, jax
library = ctypes.cdll.LoadLibrary(os.environ["LIBRARY"])
jax.ffi.register_ffi_target("jaxcache_twice", jax.ffi.pycapsule(library.Twice), platform="cpu")
"""
CUSTOM = """
import numpy as np
@jax.jit
def doubled(x):
    return jax.ffi.ffi_call("jaxcache_twice", jax.ShapeDtypeStruct((3,), np.float32))(x) + 1
@jax.jit
def factor(x):
    return jax.numpy.linalg.cholesky(x)  # by LAPACK, a custom call of JAX's own
values = (np.arange(3, dtype=np.float32), np.eye(3, dtype=np.float32) * 4)
result = [f(jax.device_put(x)).tolist() for f, x in zip((doubled, factor), values)]
"""


def test_custom_calls_give_the_same_results(
    run_ahead: RunLive, jax_python: str, tmp_path: Path
) -> None:
    if shutil.which("g++") is None:
        pytest.skip("no C++ compiler")
    look = [jax_python, "-c", "import jax; print(jax.ffi.include_dir())"]
    headers = subprocess.check_output(look, text=True).strip()
    (tmp_path / "twice.cc").write_text(TWICE)
    library = tmp_path / "twice.so"
    compiler = ["g++", "-shared", "-fPIC", "-std=c++17", "-I", headers, tmp_path / "twice.cc"]
    subprocess.run([*compiler, "-o", library], check=True)
    first = run_ahead(CUSTOM, before=REGISTER, LIBRARY=str(library))
    number = len(entries(tmp_path / "cache"))
    assert entries(tmp_path / "cache", "doubled")
    assert first.result[0] == [1.0, 3.0, 5.0]
    ran = run_ahead(CUSTOM, before=REGISTER, wait=number, LIBRARY=str(library))
    assert ran["preload_used"] == number
    # XLA cannot load that module before it is registered; JAX loads it on request
    late = run_ahead(REGISTER + CUSTOM, wait=number - 1, LIBRARY=str(library))
    assert late["preloaded"] >= number - 1
    for each in (ran, late):
        assert (each["hits_local"], each["misses"], each.result) == (number, 0, first.result)
