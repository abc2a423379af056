"""``jaxcache.guard()`` refuses compiles before XLA is called, and leaves JAX as it was."""

import json
import os
import subprocess
from pathlib import Path

import pytest
from conftest import RunCli

import jaxcache
from tests.inprocess.conftest import RunInside

pytestmark = pytest.mark.jax

#: What is in a persistent cache would be loaded, which a guard on compiles allows.
NO_CACHE = {"JAX_ENABLE_COMPILATION_CACHE": "false"}
#: Counts calls of XLA below the guard, and Python dispatches of a warm call.
HEAD = """
import json, sys, warnings
import jax, jax.numpy as jnp, numpy as np
from functools import partial
from jax._src import compiler, pjit
import jaxcache
from jaxcache import UnexpectedCompileError, guard
NAME = "backend_compile_and_load"
NAME = NAME if hasattr(compiler, NAME) else "backend_compile"
XLA = [0]
original = getattr(compiler, NAME)
def count(*args, **kwargs):
    XLA[0] += 1
    return original(*args, **kwargs)
setattr(compiler, NAME, count)
def xla_calls(call):
    before = XLA[0]
    jax.block_until_ready(call())
    return XLA[0] - before
def refuse(call):
    before = XLA[0]
    try:
        call()
    except UnexpectedCompileError as error:
        assert XLA[0] == before
        changed = [change.name for change in error.changed]
        return [error.reason, changed, error.function, error.line, error.module]
    return None
def dispatches(call):
    counted, infer = [0], pjit._infer_params
    def spy(*args, **kwargs):
        counted[0] += 1
        return infer(*args, **kwargs)
    call(); call()
    pjit._infer_params = spy
    try:
        call()
    finally:
        pjit._infer_params = infer
    return counted[0]
@partial(jax.jit, static_argnames=("mode",))
def step(p, x, *, mode="a"):
    return jnp.tanh(x @ p["w"]).sum() * (1 if mode == "a" else 2)
p, x = {"w": jnp.ones((4, 4))}, jnp.ones((2, 4))
x8 = jnp.ones((8, 4))
found = {}
"""

CHANGES = (
    HEAD
    + """
step(p, x).block_until_ready()
with guard() as g:
    found["warm"] = [xla_calls(lambda: step(p, x)), dict(g.counts)]
    found["shape"] = refuse(lambda: step(p, x8))
    found["shape again"] = refuse(lambda: step(p, x8))
    found["dtype"] = refuse(lambda: step(p, np.ones((2, 4), np.int32)))
    found["structure"] = refuse(lambda: step({"w": p["w"], "b": 1.0}, x))
    found["static"] = refuse(lambda: step(p, x, mode="b"))
    with jax.default_matmul_precision("float32"):
        found["config"] = refuse(lambda: step(p, x))
    found["eager"] = refuse(lambda: jnp.ones((17,)))
    found["first"] = refuse(lambda: jax.jit(lambda a: a + 5)(x))
def make():
    return jax.jit(lambda a: a * 3)
make()(x)
with guard():
    found["new function"] = refuse(lambda: make()(x))
with guard(eager="allow"):
    jnp.ones((18,))
    found["eager allowed"] = refuse(lambda: step(p, np.ones((3, 4), np.float32)))
found["then compiles"] = [xla_calls(lambda: step(p, x8)), xla_calls(lambda: step(p, x8))]
found["then fast"] = dispatches(lambda: step(p, x8))
with guard():
    found["committed"] = refuse(lambda: step(p, jax.device_put(x8, jax.devices()[0])))
with guard("trace"):
    other = jax.ShapeDtypeStruct((30, 4), "float32")
    found["trace"] = refuse(lambda: jax.eval_shape(step, p, other))
with guard(action="count") as g:
    step(p, np.ones((6, 4), np.float32))
found["count"] = [dict(g.counts), g.seen[0].function]
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    with guard(action="warn"):
        step(p, np.ones((9, 4), np.float32))
found["warn"] = "step" in str(caught[0].message)
print(json.dumps(found))
"""
)


def test_each_change_is_refused_and_named(run_inside: RunInside) -> None:
    found = run_inside(CHANGES, **NO_CACHE)
    line = HEAD.splitlines().index('@partial(jax.jit, static_argnames=("mode",))') + 1
    assert found["warm"] == [0, {}]
    for name, reason, changed in [
        ("shape", "argument-shape", ["x"]),
        ("shape again", "argument-shape", ["x"]),
        ("dtype", "argument-dtype", ["x"]),
        ("structure", "argument-structure", ["p['b']"]),
        ("static", "static-argument", ["mode"]),
    ]:
        assert found[name][:3] == [reason, changed, "step"], name
        assert found[name][3] in (line, line + 1)  # of the decorator, or of the function
        assert found[name][4] == "jit_step"
    assert found["config"][0] == "config"
    assert found["eager"][0] == "eager-operation"
    assert found["first"][0] == "not-cached-before"
    assert found["new function"][0] == "new-function"
    assert found["eager allowed"][0] == "argument-shape"
    assert found["committed"][:2] == ["argument-sharding", ["sharding of x"]]
    assert found["trace"][0] == "argument-shape"
    assert found["count"] == [{"compile": 1}, "step"]
    assert found["warn"]


