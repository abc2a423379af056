"""Modules with host callbacks, and custom calls, where entries are loaded ahead."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from live.conftest import RunLive, entries
from live.loading_ahead import records, write_record

pytestmark = pytest.mark.jax


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
    run_ahead: RunLive, tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    good = run_ahead(CALLBACKS)
    (path,) = records(cache)
    document = json.loads(path.read_bytes().partition(b"\n")[2])
    if not entries(cache, "pure"):
        pytest.skip("this JAX caches no module with callbacks")
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


@pytest.mark.parametrize("is_late", [False, True], ids=["registered before", "registered after"])
def test_custom_calls_give_the_same_results(
    run_ahead: RunLive, jax_python: str, tmp_path: Path, is_late: bool
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
    if is_late:  # XLA cannot load that module before; JAX loads it on request
        ran = run_ahead(REGISTER + CUSTOM, wait=number - 1, LIBRARY=str(library))
        assert ran["preloaded"] >= number - 1
    else:
        ran = run_ahead(CUSTOM, before=REGISTER, wait=number, LIBRARY=str(library))
        assert ran["preload_used"] == number
    assert (ran["hits_local"], ran["misses"], ran.result) == (number, 0, first.result)
