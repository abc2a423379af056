"""``explain`` names what a change of a real program did to its keys, and nothing else.

Where it prints a cure, that is done, and plain JAX hits in a process of its own, without jaxcache.
"""

import json
import platform
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from acting import acts_on, says
from conftest import RunCli, clean_environment, find_jax_pythons, has_modules, jax_version
from once import fill_once
from plain_jax import Counts, count_plain
from warm_checks import only as row_of

from jaxcache.cache.explain.say import NOT_KNOWN
from jaxcache.core.machine import CACHE_PATH

pytestmark = pytest.mark.jax
PROGRAM = """\
import sys
from functools import partial
import jax, jax.numpy as jnp, numpy as np
RATE = 0.1
SIZES = [int(word) for word in sys.argv[1:] if word.isdigit()] or [8]

@jax.jit
def step(w, x):
    y = jnp.tanh(x @ w)
    return {"loss": (y * RATE).sum()}

def make(power):
    return jax.jit(lambda x: x * power + 1)

layers = [make(power) for power in (1.5, 2.5, 3.5)]
for size in SIZES:
    x = np.ones((size, 4), np.float32)
    step(np.ones((4, 4), np.float32), x)
    for layer in layers:
        layer(x)
"""
FAST_MATH_FLAG = "--xla_cpu_enable_fast_math=true"
FAST_MATH_OPTION = "compiler_options={'xla_cpu_enable_fast_math': True}"
FAST_MATH = {"XLA_FLAGS": FAST_MATH_FLAG}
NO_PATH = {"JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES": "none"}
METADATA = "JAX_COMPILATION_CACHE_INCLUDE_METADATA_IN_KEY"
SECONDS = "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"
BASE = {SECONDS: "0", "JAX_PLATFORMS": "cpu", "PYTHONWARNINGS": ""}
Document = dict[str, Any]


class Lab(NamedTuple):
    """A script and its cache, which one Python runs under jaxcache, and alone as the judge."""

    run_cli: RunCli
    python: str
    home: Path

    @property
    def script(self) -> Path:
        return self.home / "main.py"

    @property
    def cache(self) -> Path:
        return self.home / "cache"

    def write(self, *edits: tuple[str, str], text: str = PROGRAM) -> None:
        for before, after in edits:
            assert text.count(before) == 1
            text = text.replace(before, after)
        self.script.write_text(text)

    def warm(self, *argv: str, **env: str) -> Document:
        return self.run("warm", "-C", self.cache, self.script, *argv, **env)

    def explain(self, *argv: str, **env: str) -> Document:
        return self.run("explain", "-C", self.cache, self.script, *argv, **env)

    def run(self, command: str, *words: str | Path, **env: str) -> Document:
        options = ("--json", *(() if "--" in words else ("--python", self.python)))
        done = self.run_cli(command, *options, *words, env=BASE | env, cwd=self.home)
        assert done.returncode == 0, done.stderr
        document: Document = json.loads(done.stdout)
        return document

    def warm_once(self) -> None:
        """Fill the cache by ``warm``, which records the run: once in this process."""
        fill_once(self.home, self.warm)

    def plain(self, fix: str = "", **env: str) -> Counts:
        """Return what plain JAX counts after a command of the shell."""
        used = BASE | {"JAX_COMPILATION_CACHE_DIR": str(self.cache)} | env
        used = clean_environment(self.home) | used
        if fix:
            printed = subprocess.check_output(["sh", "-ec", f"{fix}; env -0"], env=used, text=True)
            used = dict(line.split("=", 1) for line in printed.split("\0") if line)
        counts = count_plain(self.python, self.script, used, self.home)
        assert counts
        return counts

    def plain_once(self) -> None:
        """Fill the cache by plain JAX, which records nothing: once in this process."""
        fill_once(self.home, self.plain)

    def check_cured(self, fix: str, **env: str) -> None:
        says(fix)
        counts = self.plain(fix, **env)
        assert counts.hits == counts.requests > 0, fix

    @property
    def is_bound(self) -> bool:
        """Whether keys of this JAX contain the cache's path."""
        return CACHE_PATH.holds(".".join(map(str, jax_version(self.python))))

    def entry(self) -> Path:
        (path,) = self.cache.glob("jit_step-*-cache")
        return path


