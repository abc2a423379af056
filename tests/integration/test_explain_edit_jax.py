"""Two versions of a program, run by ``warm``: explain names the edit and its operations."""

import json
import re
from pathlib import Path

import pytest
from command_line import run_in_process
from conftest import RunCli, clean_environment

pytestmark = pytest.mark.jax

PROGRAM = """
import sys
from functools import partial
import jax, jax.numpy as jnp, numpy as np
what, value = sys.argv[1], int(sys.argv[2])
x = np.ones(4, np.float32)
if what == "creation":
    jnp.ones(value)
elif what == "x64":
    jax.config.update("jax_enable_x64", bool(value))
    jnp.arange(5)
elif what == "width":
    layer = lambda x: (x @ jax.random.normal(jax.random.PRNGKey(0), (4, value))).sum()
    jax.jit(layer)(x)
elif what == "static":
    @partial(jax.jit, static_argnums=1)
    def f(x, n):
        for _ in range(n):
            x = jnp.sin(x)
        return x
    f(x, value)
elif what == "partners":
    f = jax.jit(lambda x: x * 2 + 1)
    for n in ((4, 100, 8), (9, 4, 104))[value]:
        f(np.ones(n, np.float32))
"""


@pytest.mark.parametrize(
    ("what", "values", "sides", "cause"),
    [
        ("creation", (8, 9), {("float32[8]", "float32[9]")}, "unknown"),
        ("x64", (0, 1), {("jax_enable_x64=False", "jax_enable_x64=True")}, "config"),
        ("width", (16, 32), None, "code"),
        ("static", (2, 3), {("n=2", "n=3")}, "static-argument"),
        (
            "partners",
            (0, 1),
            {("float32[100]", "float32[9]"), ("float32[8]", "float32[104]")},
            "argument-shape",
        ),
    ],
)
def test_a_run_is_compared_with_one_of_warm_by_its_sketches(
    run_cli: RunCli,
    jax_python: str,
    tmp_path: Path,
    what: str,
    values: tuple[int, int],
    sides: set[tuple[str | None, str | None]] | None,
    cause: str,
) -> None:
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    options = ("-C", tmp_path / "cache", "--python", jax_python)
    done = run_cli("warm", *options, script, what, str(values[0]), env={"PYTHONWARNINGS": ""})
    assert done.returncode == 0, done.stderr
    done = run_cli("explain", "--json", *options, script, what, str(values[1]))
    differences = json.loads(done.stdout)["differences"]
    own = [d for d in differences if d["cause"] != "unknown"] or differences
    assert {d["cause"] for d in own} == {cause}, differences
    if sides is not None:
        assert {(d["left"], d["right"]) for d in own} == sides


def test_an_edit_that_adds_operations_is_not_a_flag(
    run_cli: RunCli, each_jax_python: str, tmp_path: Path
) -> None:
    """JAX sets an XLA flag for programs of more than ten operations, which nobody asked for."""
    script = tmp_path / "program.py"
    text = "import jax, jax.numpy as jnp\n@jax.jit\ndef step(x):\n    return jax.nn.{}(x @ x)\n"
    call = "step(jnp.ones((8, 8)))\n"
    options = ("-C", tmp_path / "cache", "--python", each_jax_python)
    script.write_text(text.format("relu") + call)
    assert run_cli("warm", *options, script).returncode == 0
    script.write_text(text.format("gelu") + call)
    done = run_cli("explain", *options, script, "--json")
    (difference,) = json.loads(done.stdout)["differences"]
    assert (difference["cause"], difference["left"]) == ("code", "relu")
    assert [(w["line"], w["function"]) for w in difference["where"]] == [(4, "step")]


SCANNED = """
import jax, jax.numpy as jnp
def loss(w, x):
    def body(c, wi):
        return jnp.tanh(c @ wi), None
    y, _ = jax.lax.scan(body, x, w)
    return (y ** 2).mean()
jax.jit(jax.grad(loss))(jnp.ones((4, 8, 8)), jnp.ones((2, 8)))
"""


def test_what_a_gradient_stores_for_an_edited_loop_is_not_taken_for_an_edit(
    run_cli: RunCli, jax_python: str, tmp_path: Path
) -> None:
    script = tmp_path / "program.py"
    options = ("-C", tmp_path / "cache", "--python", jax_python)
    script.write_text(SCANNED)
    assert run_cli("warm", *options, script).returncode == 0
    script.write_text(SCANNED.replace("tanh", "sin"))
    done = run_cli("explain", *options, script, "--json")
    first, *others = json.loads(done.stdout)["differences"]
    assert "program.py:5 in `loss.body` was edited" in first["meaning"]
    assert others == []


