"""Loading ahead in threads, forked children, distributed programs and notebooks: as plain JAX."""

import json
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import has_modules

from jaxcache.core.system import available_cores
from live.conftest import PROGRAM, entries, live_environment
from live.test_start_methods import DISTRIBUTED, KERNEL

pytestmark = pytest.mark.jax
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
THREADS = (
    BEGIN
    + """
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
)
#: Forks before any backend is there; the child and then the parent compute.
FORKED = (
    BEGIN
    + """
child = os.fork()
if child:
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
layer = begin()
"""
    + PROGRAM
    + """
tell(layer, result)
sys.stdout.flush()
if not child:
    os._exit(0)
"""
)
TOGETHER = (
    DISTRIBUTED
    + BEGIN
    + "layer = begin()"
    + PROGRAM
    + """
tell(layer, result)
jax.distributed.shutdown()
"""
)
NOTEBOOK = [BEGIN + "layer = begin()", PROGRAM, "tell(layer, result)"]

Told = list[dict[str, Any]]
Start = Callable[[dict[str, str]], Told]


def run(command: list[str], env: dict[str, str], cwd: Path) -> Told:
    """Run one process, and return what it and its children print."""
    done = subprocess.run(
        command, env=env, cwd=cwd, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


@pytest.fixture(params=["threads", "fork", "distributed", "notebook"])
def start(request: pytest.FixtureRequest, jax_python: str, tmp_path: Path) -> Start:
    """Start a program in one way."""
    if request.param == "threads":
        return lambda env: run([jax_python, "-c", THREADS], env, tmp_path)
    if request.param == "fork":
        return lambda env: run([jax_python, "-c", FORKED], env, tmp_path)
    if request.param == "notebook":
        if not has_modules(jax_python, "ipykernel", "jupyter_client"):
            pytest.skip("no ipykernel beside this jax")
        cells = json.dumps(NOTEBOOK)
        return lambda env: run([jax_python, "-c", KERNEL, cells], env, tmp_path)

    def start_both(env: dict[str, str]) -> Told:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        env = env | {"ADDRESS": f"127.0.0.1:{port}"}
        env["JAX_CPU_COLLECTIVES_IMPLEMENTATION"] = "gloo"
        running = [
            subprocess.Popen(
                [jax_python, "-c", TOGETHER],
                env=env | {"RANK": str(rank)},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in (0, 1)
        ]
        told = []
        for process in running:
            out, err = process.communicate(timeout=240)
            assert process.returncode == 0, err
            lines = [line for line in out.splitlines() if line.startswith('{"result"')]
            told.append(json.loads(lines[-1]))
        return told

    return start_both


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
    script = "from jax._src import util; print(hasattr(util, 'register_cache'))"
    known = subprocess.check_output([jax_python, "-c", script], text=True).strip() == "True"
    loads = min(told["events"]["/jax/compilation_cache/cache_hits"] for told in plain)
    assert loads > 0
    is_on = known and available_cores() > 1
    ahead = start(env | {"WAIT": str(loads if is_on else 0)})
    assert [told["events"] for told in ahead] == [told["events"] for told in plain]
    assert [told["result"] for told in ahead] == [told["result"] for told in filled]
    assert [told["result"] for told in ahead] == [told["result"] for told in plain]
    assert [path.name for path in entries(cache)] == names
    assert all(told["used"] == (loads if is_on else 0) for told in ahead)