MakeLab = Callable[[str, str], Lab]


@pytest.fixture
def make_lab(run_cli: RunCli, tmp_path_factory: pytest.TempPathFactory) -> MakeLab:
    """Make a laboratory at a path that stays, because the path may be in keys."""

    def make(python: str, name: str) -> Lab:
        home = tmp_path_factory.getbasetemp() / name
        shutil.rmtree(home, ignore_errors=True)
        home.mkdir()
        lab = Lab(run_cli, python, home)
        lab.write()
        return lab

    return make


@pytest.fixture
def lab(make_lab: MakeLab, jax_python: str) -> Lab:
    return make_lab(jax_python, "lab")


@pytest.fixture
def each_lab(make_lab: MakeLab, each_jax_python: str) -> Lab:
    """One for each JAX of the matrix."""
    return make_lab(each_jax_python, f"lab-jax{find_jax_pythons().index(each_jax_python)}")


def differences(document: Document, module: str = "") -> list[dict[str, Any]]:
    rows = [c for c in document["comparisons"] if c["module"].startswith(module)]
    return [difference for row in rows for difference in row["differences"]]


def only(document: Document, module: str = "") -> dict[str, Any]:
    """The only difference of the only miss."""
    (difference,) = differences(document, module)
    return difference


def told(difference: dict[str, Any]) -> tuple[str, str | None, str | None, str | None]:
    """The cause, what was on either side, and the cure."""
    return difference["cause"], difference["left"], difference["right"], difference["fix"]


# What the environment or the machine has otherwise: the cache holds what plain JAX wrote.


@acts_on("unset …")
@pytest.mark.parametrize(
    ("variable", "text", "cause", "sides"),
    [
        ("XLA_FLAGS", FAST_MATH_FLAG, "flag", ("without", FAST_MATH_FLAG)),
        ("JAX_DISABLE_MOST_OPTIMIZATIONS", "1", "config", ("without", "1")),
        pytest.param(
            *("JAX_NUM_CPU_DEVICES", "3", "device", ("device_count=1", "device_count=3")),
            marks=pytest.mark.slow,
        ),
        pytest.param(
            *("LIBTPU_INIT_ARGS", "--xla_tpu_x=1", "flag", ("without", "--xla_tpu_x=1")),
            marks=pytest.mark.slow,
        ),
        pytest.param(METADATA, "1", "config", ("without", "1"), marks=pytest.mark.slow),
    ],
)
def test_what_the_environment_has_more_is_undone(
    each_lab: Lab, variable: str, text: str, cause: str, sides: tuple[str, str]
) -> None:
    each_lab.plain_once()
    env = {variable: text}
    document = each_lab.explain(**env)
    assert len(document["comparisons"]) == 4
    fix = f"unset {variable}"
    found = {(d["evidence"], *told(d)) for d in differences(document)}
    assert found == {("proved", cause, *sides, fix)}
    assert document["verdict"][0].startswith(f"4 of 4 hit after: {fix}")
    each_lab.check_cured(fix, **env)


@acts_on("export …=…")
def test_one_of_several_flags_is_undone(each_lab: Lab) -> None:
    """The flag of devices stays, as do their number and the other flag."""
    kept = "--xla_force_host_platform_device_count=2 --xla_llvm_disable_expensive_passes=true"
    each_lab.plain(XLA_FLAGS=kept)
    both = f"{FAST_MATH_FLAG} {kept}"
    fix = f"export XLA_FLAGS='{kept}'"
    difference = only(each_lab.explain(XLA_FLAGS=both), "jit_step")
    assert told(difference) == ("flag", "without", FAST_MATH_FLAG, fix)
    each_lab.check_cured(fix, XLA_FLAGS=both)


IN_CODE = "import sys\n", f"import os, sys; os.environ['XLA_FLAGS'] = '{FAST_MATH_FLAG}'\n"
AS_OPTION = "@jax.jit", f"@partial(jax.jit, {FAST_MATH_OPTION})"


