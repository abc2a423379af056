"""What ``warm`` reports: a headline, functions with reasons, phases, savings, and a trace."""

import json
import re
import subprocess
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from conftest import RunCli, StepRuns, jax_version
from plain_jax import run_plain
from warm_checks import STEP, Warm, assert_counts_are_jax_own, only, outcomes

import jaxcache
from jaxcache.warm.report.notes import advise
from jaxcache.warm.where import find_where

pytestmark = pytest.mark.jax
PROGRAM = """
import sys
import jax, jax.numpy as jnp
size, factor = int(sys.argv[1]), float(sys.argv[2])
@jax.jit
def step(x):
    return jnp.sin(x) * factor @ x
step(jnp.full((size, size), 0.5)).sum()
"""


def row_of(done: "subprocess.CompletedProcess[str]") -> str:
    """The one line of the table about the step, of a command that has ended well."""
    assert done.returncode == 0, done.stderr
    (row,) = [line for line in done.stderr.splitlines() if line.startswith("jit_step")]
    return row


def test_the_screen_says_why_each_function_was_compiled(
    run_cli: RunCli, each_jax_python: str, script: Any, cache: Path
) -> None:
    path = script(PROGRAM, "a_program_of_a_long_name_of_which_no_run_is_recorded.py")

    def warm(*words: str, options: tuple[str, ...] = ()) -> "subprocess.CompletedProcess[str]":
        command = ("warm", *options, "-C", cache, "--python", each_jax_python, path)
        return run_cli(*command, *words, env={"COLUMNS": "160"})

    first = warm("8", "1")
    row = row_of(first)
    assert f"{path.name}:5" in row or f"{path.name}:6" in row
    assert row.endswith(f"first time in {path.name}")
    lines = first.stderr.partition("0 of ")[2].splitlines()
    assert lines[1].split() == ["MODULE", "SOURCE", "OUTCOME", "COMPILE", "SIZE", "WHY"]
    (folded,) = [line for line in lines if line.startswith("and ")]
    assert "of JAX" in folded and "(--all lists them)" in folded
    assert "in full: " not in first.stderr  # there is no more to say
    assert "\njit_broadcast_in_dim" not in first.stderr

    second = warm("16", "1", options=("--all",))
    row = row_of(second)
    assert row.endswith("x float32[8,8] (weak) → float32[16,16] (weak)"), row
    assert " 0.0 s" not in row
    assert second.stderr.count("\njit_") > 1 and "\nand " not in second.stderr


def test_trouble_in_finding_causes_ends_no_run(
    run_cli: RunCli, each_jax_python: str, script: Any, step_cache: Path
) -> None:
    path = script(STEP.replace("(8, 8)", "(9, 9)"))
    for entry in step_cache.glob("jit_step*-cache"):
        entry.write_bytes(b"\x28\xb5\x2f\xfd rotten")
    options = ("--portable", "-C", step_cache, "--python", each_jax_python)
    row = row_of(run_cli("warm", *options, path))
    assert row.split()[-1] != "kB", row


# Every kind of function that compiles, on eight pretended devices.


EIGHT = ("--devices", "8", "--platform", "cpu")
KINDS = """
import functools
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
try:
    from jax import shard_map
except ImportError:
    from jax.experimental.shard_map import shard_map

assert jax.device_count() == 8
mesh = Mesh(np.array(jax.devices()), ("x",))
x = np.arange(64, dtype=np.float32).reshape(8, 8)

def mapped(v):
    return v * 2
jax.pmap(mapped)(x).block_until_ready()
def unchanged(v):
    return v
jax.pmap(unchanged)(x).block_until_ready()

def shards(v):
    return jax.lax.psum(v, "x")
jax.jit(functools.partial(shard_map, mesh=mesh, in_specs=P("x"), out_specs=P())(shards))(x)

@jax.custom_vjp
def custom(v):
    return jnp.sum(v ** 2)
custom.defvjp(lambda v: (custom(v), v), lambda v, g: (3 * g * v,))
@jax.jit
def gradient(v):
    return jax.grad(custom)(v)
gradient(x)

@functools.partial(jax.jit, donate_argnums=0)
def donated(v):
    return v + 1
donated(jax.device_put(x))

try:
    from jax.experimental import pallas as pl
except ImportError:  # 0.5.3 needs absl for it
    pl = None
def add_kernel(a_ref, o_ref):
    o_ref[...] = a_ref[...] + 1
@jax.jit
def tiled(v):
    if pl is None:
        return v + 2
    return pl.pallas_call(
        add_kernel, out_shape=jax.ShapeDtypeStruct(v.shape, v.dtype), interpret=True)(v)
tiled(x)

try:  # not in every JAX
    from jax.experimental import colocated_python
    devices = jax.devices("cpu")[:1]
    @colocated_python.colocated_python
    def beside(v):
        return v + 1
    beside = beside.specialize(devices=devices)
    for n in range(1, 4):
        beside(jax.device_put(np.ones(n, np.float32), devices[0]))
except Exception as error:
    print("unavailable:", error)
"""