def test_after_a_refusal_a_call_compiles_once_and_is_fast_again(run_inside: RunInside) -> None:
    found = run_inside(CHANGES, **NO_CACHE)
    assert found["then compiles"] == [1, 0]
    assert found["then fast"] == 0


SCOPES = (
    HEAD
    + """
import asyncio, threading
step(p, x)
def shape(n):
    return np.ones((n, 4), np.float32)
def in_thread(n):
    answers = []
    thread = threading.Thread(target=lambda: answers.append(refuse(lambda: step(p, shape(n)))))
    thread.start(); thread.join()
    return answers[0] is not None
with guard():
    found["another thread may"] = not in_thread(11)
with guard(threads="all"):
    found["no thread may"] = in_thread(12)

@guard()
async def guarded():
    await asyncio.sleep(0.01)
    inside = await asyncio.to_thread(refuse, lambda: step(p, shape(13)))
    return inside is not None and refuse(lambda: step(p, shape(14))) is not None
async def free():
    await asyncio.sleep(0)
    return refuse(lambda: step(p, shape(15))) is None
async def both():
    return await asyncio.gather(guarded(), free())
found["tasks"] = asyncio.run(both())

@guard()
def handler(n):
    return step(p, shape(n))
found["decorator"] = refuse(lambda: handler(16)) is not None
errors = []
def hammer(number):
    for i in range(10):
        if refuse_guarded(100 + number * 10 + i) is None:
            errors.append("passed")
        if xla_calls(lambda: step(p, x)):
            errors.append("compiled")
def refuse_guarded(n):
    try:
        with guard():
            step(p, shape(n))
    except UnexpectedCompileError as error:
        return error
threads = [threading.Thread(target=hammer, args=(n,)) for n in range(4)]
[t.start() for t in threads]; [t.join() for t in threads]
found["hammer"] = errors
dispatched, infer = [0], pjit._infer_params
def spy(*args, **kwargs):
    dispatched[0] += 1
    return infer(*args, **kwargs)
step(p, x)
with guard("trace", threads="all"), guard("trace"):
    pjit._infer_params = spy
    for _ in range(100_000):
        step(p, x)
    pjit._infer_params = infer
found["dispatches of 100,000 warm calls"] = dispatched[0]
print(json.dumps(found))
"""
)


def test_scope_and_warm_calls(run_inside: RunInside) -> None:
    found = run_inside(SCOPES, **NO_CACHE)
    assert found["another thread may"]
    assert found["no thread may"]
    assert found["tasks"] == [True, True]
    assert found["decorator"]
    assert found["hammer"] == []
    assert found["dispatches of 100,000 warm calls"] == 0


TRANSFORMS = (
    HEAD
    + """
inner = jax.jit(lambda a: jnp.sin(a) * 2)
outer = jax.jit(lambda a: inner(a) + inner(a * 2))
cases = {
    "nested": outer,
    "grad": jax.grad(lambda a: outer(a).sum()),
    "vmap": jax.vmap(outer),
    "scan": jax.jit(lambda a: jax.lax.scan(lambda c, v: (c + inner(v), v), a[0], a)[0]),
}
for name, function in cases.items():
    a, b = jnp.ones((2, 4)), jnp.ones((2, 6))
    function(a)
    with guard():
        warm = xla_calls(lambda: function(a))
        refused = refuse(lambda: function(b))
    cold = xla_calls(lambda: function(b))
    fast = dispatches(lambda: function(b)) == dispatches(lambda: function(a))
    found[name] = [warm, refused is not None, cold > 0, xla_calls(lambda: function(b)), fast]
lowered = step.lower(p, jax.ShapeDtypeStruct((3, 4), np.float32))
with guard():
    found["ahead of time"] = refuse(lowered.compile)
compiled, x3 = lowered.compile(), jnp.ones((3, 4))
with guard():
    found["compiled"] = xla_calls(lambda: compiled(p, x3))
donate = jax.jit(lambda a: a + 1, donate_argnums=0)
v = jnp.ones(33)
with guard():
    refuse(lambda: donate(v))
found["donated"] = v.is_deleted()
print(json.dumps(found))
"""
)


def test_transformations(run_inside: RunInside) -> None:
    found = run_inside(TRANSFORMS, **NO_CACHE)
    for name in ("nested", "grad", "vmap", "scan"):
        assert found[name] == [0, True, True, 0, True], name
    assert found["ahead of time"][4] == "jit_step"
    assert found["compiled"] == 0
    assert not found["donated"]


WATCHED = (
    HEAD
    + """
step(p, x)
with jaxcache.watch() as report:
    for on in ("compile", "load"):
        with guard(on):
            refuse(lambda: step(p, x8))
    step(p, x8)
rows = [(m.outcome, m.reason, m.detail) for m in report.modules if m.module == "jit_step"]
print(json.dumps([report.refused, report.errors, rows]))
"""
)