@pytest.mark.parametrize(
    ("edits", "argv", "flag", "place"),
    [
        ([IN_CODE], (), FAST_MATH_FLAG, "XLA_FLAGS"),
        ([AS_OPTION], (), "xla_cpu_enable_fast_math=True", "compiler_options"),
        ([], ("--xla_mine=1",), "--xla_mine=1", "the arguments"),
    ],
)
def test_a_flag_that_the_program_sets_has_no_command(
    each_lab: Lab, edits: list[tuple[str, str]], argv: tuple[str, ...], flag: str, place: str
) -> None:
    each_lab.plain_once()
    each_lab.write(*edits)
    difference = only(each_lab.explain(*argv), "jit_step")
    assert told(difference) == ("flag", "without", flag, f"leave {flag} out of {place}")


def test_more_devices_are_proved_to_have_been_there(each_lab: Lab) -> None:
    each_lab.plain(JAX_NUM_CPU_DEVICES="4")
    fix = "export JAX_NUM_CPU_DEVICES=4"
    difference = only(each_lab.explain(), "jit_step")
    assert told(difference) == ("device", "device_count=4", "device_count=1", fix)
    each_lab.check_cured(fix)


def test_another_codec_is_proved(each_lab: Lab) -> None:
    """A Python without zstandard filled the cache."""
    if not has_modules(each_lab.python, "zstandard"):
        pytest.skip("this Python has no zstandard")
    hidden = each_lab.home / "hidden"
    hidden.mkdir()
    (hidden / "zstandard.py").write_text("raise ImportError")
    without = f"{clean_environment(hidden)['PYTHONPATH']}:{hidden}"
    each_lab.plain(PYTHONPATH=without)
    difference = only(each_lab.explain(), "jit_step")
    assert told(difference) == ("codec", "zlib", "zstandard", "python -m pip uninstall zstandard")
    each_lab.check_cured(f"export PYTHONPATH={without}")


@pytest.mark.parametrize("filled_portable", [True, False])
def test_portable_on_one_side_alone_is_proved(each_lab: Lab, filled_portable: bool) -> None:
    each_lab.plain(**NO_PATH) if filled_portable else each_lab.plain_once()
    env = {} if filled_portable else NO_PATH
    found = differences(each_lab.explain(**env), "jit_step")
    for difference in found:
        assert difference["cause"] == "path"
        each_lab.check_cured(difference["fix"], **env)
    if not filled_portable:
        portable = ("--portable", "-C", each_lab.cache, each_lab.script)
        option = differences(each_lab.run("explain", *portable), "jit_step")
        assert [d["fix"] for d in option] == ["leave out --portable"] * len(found)
    assert bool(found) is (each_lab.plain(**env).writes > 0) is each_lab.is_bound


def test_what_only_hits_together_is_undone_together(each_lab: Lab) -> None:
    each_lab.plain_once()
    env = FAST_MATH | {"JAX_NUM_CPU_DEVICES": "2"}
    found = differences(each_lab.explain(**env), "jit_step")
    assert [d["cause"] for d in found] == ["flag", "device"]
    assert all("all of these differences" in d["meaning"] for d in found)
    assert {(d["evidence"], d["fix"]) for d in found} == {("in-part", None)}
    each_lab.check_cured("unset XLA_FLAGS; unset JAX_NUM_CPU_DEVICES", **env)


#: The same function with options of its own was not compiled before.
MORE = f"jax.jit(step.__wrapped__, {FAST_MATH_OPTION})(np.ones((4, 4), np.float32), x)\n"


def test_what_the_same_run_hits_proves_nothing(each_lab: Lab) -> None:
    each_lab.plain_once()
    each_lab.write(text=f"{PROGRAM}{MORE}")
    found = differences(each_lab.explain(), "jit_step")
    assert found
    assert not [d for d in found if "this is the key of an entry" in d["meaning"]]
    assert each_lab.plain().writes > 0


# What was edited: the runs before are recorded.


