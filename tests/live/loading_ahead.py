"""Programs that load ahead, and the records of what they loaded."""

import hashlib
from pathlib import Path

ON = {"JAXCACHE_LIVE_PRELOAD": "1"}
#: Starts the backend, and waits until so many executables are loaded ahead as ``WAIT`` says.
START = """
import os, sys, time
import jax
jax.devices()
layer = next(m.LAYER for name, m in sys.modules.items() if name.endswith("live.layer"))
end = time.monotonic() + 120
while layer.counters["preloaded"] < int(os.environ.get("WAIT", 0)) and time.monotonic() < end:
    time.sleep(0.01)
"""


def records(cache: Path) -> list[Path]:
    """The records of last runs."""
    return sorted((cache / ".jaxcache" / "live" / "starts").glob("*"))


def write_record(path: Path, text: bytes) -> None:
    """Write a record as if the last run had."""
    path.write_bytes(hashlib.sha256(text).hexdigest().encode() + b"\n" + text)


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
