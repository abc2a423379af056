"""Every cause of a miss, made by a real pair of runs: explain names it."""

import json
import os
import platform
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from command_line import run_in_process
from conftest import RunCli, StepRuns, clean_environment, jax_version
from plain_jax import run_plain

from jaxcache.core.machine import CACHE_PATH

WORKLOAD = Path(__file__).with_name("explain_workload.py")
WRITE_ALL = {
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
}
FOUR = {"XLA_FLAGS": "--xla_force_host_platform_device_count=4"}
FLAG = {"XLA_FLAGS": "--xla_llvm_disable_expensive_passes=true"}
SLOW = {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "100"}
pytestmark = pytest.mark.jax


@dataclass(frozen=True)
class Cause:
    """Two runs that differ in one thing, and what explain must say of it."""

    name: str
    component: str
    says: str
    """Part of the meaning, or of the value on the right."""
    right: dict[str, Any] = field(default_factory=dict)
    left: dict[str, Any] = field(default_factory=dict)
    right_env: dict[str, str] = field(default_factory=dict)
    left_env: dict[str, str] = field(default_factory=dict)
    argv: tuple[str, ...] = ()


CAUSES = (
    Cause("an XLA flag", "XLA flags", "--xla_llvm_disable_expensive_passes", right_env=FLAG),
    Cause("a flag on argv", "XLA flags", "--xla_mine=1", argv=("--xla_mine=1",)),
    Cause("dtype", "computation", "the dtypes of arguments", {"dtype": "int32"}),
    Cause("shape", "computation", "the shapes of arguments", {"shape": [8, 24]}),
    Cause("constant", "computation", "4", {"constant": 4}),
    Cause("code", "computation", "sub", {"code": 1}),
    Cause("device count", "accelerator_config", "device_count=4", right_env=FOUR),
    Cause(
        "mesh",
        "compile_options",
        "num_partitions=4",
        {"sharding": ["d"], "devices": 4},
        {"sharding": ["d"], "devices": 2},
        FOUR,
        FOUR,
    ),
    Cause(
        "sharding",
        "computation",
        "shardings of arguments",
        {"sharding": ["d"]},
        {"sharding": []},
        FOUR,
        FOUR,
    ),
    Cause(
        "threshold",
        "jax_persistent_cache_min_compile_time_secs",
        "too fast",
        {"constant": 50},
        {"constant": 50},
        SLOW,
        SLOW,
    ),
    Cause("custom hook", "custom_hook", "custom_hook", {"hook": "mine"}),
    Cause("donated argument", "computation", "donated arguments", {"donate": 1}, {"scale": 1}),
    Cause(
        "a name with an address",
        "computation",
        "holds an address",
        {"address": 1},
        {"address": 1},
    ),
)


class Lab:
    """A cache that one Python fills, and the workload."""

    def __init__(self, run_cli: RunCli, python: str, home: Path) -> None:
        self._run_cli = run_cli
        self.python = python
        self.cache = home / "cache"
        self.cache.mkdir()

    def run(
        self,
        change: dict[str, Any],
        env: dict[str, str],
        *argv: str,
        command: tuple[str, ...] = ("run",),
        python: str | None = None,
    ) -> str:
        """Run the workload with one thing changed, and return what the command prints."""
        program = [python or self.python, WORKLOAD, self.cache, json.dumps(change), *argv]
        own = {"PYTHONWARNINGS": "", **WRITE_ALL, **env}
        done = self._run_cli(*command, "-C", self.cache, "--", *program, env=own)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def explain(
        self, change: dict[str, Any], env: dict[str, str], *argv: str, python: str | None = None
    ) -> list[dict[str, Any]]:
        """Return the differences of a changed program from the recorded one."""
        words = ("explain", "--json")
        return differences(self.run(change, env, *argv, command=words, python=python))


@pytest.fixture
def lab(run_cli: RunCli, jax_python: str, tmp_path: Path) -> Lab:
    return Lab(run_cli, jax_python, tmp_path)


def differences(printed: str) -> list[dict[str, Any]]:
    """The differences of the program that the workload compiles."""
    document = json.loads(printed)
    assert document["schema_version"] == 1
    rows = [c for c in document["comparisons"] if c["module"].startswith("jit_step")]
    assert len(rows) <= 1
    return [d for row in rows for d in row["differences"]]


#: What no other test of the default suite has.
QUICK = {"a flag on argv", "custom hook"}