def test_the_flags_of_another_run_are_not_blamed_for_edits(lab: Lab) -> None:
    """Each of the functions of one name is compared with its own."""
    lab.warm_once()
    lab.warm(**FAST_MATH)
    lab.write(("RATE = 0.1", "RATE = 0.2"), ("2.5", "2.75"))
    document = lab.explain()
    for module, left, right in (("jit_step", "0.1", "0.2"), ("jit__lambda", "2.5", "2.75")):
        (row,) = (c for c in document["comparisons"] if c["module"] == module)
        assert row["compared_with"].endswith("two runs ago")
        (difference,) = row["differences"]
        found = (difference["evidence"], *told(difference))
        assert found == ("layer", "constant", left, right, None)
    difference = only(document, "jit_step")
    assert [place["line"] for place in difference["where"]] == [4, 10]
    edited = r"since \d\d:\d\d, main.py:4 and main.py:15 were edited"
    assert re.search(edited, difference["meaning"])


def test_a_flag_and_an_edit_are_each_a_part_of_the_cause(lab: Lab) -> None:
    lab.warm_once()
    lab.write(("tanh", "sin"))
    document = lab.explain(**FAST_MATH)
    rows = {tuple(d["evidence"] for d in c["differences"]) for c in document["comparisons"]}
    assert rows == {("proved",), ("in-part", "observed")}
    flag, code = differences(document, "jit_step")
    assert flag["meaning"].endswith("undoing this alone brings no hit")
    assert (flag["fix"], code["fix"]) == (None, None)
    assert "main.py:9 in `step` was edited" in code["meaning"]


def test_settings_are_no_cause_of_an_edit_that_they_do_not_act_on(lab: Lab) -> None:
    lab.warm_once()
    lab.write(("x * power + 1", "x - power + 1"))
    document = lab.explain(
        JAX_ENABLE_X64="1", JAX_DEFAULT_MATMUL_PRECISION="highest", JAX_THREEFRY_PARTITIONABLE="0"
    )
    assert [d["cause"] for d in differences(document, "jit__lambda")] == ["code"] * 3


def test_one_more_shape_is_new_next_to_those_that_hit_and_two_in_place_of_one_to_one(
    lab: Lab,
) -> None:
    lab.warm_once()
    difference = only(lab.explain("8", "9"), "jit_step")
    assert difference["cause"] == "not-cached-before"
    assert re.fullmatch(
        r"new since \d\d:\d\d: main\.py:18 uses float32\[9,4\]; float32\[8,4\] hits",
        difference["meaning"],
    )
    # To pad is advised from three shapes on.
    assert only(lab.explain("9"), "jit_step")["fix"] is None
    found = {d["cause"]: d for d in differences(lab.explain("9", "10"), "jit_step")}
    assert found.keys() == {"argument-shape", "not-cached-before"}
    assert found["argument-shape"]["fix"].startswith("pad to a few shapes: 3 of this call")
    assert re.fullmatch(
        r"new since \d\d:\d\d: main\.py:18 compiles a program that it did not compile then",
        found["not-cached-before"]["meaning"],
    )


def test_an_entry_that_is_gone_is_lost(each_lab: Lab) -> None:
    """When plain JAX wrote an entry is not claimed."""
    each_lab.plain_once()
    by_plain = {*each_lab.cache.glob("*-cache")}
    each_lab.write(("2.5", "2.75"))
    each_lab.warm()
    (recorded,) = {*each_lab.cache.glob("*-cache")} - by_plain
    recorded.unlink()
    each_lab.entry().unlink()
    document = each_lab.explain()
    for module, when in (("jit__lambda", r"at \d\d:\d\d"), ("jit_step", "earlier")):
        difference = only(document, module)
        assert (difference["cause"], difference["fix"]) == ("lost", None)
        assert re.match(f"was written {when} and is gone", difference["meaning"])


def test_the_first_key_is_not_explained_by_a_later_one(lab: Lab) -> None:
    lab.warm_once()
    first = lab.entry().name.removesuffix("-cache")
    lab.write(("tanh", "sin"))
    (second,) = (m["key"] for m in lab.warm()["modules"] if m["module"] == "jit_step")
    meanings = [
        only(lab.run("explain", key, "-C", lab.cache))["meaning"] for key in (first, second)
    ]
    assert meanings[0] == "first time in main.py"
    assert "was edited" in meanings[1]


