"""``warm_up()`` leaves nothing to do for the first call; ``explain_miss()`` explains it."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from conftest import RunCli, find_jax_pythons
from once import fill_once

from tests.inprocess.conftest import RunInside

pytestmark = pytest.mark.jax


PROGRAM = """
import functools, json
import jax, jax.numpy as jnp, numpy as np
import jaxcache
from jaxcache import UnexpectedCompileError, guard, warm_up

@functools.partial(jax.jit, static_argnames="mode", donate_argnums=1)
def step(p, x, *, mode="a"):
    jax.debug.callback(calls.append, mode)
    return p["w"] @ x

def refused(call):
    try:
        with guard(on="load"):
            call()
    except UnexpectedCompileError:
        return True
    return False

calls, found = [], {}
device = jax.devices()[0]
here = jax.sharding.SingleDeviceSharding(device)
w = np.ones((4, 4), "float32")
def arrays(where=None):
    return {"w": jax.device_put(w, where)}, jax.device_put(w, where)
def shapes(where=None):
    shape = jax.ShapeDtypeStruct((4, 4), "float32", sharding=where)
    return {"w": shape}, shape

plain = warm_up(step, *shapes())
found["plain"] = [plain.outcome, plain.arguments, plain.executed, str(plain)]
found["refused"] = {"plain": refused(lambda: step(*arrays()))}
found["refused"]["committed"] = refused(lambda: step(*arrays(device)))
found["committed"] = warm_up(step, *shapes(here)).arguments
found["refused"]["committed now"] = refused(lambda: step(*arrays(device)))
found["again"] = warm_up(step, *arrays()).outcome
before = [*calls]
kept = arrays()
zeros = warm_up(step, *kept, mode="b", execute="zeros")
found["zeros"] = [zeros.executed, calls[len(before):], kept[1].is_deleted()]
found["errors"] = []
key = jax.random.key(0)
for call in (
    lambda: warm_up(lambda x: x, w),
    lambda: warm_up(step, *kept, execute="ones"),
    lambda: warm_up(jax.jit(lambda k: k), key, execute="zeros"),
):
    try:
        call()
    except jaxcache.JaxcacheError as error:
        found["errors"].append(error.code)
print(json.dumps(found))
"""


def test_the_first_call_has_nothing_left_to_do(run_inside: RunInside) -> None:
    program = PROGRAM.replace("    jax.debug.callback(calls.append, mode)\n", "")
    found = run_inside(program)
    *plain, text = found["plain"]
    assert plain == ["compiled", {"assumed-uncommitted": 2}, False]
    assert text.startswith("step: compiled in ")
    assert "2 of 2 arrays are assumed to be on no particular device" in text.replace("\n", " ")
    # What was warmed up is neither loaded nor compiled, and commitment decides whether it helps.
    assert found["refused"] == {"plain": False, "committed": True, "committed now": False}
    assert (found["committed"], found["again"]) == ({"committed": 2}, "in-memory")
    assert run_inside(program)["plain"][0] == "loaded"


def test_zeros_execute_the_function_and_leave_its_arguments(run_inside: RunInside) -> None:
    found = run_inside(PROGRAM)
    assert found["zeros"] == [True, ["b"], False]
    assert found["errors"] == ["not-jitted", "usage", "usage"]


# ``explain_miss()``.
EXPLAINED = """
import json
import jaxcache, jax, jax.numpy as jnp

@jax.jit
def step(x):
    return jnp.sin(x) @ x

@jax.jit
def quick(x):
    return jnp.cos(x) @ x

def told(x):
    return [x.outcome, x.summary, [d.component for d in x.differences]]

x, y = jnp.ones((8, 8)), jax.ShapeDtypeStruct((4, 4), "float32")
count = []
jax.monitoring.register_event_listener(lambda name, **_: count.append(name))
found = [told(jaxcache.explain_miss(step, x))]
silent = len([n for n in count if "compil" in n])
step(x)
found.append(told(jaxcache.explain_miss(step, x)))
found.append(told(jaxcache.explain_miss(step, y)))
jax.clear_caches()
found.append(told(jaxcache.explain_miss(step, x)))
jax.config.update("jax_persistent_cache_min_compile_time_secs", 60)
with jaxcache.watch():
    quick(x)
jax.clear_caches()
found.append(told(jaxcache.explain_miss(quick, x)))
try:
    jaxcache.explain_miss(lambda x: x, x)