@pytest.mark.parametrize(
    "cause",
    [pytest.param(c, id=c.name, marks=[pytest.mark.slow] * (c.name not in QUICK)) for c in CAUSES],
)
def test_the_cause_is_named_by_every_jax(
    run_cli: RunCli, each_jax_python: str, tmp_path: Path, cause: Cause
) -> None:
    lab = Lab(run_cli, each_jax_python, tmp_path)
    lab.run(cause.left, cause.left_env)
    found = lab.explain(cause.right, cause.right_env, *cause.argv)
    named = [d for d in found if d["component"] == cause.component]
    assert len(named) == 1, found
    assert cause.says in f"{named[0]['meaning']} {named[0]['right']}", named
    assert named[0]["cause"] != "unknown"
    assert len(found) == 1, found


def test_a_host_callback(lab: Lab) -> None:
    lab.run({"callback": 1}, {})
    found = lab.explain({"callback": 1}, {})
    expected = [] if jax_version(lab.python) >= (0, 11) else ["host callbacks"]
    assert [d["component"] for d in found] == expected


def test_another_jaxlib(lab: Lab) -> None:
    many = os.environ.get("JAXCACHE_TEST_JAX_PYTHONS", "").split(os.pathsep)
    others = [p for p in many if p and p != lab.python]
    if not others:
        pytest.skip("needs a second JAX: set JAXCACHE_TEST_JAX_PYTHONS")
    lab.run({}, {})
    found = lab.explain({}, {}, python=others[-1])
    versions = {d["component"]: (d["left"], d["right"]) for d in found}["jax_lib version"]
    assert all(v[0].isdigit() for v in versions)
    assert versions[0] != versions[1]


def test_two_keys_are_compared_by_their_entries(run_cli: RunCli, lab: Lab) -> None:
    keys: list[str] = []
    for change, env in (({}, {}), ({"shape": [8, 24]}, {}), ({}, FLAG)):
        lab.run(change, env)
        listed = run_cli("ls", "-q", "-C", lab.cache, "jit_step*").stdout.split()
        keys += [key for key in listed if key not in keys]
    pairs = [run_cli("explain", "--json", keys[0], key, "-C", lab.cache) for key in keys[1:]]
    (shape,), (flag,) = (differences(done.stdout) for done in pairs)
    assert shape["component"] == "computation"
    assert "the shapes of arguments" in shape["meaning"]
    assert flag["component"] == "XLA flags"
    assert "xla_llvm_disable_expensive_passes" in flag["right"]


ADDING = "import jax, numpy as np; jax.jit(lambda x: x + {})(np.ones(3, np.float32))"


def test_a_run_that_writes_nothing_names_the_path_in_its_keys(
    run_cli: RunCli, step_runs: StepRuns, step_cache: Path, each_jax_python: str
) -> None:
    script = step_runs.directory / "script.py"
    words = ("-C", step_cache, "--python", each_jax_python, "--json", script)
    document = json.loads(run_cli("warm", "--no-write", *words).stdout)
    (module,) = [m for m in document["modules"] if m["module"] == "jit_step"]
    if CACHE_PATH.holds(document["processes"][0]["jax"]):
        assert module["cause"].startswith("cache path: none (--portable) → ")
    else:
        assert module["outcome"] == "hit"


def test_after_a_run_that_was_too_fast_to_be_written_the_cause_is_the_path_or_the_threshold(
    run_cli: RunCli, tmp_path: Path, each_jax_python: str
) -> None:
    (tmp_path / "x.py").write_text(ADDING.format(2))
    hashes_path = CACHE_PATH.holds(".".join(map(str, jax_version(each_jax_python))))
    for name, option in (("same", "--all"), ("portable", "--portable")):
        place = ("-C", tmp_path / name, "--json")
        assert run_cli("run", *place, "--", each_jax_python, "x.py").returncode == 0
        warmed = run_cli("warm", *place, "--python", each_jax_python, option, "x.py")
        (module,) = json.loads(warmed.stdout)["modules"]
        then = r"at \d\d:\d\d it was compiled too fast to be written"
        path = f"cache path: {tmp_path / name} → none (--portable)"
        is_other_key = hashes_path and name == "portable"
        assert re.fullmatch(re.escape(path) if is_other_key else then, module["cause"])