MODEL = """\
import jax, jax.numpy as jnp
def make(depth):
    def step(x):
        for _ in range(depth):
            x = jnp.sin(x)
        return x
    return jax.jit(step)
"""
CALLER = """\
import numpy as np
import model, config
DEPTH = 2
model.make(DEPTH * config.FACTOR)(np.ones(4, np.float32))
"""


def test_an_edit_of_another_file_is_not_denied(lab: Lab) -> None:
    texts = {"main.py": CALLER, "model.py": MODEL, "config.py": "FACTOR = 2\n"}
    for name, text in texts.items():
        (lab.home / name).write_text(text)
    lab.warm()
    for edited, meaning in (
        ("main.py", r"since \d\d:\d\d, main.py:3 was edited; the operations of line 5 of model.py"),
        ("config.py", "though no recorded file was edited since .*: the value came from elsewhere"),
    ):
        # Of another length: Python finds bytecode stale by the second and the length.
        (lab.home / edited).write_text(texts[edited].replace("= 2", "= 13"))
        difference = only(lab.explain())
        assert (difference["cause"], difference["evidence"]) == ("code", "observed")
        assert re.search(meaning, difference["meaning"])
        (lab.home / edited).write_text(texts[edited])


OTHER_LINES = """
import jax, jax.numpy as jnp

def activation(x):
    return jnp.{name}(x)

@jax.jit
def step(x):
    return activation(x).sum()

step(jnp.ones((4, 4)))
"""


def test_an_edit_after_a_hit_of_what_plain_python_compiled_is_named_since_the_recorded_run(
    lab: Lab,
) -> None:
    """The hit makes the entry, of which no program is recorded, the one that was used last."""
    lab.write(text=OTHER_LINES.format(name="sin"))
    lab.plain()
    lab.write(text=OTHER_LINES.format(name="cos"))
    recorded = row_of(lab.warm(), "jit_step")
    assert recorded["cause"] == NOT_KNOWN
    lab.write(text=OTHER_LINES.format(name="tanh"))
    (step,) = (c for c in lab.explain()["comparisons"] if c["module"] == "jit_step")
    assert (step["compared_with"][:6], step["left_key"]) == ("run of", recorded["key"])
    (change,) = step["differences"]
    assert ("cos" in change["left"], "tanh" in change["right"]) == (True, True)


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="a flag for x86 CPUs")
def test_an_edit_is_no_other_machine_where_another_kind_of_cpu_used_the_cache_last(
    lab: Lab,
) -> None:
    """A flag hides features of the CPU, so that the runs with it are those of another machine."""
    lab.write(text=OTHER_LINES.format(name="tanh"))
    for flags in ("", "--xla_cpu_max_isa=SSE4_2"):
        lab.warm(XLA_FLAGS=flags)
    lab.write(text=OTHER_LINES.format(name="sin"))
    assert only(lab.explain(), "jit_step")["cause"] == "code"


CLOSED_OVER = """import jax, numpy as np
a = np.full(99, np.arange(99), np.float32)
@jax.jit
def step(x):
    return jax.nn.relu(x @ x)
step(np.ones((8, 8), np.float32))
jax.jit(lambda x: x + a)(a)
"""


def test_more_operations_are_no_flag_and_another_array_is_named_without_its_values(
    each_lab: Lab,
) -> None:
    """JAX sets an XLA flag for programs of more than ten operations, which nobody asked for.

    The values of an array that a function closes over are not recorded.
    """
    each_lab.write(text=CLOSED_OVER)
    each_lab.warm()
    edits = ("relu", "gelu"), ("np.arange(99)", "np.arange(1, 100)")
    each_lab.write(*edits, text=CLOSED_OVER)
    document = each_lab.explain()
    code, array = only(document, "jit_step"), only(document, "jit__lambda")
    assert (code["cause"], code["left"]) == ("code", "relu")
    assert [(w["line"], w["function"]) for w in code["where"]] == [(5, "step")]
    assert (array["cause"], array["evidence"]) == ("constant", "layer")
    assert array["meaning"] == "only the values of an array differ that the program contains"


