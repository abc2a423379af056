"""Where a start goes: phases that add up, agree with JAX, and name what was planted."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from conftest import RunCli
from processes import sh
from warm_checks import Warm

from jaxcache.warm.report.notes import advise
from jaxcache.warm.where import find_where

pytestmark = pytest.mark.jax

#: Each phase is slowed down from within, and JAX's own event of retrievals is printed.
SLOW = """
import json, os, sys, time
import jax, jax.numpy as jnp
import jax.monitoring
from jax._src import cache_key, compilation_cache, xla_bridge

def slow(owner, name, seconds):
    original = getattr(owner, name)
    def later(*args, **kwargs):
        time.sleep(seconds)
        return original(*args, **kwargs)
    setattr(owner, name, later)

slow(cache_key, "get", 0.3)
slow(compilation_cache, "compress_executable", 0.4)
slow(compilation_cache, "decompress_executable", 0.5)
slow(xla_bridge, "_init_backend", 0.2)
retrieved = []
def listen(name, seconds, **_):
    if name == "/jax/compilation_cache/cache_retrieval_time_sec":
        retrieved.append(seconds)
jax.monitoring.register_event_duration_secs_listener(listen)

@jax.jit
def inner(x):
    time.sleep(0.2)
    return jnp.sin(x)

@jax.jit
def middle(x):
    time.sleep(0.2)
    return inner(x) + 1

@jax.jit
def step(x):
    time.sleep(0.2)
    return middle(x) * 2

x = jax.device_put(__import__("numpy").ones(8, "float32"))
started = time.time()
step.trace(x)
traced = time.time() - started
step(x)
with open(sys.argv[1], "w") as file:
    json.dump({"traced": traced, "retrieved": sum(retrieved)}, file)
"""


def test_phases_add_up_and_name_what_is_slow(warm: Warm, script: Any, tmp_path: Path) -> None:
    path = script(SLOW)
    told = tmp_path / "told.json"
    trace = tmp_path / "trace.json"
    cold = warm(path, str(told))["summary"]
    phases = cold["phases"]
    assert sum(phases.values()) == pytest.approx(cold["wall_seconds"], rel=1e-6)
    assert phases["backend_seconds"] >= 0.2
    assert phases["key_seconds"] >= 0.3
    assert phases["compile_seconds"] >= 0.4
    assert (
        0.6 <= phases["trace_seconds"] <= json.loads(told.read_text())["traced"] + 0.15
    )  # not counted twice
    assert phases["import_seconds"] > 0 and phases["lower_seconds"] > 0

    hot = warm(path, str(told), options=("--trace", str(trace)))["summary"]
    retrieved = json.loads(told.read_text())["retrieved"]
    assert hot["phases"]["compile_seconds"] == 0
    assert 0.5 <= hot["phases"]["load_seconds"] <= retrieved + 0.25  # not counted twice
    lanes = [e for e in json.loads(trace.read_text())["traceEvents"] if e.get("tid") == 0]
    assert {"import", "trace", "load"} <= {e["name"] for e in lanes}
    ends = sorted((e["ts"], e["ts"] + e["dur"]) for e in lanes)
    assert all(end <= start + 1 for (_, end), (start, _) in pairwise(ends))


#: One part of its start takes two seconds more.
ONE_SLOW = """
import os, sys, time
import jax, numpy as np
from jax._src import cache_key, compilation_cache, xla_bridge

sys.path.append(os.path.join(os.path.dirname(__file__), "site-packages"))
from norm import normalize

kind = sys.argv[1]
jax.config.update("jax_compilation_cache_dir", sys.argv[2])
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
PLACES = {
    "slow-key": (cache_key, "get"),
    "slow-compile": (compilation_cache, "compress_executable"),
    "slow-load": (compilation_cache, "decompress_executable"),
    "slow-backend": (xla_bridge, "_init_backend"),
}
if kind in PLACES:
    owner, name = PLACES[kind]
    original = getattr(owner, name)
    def later(*args, **kwargs):
        time.sleep(2)
        return original(*args, **kwargs)
    setattr(owner, name, later)

@jax.jit
def step(x):
    if kind == "slow-trace":
        time.sleep(2)
    if kind == "retraced":
        time.sleep(0.7)
    if kind == "unrolled":
        for _ in range(20):
            x = layer(x)
    if kind in ("slow-compile", "slow-load"):  # the second loads what the first has written
        for _ in range(60):
            x = jax.numpy.sin(x @ x)
    return x * 2

def layer(x):
    time.sleep(0.1)
    return normalize(x) @ x + 1

