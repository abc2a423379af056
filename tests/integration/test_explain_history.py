"""``explain`` after several runs of a program: what it compares with, and what it then claims.

A cure is done, and plain JAX hits in a process of its own, without jaxcache.
"""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from acting import acts_on, says
from conftest import RunCli, clean_environment, find_jax_pythons, has_modules
from once import fill_once
from plain_jax import run_plain

pytestmark = pytest.mark.jax
PROGRAM = """\
import sys
import jax, jax.numpy as jnp, numpy as np
from collections import Counter
counts = Counter()
jax.monitoring.register_event_listener(lambda name, **_: counts.update([name.rpartition("/")[2]]))
RATE = 0.1
SIZES = [int(word) for word in sys.argv[1:]] or [8]

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
print(counts["cache_hits"])
"""
FAST_MATH = {"XLA_FLAGS": "--xla_cpu_enable_fast_math=true"}
FOUR = {"JAX_NUM_CPU_DEVICES": "4"}
BASE = {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0", "JAX_PLATFORMS": "cpu"}
WRITES_NOTHING = {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "100000"}


class Program(NamedTuple):
    """A program and its cache."""

    run_cli: RunCli
    python: str
    directory: Path

    @property
    def script(self) -> Path:
        return self.directory / "main.py"

    @property
    def cache(self) -> Path:
        return self.directory / "cache"

    def write(self, *edits: tuple[str, str]) -> None:
        text = PROGRAM
        for before, after in edits:
            assert text.count(before) == 1
            text = text.replace(before, after)
        self.script.write_text(text)

    def first_warm(self) -> None:
        fill_once(self.directory, self.warm)

    def warm(self, *argv: str, **env: str) -> dict[str, Any]:
        return self._run("warm", argv, env)

    def explain(self, *argv: str, **env: str) -> dict[str, Any]:
        return self._run("explain", argv, env)

    def _run(self, command: str, argv: tuple[str, ...], env: dict[str, str]) -> dict[str, Any]:
        words = (command, "--json", "-C", self.cache, "--python", self.python, self.script, *argv)
        done = self.run_cli(*words, env=BASE | env)
        assert done.returncode == 0, done.stderr
        document: dict[str, Any] = json.loads(done.stdout)
        return document

    def run_plain(self, env: dict[str, str]) -> int:
        """Return the hits that plain JAX counts."""
        base = clean_environment(self.directory) | BASE | env
        base["JAX_COMPILATION_CACHE_DIR"] = str(self.cache)
        return int(run_plain([self.python, self.script], env=base).stdout)


@pytest.fixture
def program(run_cli: RunCli, jax_python: str, tmp_path_factory: pytest.TempPathFactory) -> Program:
    home = tmp_path_factory.getbasetemp() / "history"
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir()
    made = Program(run_cli, jax_python, home)
    made.write()
    return made


def only(document: dict[str, Any]) -> dict[str, Any]:
    """The only difference of the only miss."""
    (comparison,) = document["comparisons"]
    (difference,) = comparison["differences"]
    found: dict[str, Any] = difference
    return found


def test_a_part_that_alone_differs_is_proved_and_its_cure_brings_hits(program: Program) -> None:
    program.first_warm()
    for env, variable in ((FAST_MATH, "XLA_FLAGS"), (FOUR, "JAX_NUM_CPU_DEVICES")):
        document = program.explain(**env)
        assert len(document["comparisons"]) == 4
        for comparison in document["comparisons"]:
            (difference,) = comparison["differences"]
            assert (difference["evidence"], difference["fix"]) == ("proved", f"unset {variable}")
        (verdict,) = document["verdict"]
        assert verdict.startswith(f"4 of 4 hit after: unset {variable}")
        assert program.run_plain(WRITES_NOTHING | env) == 0
    assert program.run_plain({}) == 4


def test_the_flags_of_another_run_are_not_blamed_for_an_edit(program: Program) -> None:
    program.first_warm()
    program.warm(**FAST_MATH)
    program.write(("RATE = 0.1", "RATE = 0.2"))
    document = program.explain()
    difference = only(document)
    assert document["comparisons"][0]["module"] == "jit_step"
    assert document["comparisons"][0]["compared_with"].endswith("two runs ago")
    assert (difference["cause"], difference["evidence"]) == ("constant", "layer")
    assert (difference["left"], difference["right"], difference["fix"]) == ("0.1", "0.2", None)
    assert [place["line"] for place in difference["where"]] == [6, 12]
    assert re.search(r"since \d\d:\d\d, main.py:6 was edited", difference["meaning"])


def test_one_of_several_functions_of_one_name_is_compared_with_its_own(program: Program) -> None:
    program.first_warm()
    program.write(("2.5", "2.75"))
    difference = only(program.explain())
    assert (difference["left"], difference["right"]) == ("2.5", "2.75")


def test_a_flag_and_an_edit_are_each_a_part_of_the_cause(program: Program) -> None:
    program.first_warm()
    program.write(("tanh", "sin"))
    document = program.explain(**FAST_MATH)
    rows = {tuple(d["evidence"] for d in c["differences"]) for c in document["comparisons"]}
    assert rows == {("proved",), ("in-part", "observed")}
    (step,) = (c for c in document["comparisons"] if c["module"] == "jit_step")
    flag, code = step["differences"]
    assert flag["meaning"].endswith("undoing this alone brings no hit")
    assert (flag["fix"], code["fix"]) == (None, None)
    assert "main.py:11 in `step` was edited" in code["meaning"]


def test_settings_are_no_cause_of_an_edit_that_they_do_not_act_on(program: Program) -> None:
    program.first_warm()
    program.write(("x * power + 1", "x - power + 1"))
    document = program.explain(
        JAX_ENABLE_X64="1", JAX_DEFAULT_MATMUL_PRECISION="highest", JAX_THREEFRY_PARTITIONABLE="0"
    )
    layers = [c for c in document["comparisons"] if "lambda" in c["module"]]
    assert len(layers) == 3
    assert {d["cause"] for c in layers for d in c["differences"]} == {"code"}


def test_a_script_of_another_directory_has_functions_of_its_own(program: Program) -> None:
    elsewhere = program.directory / "elsewhere"
    elsewhere.mkdir()
    program._replace(directory=elsewhere).write(("RATE = 0.1", "RATE = 0.2"))
    words = ("-C", program.cache, "--python", program.python, elsewhere / "main.py")
    assert program.run_cli("warm", *words, env=BASE).returncode == 0
    document = program.explain()
    causes = {d["cause"] for c in document["comparisons"] for d in c["differences"]}
    assert causes == {"not-cached-before"}
    assert only({"comparisons": document["comparisons"][:1]})["meaning"] == (
        "first time in main.py (main.py has one of that name)"
    )


def test_one_more_shape_is_new_beside_those_that_hit(program: Program) -> None:
    program.warm("8", "9")
    document = program.explain("8", "9", "10")
    (step,) = (c for c in document["comparisons"] if c["module"] == "jit_step")
    (difference,) = step["differences"]
    assert difference["cause"] == "not-cached-before"
    assert re.fullmatch(
        r"new since \d\d:\d\d: main\.py:20 uses float32\[10,4\]; float32\[\d,4\] hits",
        difference["meaning"],
    )


def test_two_shapes_in_place_of_one_are_one_program_more(program: Program) -> None:
    program.first_warm()
    steps = [c for c in program.explain("9", "10")["comparisons"] if c["module"] == "jit_step"]
    causes = {d["cause"]: d["meaning"] for c in steps for d in c["differences"]}
    assert causes.keys() == {"argument-shape", "not-cached-before"}
    assert re.fullmatch(
        r"new since \d\d:\d\d: main\.py:20 compiles a program that it did not compile then",
        causes["not-cached-before"],
    )


def test_to_pad_is_advised_from_three_shapes_on(program: Program) -> None:
    program.first_warm()
    shapes = [only({"comparisons": [c]}) for c in program.explain("9")["comparisons"]]
    assert {(d["cause"], d["fix"]) for d in shapes} == {("argument-shape", None)}
    program.warm("9")
    step = next(c for c in program.explain("10")["comparisons"] if c["module"] == "jit_step")
    assert step["differences"][0]["fix"].startswith("pad to a few shapes: 3 of this call")


def test_an_entry_that_is_gone_is_lost(program: Program) -> None:
    program.first_warm()
    (entry,) = program.cache.glob("jit_step-*-cache")
    entry.unlink()
    difference = only(program.explain())
    assert (difference["cause"], difference["fix"]) == ("lost", None)
    assert re.match(r"was written at \d\d:\d\d and is gone", difference["meaning"])


def test_when_plain_jax_wrote_an_entry_is_not_claimed(program: Program) -> None:
    program.run_plain({})
    program.warm()
    (entry,) = program.cache.glob("jit_step-*-cache")
    entry.unlink()
    assert only(program.explain())["meaning"].startswith("was written earlier and is gone")


NAMED = """\
step.__name__ = f"step_{id(step):#x}_{__import__('os').getpid()}"
step = jax.jit(step)
"""


def test_a_name_that_is_new_in_each_process_never_hits(program: Program) -> None:
    program.write(("@jax.jit\ndef step", "def step"), ("\ndef make", f"{NAMED}\ndef make"))
    for _ in range(2):
        program.warm()
    step = next(c for c in program.explain()["comparisons"] if c["module"].startswith("jit_step"))
    assert {d["evidence"] for d in step["differences"]} == {"unstable"}
    assert "never hits" in step["differences"][0]["meaning"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads every file")
def test_an_entry_that_may_not_be_read_is_not_said_to_be_gone(program: Program) -> None:
    program.first_warm()
    (entry,) = program.cache.glob("jit_step-*-cache")
    entry.chmod(0)
    difference = only(program.explain())
    assert difference["cause"] == "lost"
    assert "could not be read" in difference["meaning"]


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


@pytest.mark.parametrize(
    ("edited", "meaning"),
    [
        ("main.py", r"since \d\d:\d\d, main.py:3 was edited; the operations of line 5 of model.py"),
        ("config.py", "though no recorded file was edited since .*: the value came from elsewhere"),
    ],
)
def test_an_edit_of_another_file_is_not_denied(program: Program, edited: str, meaning: str) -> None:
    texts = {"main.py": CALLER, "model.py": MODEL, "config.py": "FACTOR = 2\n"}
    for name, text in texts.items():
        (program.directory / name).write_text(text)
    program.warm()
    # Of another length: Python finds bytecode stale by the second and the length.
    (program.directory / edited).write_text(texts[edited].replace("= 2", "= 13"))
    difference = only(program.explain())
    assert (difference["cause"], difference["evidence"]) == ("code", "observed")
    assert re.search(meaning, difference["meaning"])


MOVING = """\
import os, jax, numpy as np
jax.config.update("jax_compilation_cache_dir", "cache")
jax.jit(lambda x: x * 3)(np.ones(3, np.float32))
os.chdir("below")
jax.jit(lambda x: x * 4)(np.ones(3, np.float32))
"""


def test_a_directory_that_the_program_changes_to_has_its_own_history(program: Program) -> None:
    """A relative path names another cache there, and the one before knows nothing of it."""
    (program.directory / "below" / "cache").mkdir(parents=True)
    program.script.write_text(MOVING)
    words = ("--json", "--python", program.python, "main.py")
    done = program.run_cli("warm", *words, env=BASE, cwd=program.directory)
    assert done.returncode == 0, done.stderr
    program.script.write_text(MOVING.replace("* 4", "* 5"))
    done = program.run_cli("explain", *words, env=BASE, cwd=program.directory)
    difference = only(json.loads(done.stdout))
    assert (difference["cause"], difference["left"], difference["right"]) == ("constant", "4", "5")


def test_the_first_key_is_not_explained_by_a_later_one(program: Program) -> None:
    program.first_warm()
    (first,) = (p.name.removesuffix("-cache") for p in program.cache.glob("jit_step-*-cache"))
    program.write(("tanh", "sin"))
    (second,) = (m["key"] for m in program.warm()["modules"] if m["module"] == "jit_step")
    assert first != second
    meanings = []
    for key in (first, second):
        done = program.run_cli("explain", "--json", key, "-C", program.cache)
        assert done.returncode == 0, done.stderr
        meanings.append(only(json.loads(done.stdout))["meaning"])
    assert meanings[0] == "first time in main.py"
    assert "was edited" in meanings[1]


# ``explain`` of a miss in a cache that plain JAX filled: what it says is done, and plain JAX
# hits. Nothing is recorded of the programs that filled the caches.


UNDONE_PROGRAM = """
import os
from collections import Counter
import jax, jax.numpy as jnp

counts = Counter()
jax.monitoring.register_event_listener(lambda name, **_: counts.update([name.rpartition("/")[2]]))
{before}

def step(x):
    return jnp.{function}(x).sum()

step = jax.jit(step{options})
step(jnp.ones((4, 4)))
print(counts["cache_hits"], counts["cache_misses"])
"""
FAST_MATH_FLAG = "--xla_cpu_enable_fast_math=true"
Environment = dict[str, str]


def environment_after(command: str, env: Environment) -> Environment:
    """Return the environment that a shell has after a command."""
    line = ["sh", "-ec", f"{command}; env -0"]
    printed = subprocess.check_output(line, env=env, text=True)
    return dict(variable.split("=", 1) for variable in printed.split("\0") if variable)


class Use(NamedTuple):
    """A cache that a program uses, under one Python."""

    run_cli: RunCli
    python: str
    directory: Path

    @property
    def cache(self) -> Path:
        return self.directory / "cache"

    def write(self, *, before: str = "", options: str = "", function: str = "tanh") -> None:
        text = UNDONE_PROGRAM.format(before=before, options=options, function=function)
        (self.directory / "train.py").write_text(text)

    def fill(self) -> None:
        """Fill the cache by a run of plain JAX that changes nothing; one is for all tests."""
        fill_once(self.directory, lambda: self.run_plain({}))

    def run_plain(self, env: Environment, fix: str = "") -> list[int]:
        """Return how many entries plain JAX read and wrote, after the command ``fix``."""
        base = clean_environment(self.directory) | BASE
        base |= {"JAX_COMPILATION_CACHE_DIR": str(self.cache)} | env
        if fix:
            base = environment_after(fix, base)
        done = run_plain([self.python, "train.py"], env=base, cwd=self.directory)
        return [int(n) for n in done.stdout.split()]

    def explain(self, env: Environment, *options: str) -> list[dict[str, Any]]:
        """Return the differences of ``step``."""
        words = ("explain", "--json", "-C", self.cache, "--python", self.python, *options)
        done = self.run_cli(*words, "train.py", env=BASE | env, cwd=self.directory)
        assert done.returncode == 0, done.stderr
        rows = json.loads(done.stdout)["comparisons"]
        return [d for row in rows if row["module"] == "jit_step" for d in row["differences"]]

    def check_cured(self, env: Environment, fix: str) -> None:
        """Check that plain JAX hits after the command."""
        says(fix)
        cured = self.run_plain(env, fix)
        assert (cured[0] > 0, cured[1]) == (True, 0), fix


@pytest.fixture
def use(run_cli: RunCli, each_jax_python: str, tmp_path_factory: pytest.TempPathFactory) -> Use:
    name = f"undone-jax{find_jax_pythons().index(each_jax_python)}"
    home = tmp_path_factory.getbasetemp() / name
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir()
    made = Use(run_cli, each_jax_python, home)
    made.write()
    return made


@acts_on("unset …")
@pytest.mark.parametrize(
    ("env", "cause", "sides", "fix"),
    [
        pytest.param(
            {"XLA_FLAGS": FAST_MATH_FLAG},
            "flag",
            ("without", FAST_MATH_FLAG),
            "unset XLA_FLAGS",
            id="flag",
        ),
        pytest.param(
            {"LIBTPU_INIT_ARGS": "--xla_tpu_x=1"},
            "flag",
            ("without", "--xla_tpu_x=1"),
            "unset LIBTPU_INIT_ARGS",
            id="libtpu",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            {"JAX_DISABLE_MOST_OPTIMIZATIONS": "1"},
            "config",
            ("without", "1"),
            "unset JAX_DISABLE_MOST_OPTIMIZATIONS",
            id="setting",
        ),
        pytest.param(
            {"JAX_COMPILATION_CACHE_INCLUDE_METADATA_IN_KEY": "1"},
            "config",
            ("without", "1"),
            "unset JAX_COMPILATION_CACHE_INCLUDE_METADATA_IN_KEY",
            id="metadata",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            {"JAX_NUM_CPU_DEVICES": "3"},
            "device",
            ("device_count=1", "device_count=3"),
            "unset JAX_NUM_CPU_DEVICES",
            id="devices",
        ),
    ],
)
def test_what_the_environment_has_more_is_undone(
    use: Use, env: Environment, cause: str, sides: tuple[str, str], fix: str
) -> None:
    use.fill()
    (difference,) = use.explain(env)
    assert difference["cause"] == cause
    assert (difference["left"], difference["right"]) == sides
    assert difference["fix"] == fix
    use.check_cured(env, difference["fix"])


@acts_on("export …=…")
def test_one_of_several_flags_is_undone(use: Use) -> None:
    """The flag of devices stays, as do their number and the other flag."""
    kept = "--xla_force_host_platform_device_count=2 --xla_llvm_disable_expensive_passes=true"
    use.run_plain({"XLA_FLAGS": kept})
    env = {"XLA_FLAGS": f"{FAST_MATH_FLAG} {kept}"}
    (difference,) = use.explain(env)
    assert (difference["right"], difference["fix"]) == (
        FAST_MATH_FLAG,
        f"export XLA_FLAGS='{kept}'",
    )
    use.check_cured(env, difference["fix"])


def test_a_flag_that_the_program_sets_has_no_command(use: Use) -> None:
    use.fill()
    text = (use.directory / "train.py").read_text()
    sets = f"import os; os.environ['XLA_FLAGS'] = '{FAST_MATH_FLAG}'\n"
    (use.directory / "train.py").write_text(sets + text)
    (difference,) = use.explain({})
    assert difference["fix"] == f"leave {FAST_MATH_FLAG} out of XLA_FLAGS"
    (use.directory / "train.py").write_text(text)
    use.check_cured({"XLA_FLAGS": FAST_MATH_FLAG}, "unset XLA_FLAGS")


def test_more_devices_are_proved_to_have_been_there(use: Use) -> None:
    use.run_plain({"JAX_NUM_CPU_DEVICES": "4"})
    (difference,) = use.explain({})
    assert (difference["cause"], difference["left"]) == ("device", "device_count=4")
    assert difference["fix"] == "export JAX_NUM_CPU_DEVICES=4"
    use.check_cured({}, difference["fix"])


def test_another_codec_is_proved(use: Use) -> None:
    """A Python without zstandard filled the cache."""
    hidden = use.directory / "hidden"
    hidden.mkdir()
    (hidden / "zstandard.py").write_text("raise ImportError")
    without = {"PYTHONPATH": f"{clean_environment(hidden)['PYTHONPATH']}:{hidden}"}
    use.run_plain(without)
    if not has_modules(use.python, "zstandard"):
        pytest.skip("this Python has no zstandard")
    (difference,) = use.explain({})
    assert (difference["cause"], difference["left"]) == ("codec", "zlib")
    assert difference["fix"] == "python -m pip uninstall zstandard"
    use.check_cured({}, f"export PYTHONPATH={without['PYTHONPATH']}")


def test_a_cache_that_was_moved_hits_where_it_was(use: Use) -> None:
    """On JAX 0.11 and later the path is in no key, and nothing is a miss."""
    old = use.directory / "old"
    use.run_plain({"JAX_COMPILATION_CACHE_DIR": str(old)})
    old.rename(use.cache)
    differences = use.explain({})
    for difference in differences:
        assert (difference["cause"], difference["left"]) == ("path", str(old))
        use.check_cured({}, difference["fix"])
    assert bool(differences) is (use.run_plain({})[1] > 0)


@pytest.mark.parametrize("filled_portable", [True, False])
def test_portable_on_one_side_alone_is_proved(use: Use, filled_portable: bool) -> None:
    portable = {"JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES": "none"}
    if filled_portable:
        use.run_plain(portable)
    else:
        use.fill()
    env: Environment = {} if filled_portable else portable
    differences = use.explain(env)
    for difference in differences:
        assert difference["cause"] == "path"
        use.check_cured(env, difference["fix"])
    if differences and not filled_portable:
        (difference,) = use.explain({}, "--portable")
        assert difference["fix"] == "leave out --portable"
    assert bool(differences) is (use.run_plain(env)[1] > 0)


def test_options_of_a_jit_are_undone(use: Use) -> None:
    use.fill()
    use.write(options=', compiler_options={"xla_cpu_enable_fast_math": True}')
    (difference,) = use.explain({})
    assert (difference["cause"], difference["left"]) == ("flag", "without")
    assert difference["fix"] == "leave xla_cpu_enable_fast_math=True out of compiler_options"
    use.write()
    assert use.run_plain({})[1] == 0


def test_what_only_hits_together_is_undone_together(use: Use) -> None:
    use.fill()
    env = {"XLA_FLAGS": FAST_MATH_FLAG, "JAX_NUM_CPU_DEVICES": "2"}
    differences = use.explain(env)
    assert [d["cause"] for d in differences] == ["flag", "device"]
    assert all("all of these differences" in d["meaning"] for d in differences)
    assert {(d["evidence"], d["fix"]) for d in differences} == {("in-part", None)}
    use.check_cured(env, "unset XLA_FLAGS; unset JAX_NUM_CPU_DEVICES")


def test_nothing_is_proved_where_the_program_changed_too(use: Use) -> None:
    use.fill()
    use.write(function="sin")
    env = {"XLA_FLAGS": FAST_MATH_FLAG}
    assert not [d for d in use.explain(env) if "this is the key of an entry" in d["meaning"]]
    assert use.run_plain(env, "unset XLA_FLAGS")[1] > 0


def test_what_the_same_run_hits_is_no_cause(use: Use) -> None:
    """A function with options of its own, beside itself without them, was not compiled before."""
    use.fill()
    text = (use.directory / "train.py").read_text()
    more = 'jax.jit(step.__wrapped__, compiler_options={"xla_cpu_enable_fast_math": True})'
    (use.directory / "train.py").write_text(f"{text}\n{more}(jnp.ones((4, 4)))\n")
    assert not [d for d in use.explain({}) if "this is the key of an entry" in d["meaning"]]