ACTIVATION = "import jax\ndef activation(x):\n    return jax.nn.{}(x)\n"
FIT = """import jax, numpy as np
from activation import activation
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


def test_an_edit_is_named_by_its_operations_before_and_after_the_run(lab: Lab) -> None:
    """One of the modules is the example."""
    model = lab.home / "activation.py"
    lab.write(text=FIT)
    # Of another length than the edit: Python finds bytecode stale by the second and the length.
    model.write_text(ACTIVATION.format("softplus"))
    lab.warm()
    model.write_text(ACTIVATION.format("silu"))
    before = lab.explain()
    words = ("warm", "-C", lab.cache, "--python", lab.python, lab.script)
    lines = lab.run_cli(*words, env=BASE | {"COLUMNS": "160"}).stderr.splitlines()
    rows = [line for line in lines if line.startswith(("jit_evaluate", "jit_train_step"))]
    assert len(rows) == 2
    for row in rows:
        assert "silu at activation.py:3 in `activation`" in row
        assert " → " in row.partition("written")[2]
    (example,) = [line for line in lines if line.startswith("in full: ")]
    assert re.search(r" jit_(train_step|evaluate)-", example)
    for hit in lab.explain()["hits"]:
        if hit["module"] in ("jit_evaluate", "jit_train_step"):
            assert hit["differences"] == differences(before, hit["module"])
            assert "silu at activation.py:3" in hit["cause"]


SHAPES = """import jax, jax.numpy as jnp
f = jax.jit(lambda x: (x * 2).sum())
for n in (3, 4, 5):
    f(jnp.zeros((n, 2)))
    f(jnp.arange(n))
"""


def test_a_size_that_creates_an_array_is_no_edit(lab: Lab) -> None:
    lab.write(text=SHAPES)
    lab.warm()
    churn = json.loads(lab.run_cli("explain", "-C", lab.cache, "--churn", "--json").stdout)
    for module in ("jit_broadcast_in_dim", "jit_iota"):
        (churned,) = [m for m in churn["modules"] if m["module"] == module]
        assert [c["meaning"].partition(";")[0] for c in churned["causes"]] == [
            "the shape or dtype of the result"
        ]


#: Each function is compiled with one thing changed; then a setting, and what JAX calls for a key.
SKETCHED = """
import sys
from functools import partial
import jax, jax.numpy as jnp, numpy as np
from jax._src import cache_key
from jax.sharding import Mesh, NamedSharding, PartitionSpec
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
@jax.jit
def typed(x):
    return x * 3
typed(x.astype((np.float32, np.int32)[value]))
@partial(jax.jit, donate_argnums=(0,) * value)
def donated(x):
    return x * 4
donated(jnp.asarray(x))
def spread(name, devices, spec):
    def function(x):
        return x * 5
    function.__name__ = name
    mesh = Mesh(np.array(jax.devices()[:devices]), ("d",))
    jax.jit(function, in_shardings=NamedSharding(mesh, PartitionSpec(*spec)))(x)
spread("sharded", 4, "d" * value)
spread("meshed", 2 + 2 * value, "d")
jax.config.update("jax_enable_x64", bool(value))
jnp.arange(5)
jax.config.update("jax_enable_x64", False)
cache_key.custom_hook = lambda: "mine" * value
@jax.jit
def hooked(x):
    return x * 6