if kind == "slow-compile":  # most modules are too quick for JAX to write them
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 1000)
    for n in range(3):
        jax.jit(lambda x: x + n)(np.ones(1, "float32"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
for size in (3, 4, 5, 6) if kind == "retraced" else (3,):
    step(np.ones((size, size), "float32"))
"""


def script_with_library(script: Any) -> Path:
    """Write the script, and the installed library with which each of its layers begins."""
    path = Path(script(ONE_SLOW))
    library = path.parent / "site-packages" / "norm.py"
    library.parent.mkdir()
    library.write_text("def normalize(x):\n    return x / 2\n")
    return path


def test_the_slow_part_is_named_first(
    script: Any, cache: Path, each_jax_python: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    path = script_with_library(script)
    parts = ("slow-compile", "slow-load", "slow-key", "slow-backend", "slow-trace")
    for kind in (*parts, "unrolled"):
        _, _, report = find_where([each_jax_python, str(path), kind, str(cache)])
        first, *_ = advise(report)
        assert first.trap == kind, report.phases
        assert first.severity == "note" and "up to" in first.cost
        assert ("this start alone" in first.cost) == (kind == "slow-compile"), (
            "it wrote the entries"
        )
        assert ("entries ahead" in first.fix) == (kind == "slow-load")
        if kind not in ("slow-backend", "unrolled"):
            assert f"step ({path}:" in first.seen
        assert "step" in {f.function for f in report.longest["trace"]}
    assert f"20 copies of the same lines, such as {path}:" in first.seen


def test_a_compile_in_which_the_program_is_killed_counts(warm: Warm, script: Any) -> None:
    path = script(
        """
        import os, time
        import jax
        from jax._src import compilation_cache

        def kill(*args, **kwargs):
            time.sleep(1)
            os.kill(os.getpid(), 9)

        compilation_cache.compress_executable = kill
        jax.jit(lambda x: x + 1)(1.0)
        """
    )
    document = warm(path, code=137)
    assert document["summary"]["phases"]["compile_seconds"] >= 1


def test_doctor_names_what_is_traced_again(
    run_cli: RunCli, script: Any, cache: Path, each_jax_python: str
) -> None:
    path = script_with_library(script)
    done = run_cli("doctor", "--json", "--", each_jax_python, path, "retraced", cache)
    findings = json.loads(done.stdout)["findings"]
    again, *_ = (f for f in findings if f["trap"] in ("retraced", "slow-trace", "slow-compile"))
    assert again["trap"] == "retraced"
    assert "traced 4 times, for 4 signatures: axis 0 of x (3, 4, 5, 6)" in again["seen"]


#: One function is traced again for each kind of reason that JAX tells apart.
RETRACED = """
import sys
import jax, numpy as np

def make():
    return jax.jit(lambda x, y: x * 2)

@jax.jit
def shape(x):
    return x * 2

@jax.jit
def structure(x):
    return jax.tree_util.tree_map(lambda leaf: leaf * 2, x)

@jax.jit
def setting(x):
    return x @ x

a = np.ones((3, 3), "float32")
shape(a), shape(np.ones((4, 3), "float32"))
structure({"w": a}), structure({"w": a, "v": a})
setting(a)
with jax.default_matmul_precision("float32"):
    setting(a)
"""
NEW_OBJECT = """
for _ in range(2):
    make()(a, a)
"""


def test_retraces_have_the_reason_that_jax_logs(
    warm: Warm, script: Any, each_jax_python: str, tmp_path: Path
) -> None:
    path = script(RETRACED)
    logged = sh(
        [each_jax_python, str(path)],
        env={"JAX_EXPLAIN_CACHE_MISSES": "1", "JAX_PLATFORMS": "cpu"},
        check=True,
    )
    log = _words(logged.stderr)
    trace = tmp_path / "trace.json"
    document = warm(script(RETRACED + NEW_OBJECT), options=("--trace", str(trace)))
    reasons = {f["function"]: f["retrace_reasons"] for f in document["functions"]}
    (version,) = {p["jax"] for p in document["processes"]}
    if version.startswith(("0.4.", "0.5.", "0.6.", "0.8.")):
        assert not any(reasons.values())
        pytest.skip("JAX below 0.9.2 is not asked for its reasons")
    for function, words in (
        ("shape", "at x, now f32[4,3] and before f32[3,3]"),
        ("structure", "now <class 'dict'> with 2 children and before"),
        ("setting", "now float32 and before None"),
    ):
        (reason,) = reasons[function]
        assert words in reason
        assert words in log
        assert all(_words(part) in log for part in reason.split("; "))
    (reason,) = reasons["<lambda>"]
    assert "seen another function defined on the same line" in reason
    events = json.loads(trace.read_text())["traceEvents"]
    retraced = {e["args"]["retrace"] for e in events if e.get("args", {}).get("retrace")}
    assert {*reasons["shape"], *reasons["<lambda>"]} <= retraced


def _words(text: str) -> str:
    """The words of a text, without the bullets of its lines."""
    return " ".join(word for word in text.split() if word != "*")