@pytest.mark.parametrize("is_recorded", [True, False])
def test_metadata_in_keys_is_the_cause_of_a_miss_where_the_run_is_recorded(
    run_cli: RunCli, cache: Path, jax_python: str, is_recorded: bool
) -> None:
    script = cache.parent / "x.py"
    script.write_text(ADDING.format(2).replace("; ", "\n"))
    setting = "JAX_COMPILATION_CACHE_INCLUDE_METADATA_IN_KEY"
    env = {**WRITE_ALL, setting: "1", "JAX_COMPILATION_CACHE_DIR": str(cache)}
    if is_recorded:
        assert run_cli("run", "--", jax_python, script, env=env).returncode == 0
    else:
        run_plain([jax_python, script], env=clean_environment(cache.parent) | env)
    script.write_text("# moved\n" + script.read_text())
    done = run_cli("explain", "--json", "--python", jax_python, script, env=env)
    (difference,) = json.loads(done.stdout)["differences"]
    assert difference["cause"] == ("source-lines" if is_recorded else "unknown")
    assert (setting in difference["meaning"]) == is_recorded
    is_not_guessed = difference["meaning"].startswith("not known: no record of the earlier program")
    assert (is_not_guessed, difference["evidence"] == "unknown") == (not is_recorded,) * 2


# What explain says of a script or a command that it runs beside a cache.


LOW = {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}


def test_a_script_is_explained_against_the_cache(
    run_cli: RunCli, jax_python: str, tmp_path: Path
) -> None:
    """The second run of an edited script, and the ledger then knows the components."""
    cache = tmp_path / "cache"
    args = (WORKLOAD, cache)

    def explain(change: dict[str, Any]) -> list[dict[str, Any]]:
        options = ("-C", cache, "--python", jax_python, "--json")
        done = run_cli("explain", *options, *args, json.dumps(change))
        assert done.returncode == 0, done.stderr
        rows = json.loads(done.stdout)["comparisons"]
        steps = [row for row in rows if row["module"].startswith("jit_step")]
        return [difference for row in steps for difference in row["differences"]]

    unrun = tmp_path / "unrun.py"
    unrun.write_text("print('it ran')")
    missing = run_cli("explain", "-C", cache, "--json", "--python", jax_python, unrun)
    assert (missing.returncode, json.loads(missing.stderr)["error"]["code"]) == (10, "no-cache")
    assert "it ran" not in missing.stdout
    assert not cache.exists(), "explain has made the cache that it explains"
    cache.mkdir()
    assert [d["cause"] for d in explain({})] == ["not-cached-before"]
    assert not [*cache.iterdir()], "explain has filled the cache that it explains"
    warm = ("warm", "-C", cache, "--python", jax_python, *args, "{}")
    assert run_cli(*warm, env={"PYTHONWARNINGS": ""}).returncode == 0
    before = {p: p.read_bytes() for p in cache.rglob("*") if p.is_file()}
    assert explain({}) == []
    (found,) = explain({"constant": 4})
    assert (found["cause"], found["left"], found["right"]) == ("constant", "3", "4")
    assert [(Path(p["file"]).name, p["line"]) for p in found["where"]] == [(WORKLOAD.name, 28)]
    after = {p: p.read_bytes() for p in cache.rglob("*") if p.is_file()}
    assert before == after, "explain has changed the cache that it explains"


