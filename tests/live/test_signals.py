"""Signal handlers that run a jitted function, as a checkpoint at SIGTERM does."""

from pathlib import Path

import pytest

from live.conftest import PROGRAM, RunLive
from live.machines import PORTABLE

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