hooked(x)
"""
#: What differs between its two runs: the cause or the component, and words of each difference.
APART = {
    "jit_broadcast_in_dim": ("unknown", "float32[8] → float32[9]"),
    "jit_wide": ("code", ""),
    "jit_repeated": ("static-argument", "n=2 → n=3"),
    "jit_double": ("argument-shape", "[100] → float32[9]", "[8] → float32[104]"),
    "jit_typed": ("argument-dtype", "float32[4] → int32[4]"),
    "jit_donated": ("computation", "donated arguments"),
    "jit_sharded": ("computation", "shardings of arguments"),
    "jit_meshed": ("compile_options", "num_partitions=4"),
    "jit_iota": ("config", "jax_enable_x64=False → jax_enable_x64=True"),
    "jit_hooked": ("custom_hook", ""),
}


def test_two_runs_are_compared_by_their_sketches_by_every_jax(each_lab: Lab) -> None:
    """Where a command is run and recorded, and is then explained."""
    each_lab.write(text=SKETCHED)
    program = ("-C", each_lab.cache, "--", each_lab.python, each_lab.script)
    env = {"XLA_FLAGS": "--xla_force_host_platform_device_count=4"}
    each_lab.run("run", *program, "0", **env)
    document = each_lab.run("explain", *program, "1", **env)
    for module, (name, *words) in APART.items():
        found = differences(document, module)
        assert all(name in (d["cause"], d["component"]) for d in found), (module, found)
        texts = {f"{d['meaning']} {d['left']} → {d['right']}" for d in found}
        assert len(texts) == len(words), (module, texts)
        assert all(any(word in text for text in texts) for word in words), (module, texts)


ADDING = "import jax, numpy as np\njax.jit(lambda x: x + 2)(np.ones(3, np.float32))\n"


def test_after_a_run_that_was_too_fast_to_be_written_the_cause_is_the_path_or_the_threshold(
    each_lab: Lab,
) -> None:
    each_lab.write(text=ADDING)
    each_lab.run_cli("run", "-C", each_lab.cache, "--", each_lab.python, each_lab.script)
    place = ("--json", "-C", each_lab.cache, "--python", each_lab.python)
    causes = {"--all": r"at \d\d:\d\d it was compiled too fast to be written"}
    if each_lab.is_bound:
        path = f"cache path: {each_lab.cache} → none (--portable)"
        causes = {"--portable": re.escape(path), **causes}
    for option, cause in causes.items():
        document = json.loads(each_lab.run_cli("warm", *place, option, each_lab.script).stdout)
        (module,) = document["modules"]
        assert re.fullmatch(cause, module["cause"])
        # How to move the cache is said where it cannot be moved.
        told = "fill it with --portable" in "".join(document["notes"])
        assert told is (each_lab.is_bound and option != "--portable"), document["notes"]


def test_another_jaxlib(lab: Lab) -> None:
    others = [python for python in find_jax_pythons() if python != lab.python]
    if not others:
        pytest.skip("needs a second JAX: set JAXCACHE_TEST_JAX_PYTHONS")
    lab.warm()
    found = differences(lab._replace(python=others[-1]).explain(), "jit_step")
    versions = {d["component"]: (d["left"], d["right"]) for d in found}["jax_lib version"]
    assert all(v[0].isdigit() for v in versions)
    assert versions[0] != versions[1]


def test_metadata_in_keys_is_the_cause_of_a_miss(lab: Lab) -> None:
    lab.write(text=ADDING)
    lab.warm(**{METADATA: "1"})
    lab.write(text=f"# moved\n{ADDING}")
    difference = only(lab.explain(**{METADATA: "1"}))
    assert difference["cause"] == "source-lines"
    assert METADATA in difference["meaning"]


def test_a_script_is_explained_and_its_cache_is_left_alone(lab: Lab) -> None:
    unrun = lab.home / "unrun.py"
    unrun.write_text("print('it ran')")
    words = ("explain", "-C", lab.cache, "--json", "--python", lab.python, unrun)
    missing = lab.run_cli(*words, env=BASE)
    assert (missing.returncode, json.loads(missing.stderr)["error"]["code"]) == (10, "no-cache")
    assert "it ran" not in missing.stdout
    assert not lab.cache.exists()
    # A script of another directory has functions of its own.
    elsewhere = lab.home / "elsewhere"
    elsewhere.mkdir()
    lab._replace(home=elsewhere).write(("RATE = 0.1", "RATE = 0.2"))
    lab.run("warm", "-C", lab.cache, elsewhere / "main.py")
    before = {p: p.read_bytes() for p in lab.cache.rglob("*") if p.is_file()}
    found = differences(lab.explain())
    assert {d["cause"] for d in found} == {"not-cached-before"}
    assert found[0]["meaning"] == "first time in main.py (main.py has one of that name)"
    assert before == {p: p.read_bytes() for p in lab.cache.rglob("*") if p.is_file()}