def test_a_damaged_entry_is_named(run_cli: RunCli, jax_python: str, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    script = tmp_path / "train.py"
    script.write_text(ADDING.format(2))
    plain = clean_environment(tmp_path) | LOW | {"JAX_COMPILATION_CACHE_DIR": str(cache)}
    run_plain([jax_python, script], env=plain)
    for entry in cache.glob("*-cache"):
        entry.write_bytes(entry.read_bytes()[:-9])
    done = run_cli("explain", "-C", cache, "--python", jax_python, "--json", script)
    (difference,) = json.loads(done.stdout)["differences"]
    assert re.search(r": jaxcache verify -C \S+ --fix$", difference["fix"])
    assert (difference["component"], difference["meaning"]) == (
        "entry",
        "the same key: the entry is damaged",
    )


def test_explain_takes_portable(
    run_cli: RunCli, step_runs: StepRuns, step_cache: Path, each_jax_python: str
) -> None:
    words = ("--portable", "-C", step_cache, "--python", each_jax_python)
    done = run_cli("explain", "--json", *words, step_runs.directory / "script.py")
    assert json.loads(done.stdout)["differences"] == [], done.stdout


# Two versions of a program, run by ``warm``: explain names the edit and its operations.


X64 = """
import sys
import jax, jax.numpy as jnp
jax.config.update("jax_enable_x64", bool(int(sys.argv[1])))
jnp.arange(5)
"""
PROGRAM = """
import sys
from functools import partial
import jax, jax.numpy as jnp, numpy as np
value = int(sys.argv[1])
x = np.ones(4, np.float32)
jnp.ones(8 + value)
@jax.jit
def wide(x):
    return (x @ jax.random.normal(jax.random.PRNGKey(0), (4, (16, 32)[value]))).sum()
wide(x)
@partial(jax.jit, static_argnums=1)
def repeated(x, n):
    for _ in range(n):
        x = jnp.sin(x)
    return x
repeated(x, 2 + value)
@jax.jit
def double(x):
    return x * 2 + 1
for n in ((4, 100, 8), (9, 4, 104))[value]:
    double(np.ones(n, np.float32))
"""
#: The module, the cause, and what differs.
SKETCHED: tuple[tuple[str, str, set[tuple[str, str]] | None], ...] = (
    ("jit_broadcast_in_dim", "unknown", {("float32[8]", "float32[9]")}),
    ("jit_wide", "code", None),
    ("jit_repeated", "static-argument", {("n=2", "n=3")}),
    (
        "jit_double",
        "argument-shape",
        {("float32[100]", "float32[9]"), ("float32[8]", "float32[104]")},
    ),
)


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        (PROGRAM, SKETCHED),
        (X64, (("jit_iota", "config", {("jax_enable_x64=False", "jax_enable_x64=True")}),)),
    ],
    ids=["program", "x64"],
)
def test_a_run_is_compared_with_one_of_warm_by_its_sketches(
    run_cli: RunCli, jax_python: str, tmp_path: Path, program: str, expected: Any
) -> None:
    script = tmp_path / "program.py"
    script.write_text(program)
    options = ("-C", tmp_path / "cache", "--python", jax_python)
    done = run_cli("warm", *options, script, "0", env={"PYTHONWARNINGS": ""})
    assert done.returncode == 0, done.stderr
    done = run_cli("explain", "--json", *options, script, "1")
    comparisons = json.loads(done.stdout)["comparisons"]
    for module, cause, sides in expected:
        found = [d for c in comparisons if c["module"] == module for d in c["differences"]]
        assert {d["cause"] for d in found} == {cause}, (module, comparisons)
        assert sides is None or {(d["left"], d["right"]) for d in found} == sides


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
    done = run_cli("explain", *options, "--json", script)
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
    done = run_cli("explain", *options, "--json", script)
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


def test_a_size_that_creates_an_array_is_no_edit(
    run_cli: RunCli, jax_python: str, tmp_path: Path
) -> None:
    script = tmp_path / "shapes.py"
    script.write_text(SHAPES)
    options = ("-C", tmp_path / "cache")
    assert run_cli("warm", *options, "--python", jax_python, script).returncode == 0
    churn = json.loads(run_cli("explain", *options, "--churn", "--json").stdout)
    keys = run_cli("ls", *options, "-q").stdout.split()
    for module in ("jit_broadcast_in_dim", "jit_iota"):
        (churned,) = [m for m in churn["modules"] if m["module"] == module]
        assert [c["meaning"].partition(";")[0] for c in churned["causes"]] == [
            "the shape or dtype of the result"
        ]
        key = next(k for k in keys if k.startswith(module))
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
    (difference,) = json.loads(run_cli("explain", *options, "--json", script).stdout)["differences"]
    assert (difference["cause"], difference["evidence"]) == ("constant", "layer")
    assert difference["meaning"] == "only the values of an array differ that the program contains"


# ``explain`` of an edit, where others than jaxcache on this machine used the cache since.


PLAIN_PROGRAM = """
import jax, jax.numpy as jnp

def activation(x):
    return jnp.{name}(x)

@jax.jit
def step(x):
    return activation(x).sum()

step(jnp.ones((4, 4)))
"""