def test_every_kind_is_accounted_for(warm: Warm, script: Any) -> None:
    path = script(KINDS)
    cold, hot = warm(path, options=EIGHT), warm(path, options=EIGHT)
    for document in (cold, hot):
        assert_counts_are_jax_own(document)
    assert outcomes(cold) == {("written", "not-in-cache")}
    version = tuple(map(int, hot["processes"][0]["jax"].split(".")[:2]))
    unstable = {"jit_call_wrapped", "jit__fun"} if (0, 8) <= version < (0, 10) else set()
    missed = {m["module"] for m in hot["modules"] if m["outcome"] != "hit"}
    assert missed <= unstable  # pmap's key changes every run on 0.8.3 and 0.9
    for function in ("gradient", "donated", "tiled"):
        row = only(cold, f"jit_{function}")
        assert row["function"] == function
        assert row["file"] == str(path)
        assert [(a["dtype"], a["shape"]) for a in row["arguments"]] == [("float32", [8, 8])]
        assert row["trace_seconds"] > 0
        assert row["lower_seconds"] > 0
    functions = {f["function"]: f for f in cold["functions"]}
    kinds = dict.fromkeys(("gradient", "donated", "tiled"), "jit")
    kinds |= {"mapped": "pmap", "unchanged": "pmap"}  # one has no operation of its own
    assert kinds.items() <= {name: f["kind"] for name, f in functions.items()}.items()
    assert [f for f in functions if "shard" in f]
    if version >= (0, 10):
        beside = functions["beside"]
        assert (beside["kind"], beside["signatures"]) == ("colocated_python", 3)
        assert beside["varies"] == ["axis 0 of argument 0 (1, 2, 3)"]


# Savings are the same in every place.


#: Has hits, a new entry in each run, and compiles that are never written.
SAVING = """
import sys, jax
for n in range(3 + int(sys.argv[1])):
    low = 1e9 if n == 2 else 0
    jax.config.update("jax_persistent_cache_min_compile_time_secs", low)
    jax.jit(lambda x: x * n + n)(1.0)
jax.clear_caches()
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
jax.jit(lambda x: x * n + n)(1.0)  # the first run hits what it has written
"""


def test_every_place_tells_the_same_hits_misses_and_savings(
    run_cli: RunCli, cache: Path, script: Any, each_jax_python: str
) -> None:
    path = script(SAVING)
    restored = ("ci", "restore", cache.parent / "none.jxb", "-C", cache, "--python")
    assert run_cli(*restored, each_jax_python).returncode == 0
    runs = []
    for number, options in ("1", ()), ("2", ("--live",)):
        words = ("run", "--json", "-C", cache, *options, "--", each_jax_python, path, number)
        document = json.loads(run_cli(*words).stdout)
        assert_counts_are_jax_own(document)
        runs.append(document["summary"])
    names = ("hits", "misses", "saved_seconds")
    expected = {name: pytest.approx(sum(r[name] for r in runs)) for name in names}
    assert runs[1]["hits"] and runs[1]["misses"] == 2

    stats = json.loads(run_cli("stats", "-C", cache, "--json").stdout)
    assert {name: stats[name] for name in names} == expected
    assert stats["hit_rate"] == stats["hits"] / (stats["hits"] + stats["misses"])
    if jax_version(each_jax_python) >= (0, 4, 31):  # the live layer knows no older one
        live = stats["live"]["hits_local"], stats["live"]["misses"]
        assert live == (runs[1]["hits"], runs[1]["misses"])
    uses = jaxcache.open(cache).stats().uses
    assert uses and {name: getattr(uses, name) for name in names} == expected
    text = run_cli("stats", "-C", cache, "--prometheus").stdout
    found = dict(re.findall(r'jaxcache_uses\{.*counter="(\w+)"\} (.*)', text))
    assert {name: float(value) for name, value in found.items()} == expected
    job = run_cli("ci", "save", cache.parent / "job.jxb", "-C", cache, "--json")
    assert json.loads(job.stdout)["saved_seconds"] == expected["saved_seconds"]
    assert run_cli("report", cache.parent / "report.html", "-C", cache).returncode == 0
    page = (cache.parent / "report.html").read_text()
    totals = json.loads(re.search(r'"totals": ?(\{.*?\})', page)[1])  # type: ignore[index]
    assert {name.removesuffix("_seconds"): expected[name] for name in names} == {
        name: totals[name] for name in ("hits", "misses", "saved")
    }


