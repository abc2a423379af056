"""``explain`` of a miss in a cache that plain JAX filled: what it says is done, and plain JAX hits.

Nothing is recorded of the programs that filled the caches.
"""

import json
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from acting import acts_on, says
from conftest import RunCli, clean_environment, has_modules
from plain_jax import run_plain

pytestmark = pytest.mark.jax

PROGRAM = """
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
FAST_MATH = "--xla_cpu_enable_fast_math=true"
BASE = {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0", "JAX_PLATFORMS": "cpu"}
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
        text = PROGRAM.format(before=before, options=options, function=function)
        (self.directory / "train.py").write_text(text)

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
def use(run_cli: RunCli, each_jax_python: str, tmp_path: Path) -> Use:
    made = Use(run_cli, each_jax_python, tmp_path)
    made.write()
    return made


@acts_on("unset …")
@pytest.mark.parametrize(
    ("env", "cause", "sides", "fix"),
    [
        pytest.param(
            {"XLA_FLAGS": FAST_MATH},
            "flag",
            ("without", FAST_MATH),
            "unset XLA_FLAGS",
            id="flag",
        ),
        pytest.param(
            {"LIBTPU_INIT_ARGS": "--xla_tpu_x=1"},
            "flag",
            ("without", "--xla_tpu_x=1"),
            "unset LIBTPU_INIT_ARGS",
            id="libtpu",
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
    use.run_plain({})
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
    env = {"XLA_FLAGS": f"{FAST_MATH} {kept}"}
    (difference,) = use.explain(env)
    assert (difference["right"], difference["fix"]) == (FAST_MATH, f"export XLA_FLAGS='{kept}'")
    use.check_cured(env, difference["fix"])


def test_a_flag_that_the_program_sets_has_no_command(use: Use) -> None:
    use.run_plain({})
    text = (use.directory / "train.py").read_text()
    sets = f"import os; os.environ['XLA_FLAGS'] = '{FAST_MATH}'\n"
    (use.directory / "train.py").write_text(sets + text)
    (difference,) = use.explain({})
    assert difference["fix"] == f"leave {FAST_MATH} out of XLA_FLAGS"
    (use.directory / "train.py").write_text(text)
    use.check_cured({"XLA_FLAGS": FAST_MATH}, "unset XLA_FLAGS")


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
    use.run_plain(portable if filled_portable else {})
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
    use.run_plain({})
    use.write(options=', compiler_options={"xla_cpu_enable_fast_math": True}')
    (difference,) = use.explain({})
    assert (difference["cause"], difference["left"]) == ("flag", "without")
    assert difference["fix"] == "leave xla_cpu_enable_fast_math=True out of compiler_options"
    use.write()
    assert use.run_plain({})[1] == 0


def test_what_only_hits_together_is_undone_together(use: Use) -> None:
    use.run_plain({})
    env = {"XLA_FLAGS": FAST_MATH, "JAX_NUM_CPU_DEVICES": "2"}
    differences = use.explain(env)
    assert [d["cause"] for d in differences] == ["flag", "device"]
    assert all("all of these differences" in d["meaning"] for d in differences)
    assert {(d["evidence"], d["fix"]) for d in differences} == {("in-part", None)}
    use.check_cured(env, "unset XLA_FLAGS; unset JAX_NUM_CPU_DEVICES")


def test_nothing_is_proved_where_the_program_changed_too(use: Use) -> None:
    use.run_plain({})
    use.write(function="sin")
    env = {"XLA_FLAGS": FAST_MATH}
    assert not [d for d in use.explain(env) if "this is the key of an entry" in d["meaning"]]
    assert use.run_plain(env, "unset XLA_FLAGS")[1] > 0


def test_what_the_same_run_hits_is_no_cause(use: Use) -> None:
    """A function with options of its own, beside itself without them, was not compiled before."""
    use.run_plain({})
    text = (use.directory / "train.py").read_text()
    more = 'jax.jit(step.__wrapped__, compiler_options={"xla_cpu_enable_fast_math": True})'
    (use.directory / "train.py").write_text(f"{text}\n{more}(jnp.ones((4, 4)))\n")
    assert not [d for d in use.explain({}) if "this is the key of an entry" in d["meaning"]]