def test_the_path_of_a_cache_that_was_moved_is_blamed_where_it_is_in_keys(
    run_cli: RunCli, each_jax_python: str, tmp_path: Path
) -> None:
    """Plain JAX filled ``a``, which is ``b`` now, and judges with the program as it was."""
    script = tmp_path / "train.py"
    cache = tmp_path / "b"
    env = {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0", "JAX_PLATFORMS": "cpu"}
    plain = clean_environment(tmp_path) | env

    def use(directory: Path) -> None:
        used = {"JAX_COMPILATION_CACHE_DIR": str(directory)}
        run_plain([each_jax_python, script], env=plain | used)

    def keys() -> set[str]:
        return {path.name.removesuffix("-cache") for path in cache.glob("jit_step-*-cache")}

    script.write_text(PLAIN_PROGRAM.format(name="tanh"))
    use(tmp_path / "a")
    (tmp_path / "a").rename(cache)
    (old,) = keys()
    script.write_text(PLAIN_PROGRAM.format(name="sin"))
    options = ("-C", cache, "--python", each_jax_python, "--json", script)
    assert run_cli("warm", *options, env=env).returncode == 0
    (new,) = keys() - {old}
    compared = json.loads(run_cli("explain", old, new, "-C", cache, "--json").stdout)

    script.write_text(PLAIN_PROGRAM.format(name="tanh"))
    use(cache)
    is_in_keys = len(keys()) == 3
    assert ("path" in {d["cause"] for d in compared["differences"]}) is is_in_keys


def test_an_edit_after_a_hit_of_what_plain_python_compiled_is_named_since_the_recorded_run(
    run_cli: RunCli, jax_python: str, tmp_path: Path
) -> None:
    """The hit makes the entry, of which no program is recorded, the one that was used last."""
    script = tmp_path / "train.py"
    cache = tmp_path / "cache"
    env = {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0", "JAX_PLATFORMS": "cpu"}
    plain = clean_environment(tmp_path) | env | {"JAX_COMPILATION_CACHE_DIR": str(cache)}
    options = ("-C", cache, "--python", jax_python)
    script.write_text(PLAIN_PROGRAM.format(name="sin"))
    run_plain([jax_python, script], env=plain)
    keys = {path.name.removesuffix("-cache") for path in cache.glob("jit_step-*-cache")}
    script.write_text(PLAIN_PROGRAM.format(name="cos"))
    first_warm = run_cli("warm", *options, script, env=env).stderr
    assert "not known: no record of the earlier program" in first_warm
    assert "in full: " not in first_warm  # there is no more to say
    (recorded,) = {p.name.removesuffix("-cache") for p in cache.glob("jit_step-*-cache")} - keys

    script.write_text(PLAIN_PROGRAM.format(name="tanh"))
    words = ("explain", *options, "--json", script)
    document = json.loads(run_cli(*words, env=env).stdout)
    (step,) = (c for c in document["comparisons"] if c["module"] == "jit_step")
    assert (step["compared_with"][:6], step["left_key"]) == ("run of", recorded)
    (change,) = step["differences"]
    assert ("cos" in change["left"], "tanh" in change["right"]) == (True, True)
    warm = run_cli("warm", *options, script, env={**env, "COLUMNS": "160"}).stderr
    (row,) = (line for line in warm.splitlines() if line.startswith("jit_step"))
    assert row.endswith("cosine → tanh at train.py:5 in `activation`"), row


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="a flag for x86 CPUs")
def test_an_edit_is_no_other_machine_where_another_kind_of_cpu_used_the_cache_last(
    run_cli: RunCli, jax_python: str, tmp_path: Path
) -> None:
    """A flag hides features of the CPU, so that the runs with it are those of another machine."""
    script = tmp_path / "train.py"
    options = ("-C", tmp_path / "cache", "--python", jax_python)
    script.write_text(PLAIN_PROGRAM.format(name="tanh"))
    for flags in ("", "--xla_cpu_max_isa=SSE4_2"):
        warm = run_cli("warm", *options, script, env={"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"})
        assert warm.returncode == 0, warm.stderr
    script.write_text(PLAIN_PROGRAM.format(name="sin"))
    env = {"JAX_PLATFORMS": "cpu"}
    document = json.loads(run_cli("explain", *options, "--json", script, env=env).stdout)
    (step,) = (c for c in document["comparisons"] if c["module"] == "jit_step")
    assert [d["cause"] for d in step["differences"]] == ["code"]
    warm = run_cli("warm", *options, script, env=env)
    (row,) = (line for line in warm.stderr.splitlines() if line.startswith("jit_step"))
    assert row.endswith("→ sine at train.py:5 in `activation`"), row