# Where a start goes: phases that add up, agree with JAX, and name what was planted.


def test_trace_opens_in_perfetto(step_runs: StepRuns) -> None:
    for name, expected in (
        ("cold", ["trace", "lower", "compile", "write"]),
        ("hot", ["trace", "lower", "retrieve"]),
    ):
        events = json.loads((step_runs.directory / name).read_text())["traceEvents"]
        step = [e for e in events if e["ph"] == "X" and e["name"].endswith(" jit_step")]
        assert all(e["dur"] >= 0 and e["ts"] >= 0 for e in step)
        assert [e["cat"] for e in sorted(step, key=lambda e: e["ts"])] == expected
        assert any(e["ph"] == "M" and "script.py" in e["args"]["name"] for e in events)


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
    told, trace = tmp_path / "told.json", tmp_path / "trace.json"
    cold = warm(path, str(told))["summary"]
    phases = cold["phases"]
    assert sum(phases.values()) == pytest.approx(cold["wall_seconds"], rel=1e-6)
    assert phases["backend_seconds"] >= 0.2
    assert phases["key_seconds"] >= 0.3
    assert phases["compile_seconds"] >= 0.4
    traced = json.loads(told.read_text())["traced"]
    assert 0.6 <= phases["trace_seconds"] <= traced + 0.15  # not counted twice
    assert phases["import_seconds"] > 0 and phases["lower_seconds"] > 0

    hot = warm(path, str(told), "--token=hush", options=("--trace", str(trace)))["summary"]
    retrieved = json.loads(told.read_text())["retrieved"]
    assert hot["phases"]["compile_seconds"] == 0
    assert 0.5 <= hot["phases"]["load_seconds"] <= retrieved + 0.25  # not counted twice
    text = trace.read_text()
    assert "hush" not in text and f"{told} --token=***" in text
    lanes = [e for e in json.loads(text)["traceEvents"] if e.get("tid") == 0]
    assert {"import", "trace", "load"} <= {e["name"] for e in lanes}
    ends = sorted((e["ts"], e["ts"] + e["dur"]) for e in lanes)
    assert all(end <= start + 1 for (_, end), (start, _) in pairwise(ends))


#: Calls twenty layers one after another, each of which begins in an installed library.
UNROLLED = """
import os, sys, time
import jax, numpy as np
sys.path.append(os.path.join(os.path.dirname(__file__), "site-packages"))
from norm import normalize

def layer(x):
    time.sleep(0.1)
    return normalize(x) @ x + 1

@jax.jit
def step(x):
    for _ in range(20):
        x = layer(x)
    return x * 2

step(np.ones((3, 3), "float32"))
"""


def test_an_unrolled_loop_is_named_by_the_lines_of_the_program(
    script: Any, each_jax_python: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    path = Path(script(UNROLLED))
    library = path.parent / "site-packages" / "norm.py"
    library.parent.mkdir()
    library.write_text("def normalize(x):\n    return x / 2\n")
    *_, report = find_where([each_jax_python, str(path)])
    first, *_ = advise(report)
    assert first.trap == "unrolled"
    assert f"20 copies of the same lines, such as {path}:" in first.seen


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
def setting(x):
    return x @ x

a = np.ones((3, 3), "float32")
shape(a), shape(np.ones((4, 3), "float32"))
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
    logs = {"JAX_EXPLAIN_CACHE_MISSES": "1", "JAX_PLATFORMS": "cpu"}
    log = _words(run_plain([each_jax_python, path], env=logs).stderr)
    trace = tmp_path / "trace.json"
    document = warm(script(RETRACED + NEW_OBJECT), options=("--trace", str(trace)))
    reasons = {f["function"]: f["retrace_reasons"] for f in document["functions"]}
    (version,) = {p["jax"] for p in document["processes"]}
    if version.startswith(("0.4.", "0.5.", "0.6.", "0.8.")):
        assert not any(reasons.values())
        pytest.skip("JAX below 0.9.2 is not asked for its reasons")
    for function, words in (
        ("shape", "at x, now f32[4,3] and before f32[3,3]"),
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