def test_watch_calls_it_refused(run_inside: RunInside) -> None:
    refused, errors, rows = run_inside(WATCHED)
    assert (refused, errors) == (2, 0)
    detail = "x: float32[2,4] before, float32[8,4] now"
    assert {tuple(row) for row in rows if row[0] == "refused"} == {("refused", "guard", detail)}
    assert sum(row[0] == "written" for row in rows) == 1


ARMED = (
    HEAD
    + """
step(p, x)
found["before"] = refuse(lambda: step(p, x8)) is None
jaxcache.warmed_up()
jaxcache.warmed_up()
try:
    step(p, np.ones((9, 4), np.float32))
    found["after"] = "compiled"
except RuntimeError as error:
    found["after"] = type(error).__name__
print(json.dumps(found))
"""
)


def test_the_variable_arms_a_process(run_inside: RunInside) -> None:
    found = run_inside(ARMED, JAXCACHE_GUARD="compile:raise")
    assert found == {"before": True, "after": "UnexpectedCompileError"}


def test_without_the_variable_nothing_is_armed(run_inside: RunInside) -> None:
    assert run_inside(ARMED) == {"before": True, "after": "compiled"}


def test_a_variable_of_another_form_is_reported_once(inside_python: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [inside_python, "-c", "import jax, jaxcache; jaxcache.warmed_up()"],
        env={**os.environ, "JAXCACHE_GUARD": "comple:raise"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr.count("runs without a guard: JAXCACHE_GUARD must be") == 1


@pytest.mark.parametrize("is_up", [True, False])
def test_a_guard_that_was_never_up_says_so(inside_python: str, tmp_path: Path, is_up: bool) -> None:
    done = subprocess.run(
        [
            inside_python,
            "-c",
            f"import jax, jaxcache; jax.devices(); {is_up} and jaxcache.warmed_up()",
        ],
        env={**os.environ, "JAXCACHE_GUARD": "compile:raise"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr.count("no guard was up: call jaxcache.warmed_up()") == (not is_up)


def test_run_guard_needs_no_jaxcache_beside_jax(
    run_cli: RunCli, inside_python: str, tmp_path: Path
) -> None:
    program = tmp_path / "late.py"
    program.write_text(
        "import jax, jax.numpy as jnp, sys, time\n"
        "from jax._src import compiler\n"
        "f = jax.jit(lambda x: x * 2)\n"
        "for n in range(3, 2000):\n"
        "    time.sleep(0.05)\n"
        "    f(jnp.ones(n))\n"
    )
    args = ("--guard", "compile:raise:0.1", "-C", tmp_path / "cache", "--json", "--")
    done = run_cli("run", *args, inside_python, program)
    assert done.returncode == 1
    assert "UnexpectedCompileError" in done.stderr
    assert json.loads(done.stdout)["summary"]["refused"] == 1


def test_a_program_catches_the_exception_of_run_guard(
    run_cli: RunCli, inside_python: str, tmp_path: Path
) -> None:
    program = tmp_path / "catches.py"
    program.write_text(
        "import jax, jaxcache, numpy as np\n"
        "f = jax.jit(lambda x: x * 2)\n"
        "f(np.ones(2))\n"
        "jaxcache.warmed_up()\n"
        "try:\n"
        "    f(np.ones(3))\n"
        "except jaxcache.UnexpectedCompileError as error:\n"
        "    print(type(error).__module__)\n"
    )
    done = run_cli(
        "run", "--guard", "compile:raise", "-C", tmp_path / "c", "--", inside_python, program
    )
    assert done.returncode == 0
    assert done.stdout.startswith("jaxcache\n")


#: Two processes of ``jax.distributed``: the program starts its other half.
DISTRIBUTED = """
import json, os, socket, subprocess, sys
import jax, jaxcache
if len(sys.argv) == 1:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    with jaxcache.guard():
        pass
    other = subprocess.Popen([sys.executable, __file__, port], stderr=subprocess.PIPE, text=True)
else:
    port = sys.argv[1]
jax.distributed.initialize(f"127.0.0.1:{port}", 2, len(sys.argv) - 1)
with jaxcache.guard(action="warn"), jaxcache.guard(), jaxcache.guard():
    pass
jax.distributed.shutdown()
if len(sys.argv) == 1:
    print(json.dumps(other.communicate()[1]))
"""


def test_one_of_several_processes_is_warned_once(run_inside: RunInside) -> None:
    assert run_inside(DISTRIBUTED).count("guard sees 2 processes of jax.distributed") == 1


def test_a_guard_of_another_form_is_a_usage_error(run_cli: RunCli) -> None:
    done = run_cli("run", "--guard", "compile:shout", "--", "true")
    assert done.returncode == 2
    assert "bad-guard" in done.stderr


@pytest.mark.parametrize(
    "words", [{"on": "link"}, {"action": "shout"}, {"threads": "some"}, {"eager": "no"}]
)
def test_other_words_are_refused(words: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="must be one of"):
        jaxcache.guard(**words)