except jaxcache.JaxcacheError as error:
    refused = error.code
with jaxcache.watch() as report:
    step(x)
hits = str(jaxcache.last_misses())
text = str(jaxcache.explain_miss(step, y))
print(json.dumps([found, silent, refused, report.hits, text, hits]))
"""


def test_explain_miss_compiles_nothing(run_inside: RunInside, tmp_path: Path) -> None:
    found, silent, refused, hits, text, misses = run_inside(EXPLAINED)
    outcomes = [outcome for outcome, _, _ in found]
    # JAX 0.5 keeps what is called and what is lowered apart.
    assert outcomes[1] in ("in-memory", "hit")
    assert outcomes[:1] + outcomes[2:] == ["miss", "miss", "hit", "miss"]
    assert found[0][1].endswith("first time in program.py")
    assert "not known: no record of the earlier program" in found[2][1]
    assert found[4][2] == ["jax_persistent_cache_min_compile_time_secs"]
    assert re.search(r"compiled too fast to be written: took [\d.]+ s, under 60 s$", found[4][1])
    assert silent == 0, "JAX counted a request"
    assert refused == "not-jitted"
    assert hits == 1, "what was explained compiles, and hits, as without"
    assert misses.startswith("1 of 1 hits")
    assert len({f.name[:70] for f in (tmp_path / "cache").glob("jit_step-*")}) == 1
    assert "float32[4,4]" in text


# One edit has one cause, whoever is asked: each command and each function of the interface.
EDITED = """
import jax, numpy as np

@jax.jit
def fit(w, x):
    return jax.nn.gelu(x @ w)

ARGUMENTS = np.ones((8, 8), np.float32), np.ones((8, 8), np.float32)
if __name__ == "__main__":
    fit(*ARGUMENTS)
"""
BEFORE = """
import jaxcache, edited

with jaxcache.watch():
    edited.fit(*edited.ARGUMENTS)
print("null")
"""
INSIDE = """
import json
import jaxcache, edited

expected = jaxcache.explain_miss(edited.fit, *edited.ARGUMENTS)
with jaxcache.watch() as report:
    edited.fit(*edited.ARGUMENTS)
(missed,) = jaxcache.last_misses()
print(json.dumps([expected.summary, [d.cause for d in expected.differences], missed.cause]))
"""
FLAG = {"XLA_FLAGS": "--xla_cpu_enable_fast_math=true"}


@pytest.mark.parametrize(
    ("activation", "env", "cause"),
    [
        ("nn.relu", {}, "code"),
        pytest.param("nn.gelu", FLAG, "flag", marks=pytest.mark.slow),
    ],
)
def test_all_name_the_same_cause(
    run_cli: RunCli,
    run_inside: Any,
    inside_python: str,
    tmp_path_factory: pytest.TempPathFactory,
    activation: str,
    env: dict[str, str],
    cause: str,
) -> None:
    home = tmp_path_factory.getbasetemp() / f"edits-jax{find_jax_pythons().index(inside_python)}"
    home.mkdir(exist_ok=True)
    cache = home / "cache"
    script = home / "edited.py"
    options = ("--json", "-C", cache, "--python", inside_python)

    def run(*words: str | Path, **settings: str) -> Any:
        done = run_cli(*words, env={"PYTHONWARNINGS": "", **settings})
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def compile_program() -> None:
        """Run the program before the edit, once for all edits."""
        run_inside(BEFORE, home=home, JAX_COMPILATION_CACHE_DIR=str(cache))
        run("warm", *options, script)

    script.write_text(EDITED)
    fill_once(cache, compile_program)
    script.write_text(EDITED.replace("nn.gelu", activation))

    (explained,) = run("explain", *options, script, **env)["comparisons"]
    (warmed,) = run("warm", *options, script, **env)["modules"]
    (churned,) = run("explain", "--churn", "--json", "-C", cache)["modules"]
    fill_once(cache, compile_program)
    summary, causes, missed = run_inside(
        INSIDE, home=home, JAX_COMPILATION_CACHE_DIR=str(cache), **env
    )

    found = [explained["differences"][0]["cause"], churned["causes"][0]["cause"], causes[0]]
    assert (found, missed) == ([cause] * 3, warmed["cause"])
    assert summary.endswith(missed)
