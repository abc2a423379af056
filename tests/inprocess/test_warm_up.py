"""``jaxcache.warm_up()`` leaves nothing to trace, load or compile for the first call."""

import pytest

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
found["plain-refused"] = refused(lambda: step(*arrays()))
found["committed-refused"] = refused(lambda: step(*arrays(device)))
found["committed"] = warm_up(step, *shapes(here)).arguments
found["committed-refused-now"] = refused(lambda: step(*arrays(device)))
found["again"] = warm_up(step, *arrays()).outcome
before = [*calls]
kept = arrays()
zeros = warm_up(step, *kept, mode="b", execute="zeros")
found["zeros"] = [zeros.executed, calls[len(before):], kept[1].is_deleted()]
errors = []
key = jax.random.key(0)
for call in (
    lambda: warm_up(lambda x: x, w),
    lambda: warm_up(step, *kept, execute="ones"),
    lambda: warm_up(jax.jit(lambda k: k), key, execute="zeros"),
):
    try:
        call()
    except jaxcache.JaxcacheError as error:
        errors.append(error.code)
found["errors"] = errors
print(json.dumps(found))
"""


def test_the_first_call_has_nothing_left_to_do(run_inside: RunInside) -> None:
    found = run_inside(PROGRAM.replace("    jax.debug.callback(calls.append, mode)\n", ""))
    outcome, arguments, executed, text = found["plain"]
    assert (outcome, executed) == ("compiled", False)
    assert arguments == {"assumed-uncommitted": 2}
    assert "2 of 2 arrays are assumed to be on no particular device" in text.replace("\n", " ")
    assert text.startswith("step: compiled in ") and found["again"] == "in-memory"
    assert not found["plain-refused"], "what was warmed up is neither loaded nor compiled"
    assert found["committed-refused"], "commitment decides whether it helps"
    assert found["committed"] == {"committed": 2}
    assert not found["committed-refused-now"]
    again = run_inside(PROGRAM.replace("    jax.debug.callback(calls.append, mode)\n", ""))
    assert again["plain"][0] == "loaded"


def test_zeros_execute_the_function_and_leave_its_arguments(run_inside: RunInside) -> None:
    found = run_inside(PROGRAM)
    assert found["zeros"] == [True, ["b"], False]
    assert found["errors"] == ["not-jitted", "usage", "usage"]