MODEL = "import jax\ndef activation(x):\n    return jax.nn.{}(x)\n"


FIT = """import jax, numpy as np
from model import activation
def loss(w, x): return (activation(x @ w) @ w).sum()
@jax.jit
def evaluate(w, x): return loss(w, x)
@jax.jit
def train_step(w, x):
    for _ in range(4): w = w - jax.grad(loss)(w, x)
    return w
x = np.ones((8, 8), np.float32)
evaluate(x, x), train_step(x, x)
"""


def test_an_edit_is_named_by_its_operations_before_and_after_the_run(
    jax_python: str, tmp_path: Path
) -> None:
    """One of the modules is the example."""
    env = clean_environment(tmp_path) | {"COLUMNS": "160"}
    (tmp_path / "fit.py").write_text(FIT)
    options = ("-C", tmp_path / "cache", "--python", jax_python)
    # Of another length than the edit: Python finds bytecode stale by the second and the length.
    (tmp_path / "model.py").write_text(MODEL.format("softplus"))
    first = run_in_process(["warm", *options, "fit.py"], env=env, cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    (tmp_path / "model.py").write_text(MODEL.format("silu"))
    words = ["explain", *options, "--json", "fit.py"]
    before = json.loads(run_in_process(words, env=env, cwd=tmp_path).stdout)
    done = run_in_process(["warm", *options, "fit.py"], env=env, cwd=tmp_path)
    lines = done.stderr.splitlines()
    rows = [line for line in lines if line.startswith(("jit_evaluate", "jit_train_step"))]
    assert len(rows) == 2
    for row in rows:
        assert "silu at model.py:3 in `activation`" in row, row
        assert " → " in row.partition("written")[2]
    (example,) = [line for line in lines if line.startswith("in full: ")]
    assert re.search(r" jit_(train_step|evaluate)-", example)
    after = json.loads(run_in_process(words, env=env, cwd=tmp_path).stdout)
    for module in ("jit_evaluate", "jit_train_step"):
        (told,) = [c for c in before["comparisons"] if c["module"] == module]
        (hit,) = [c for c in after["hits"] if c["module"] == module]
        assert hit["differences"] == told["differences"]
        assert "silu at model.py:3" in hit["cause"]


SHAPES = """import jax, jax.numpy as jnp
f = jax.jit(lambda x: (x * 2).sum())
for n in (3, 4, 5):
    f(jnp.zeros((n, 2)))
    f(jnp.arange(n))
"""


@pytest.mark.parametrize("module", ["jit_broadcast_in_dim", "jit_iota"])
def test_a_size_that_creates_an_array_is_no_edit(
    run_cli: RunCli, jax_python: str, tmp_path: Path, module: str
) -> None:
    script = tmp_path / "shapes.py"
    script.write_text(SHAPES)
    options = ("-C", tmp_path / "cache")
    assert run_cli("warm", *options, "--python", jax_python, script).returncode == 0
    churn = json.loads(run_cli("explain", *options, "--churn", "--json").stdout)
    (churned,) = [m for m in churn["modules"] if m["module"] == module]
    assert [c["meaning"].partition(";")[0] for c in churned["causes"]] == [
        "the shape or dtype of the result"
    ]
    key = next(k for k in run_cli("ls", *options, "-q").stdout.split() if k.startswith(module))
    done = run_cli("explain", *options, "--json", key)
    (difference,) = json.loads(done.stdout)["differences"]
    assert (difference["cause"], difference["fix"]) == ("unknown", None)
    assert difference["left"] != difference["right"]
    assert difference["left"].startswith(("float32[", "int32["))


def test_another_array_is_named_without_its_values(
    run_cli: RunCli, jax_python: str, tmp_path: Path
) -> None:
    """The values of an array that a function closes over are not recorded."""
    text = "import jax, numpy as np\na = np.full(99, {}, np.float32)\njax.jit(lambda x: x + a)(a)\n"
    script = tmp_path / "train.py"
    options = ("-C", tmp_path / "cache", "--python", jax_python)
    script.write_text(text.format("np.arange(99)"))
    assert run_cli("warm", *options, script).returncode == 0
    script.write_text(text.format("np.arange(1, 100)"))
    (difference,) = json.loads(run_cli("explain", *options, script, "--json").stdout)["differences"]
    assert (difference["cause"], difference["evidence"]) == ("constant", "layer")
    assert difference["meaning"] == "only the values of an array differ that the program contains"
