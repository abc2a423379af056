"""Every cause of a miss, made by a real pair of runs: explain names it."""

import json
import os
import re
import shlex
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from conftest import RunCli, clean_environment, jax_version
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
        self.home = home
        self.cache = home / "cache"

    def run(
        self,
        change: dict[str, Any],
        env: dict[str, str],
        *argv: str,
        command: tuple[str, ...] = ("run",),
        cache: Path | None = None,
        python: str | None = None,
    ) -> str:
        """Run the workload with one thing changed, and return what the command prints."""
        directory = cache or self.cache
        program = [python or self.python, WORKLOAD, directory, json.dumps(change), *argv]
        own = {"PYTHONWARNINGS": "", **WRITE_ALL, **env}
        done = self._run_cli(*command, "-C", directory, "--", *program, env=own)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def explain(
        self, change: dict[str, Any], env: dict[str, str], *argv: str, python: str | None = None
    ) -> list[dict[str, Any]]:
        """Return the differences of a changed program from the recorded one."""
        words = ("explain", "--json")
        return differences(self.run(change, env, *argv, command=words, python=python))

    def release(self) -> tuple[int, ...]:
        return jax_version(self.python)


@pytest.fixture
def lab(run_cli: RunCli, jax_python: str, tmp_path: Path) -> Lab:
    (tmp_path / "cache").mkdir()
    return Lab(run_cli, jax_python, tmp_path)


def differences(printed: str) -> list[dict[str, Any]]:
    """The differences of the program that the workload compiles."""
    document = json.loads(printed)
    assert document["schema_version"] == 1
    rows = [c for c in document["comparisons"] if c["module"].startswith("jit_step")]
    assert len(rows) <= 1
    return [d for row in rows for d in row["differences"]]


def check(lab: Lab, cause: Cause) -> None:
    lab.run(cause.left, cause.left_env)
    found = lab.explain(cause.right, cause.right_env, *cause.argv)
    named = [d for d in found if d["component"] == cause.component]
    assert len(named) == 1, found
    assert cause.says in f"{named[0]['meaning']} {named[0]['right']}", named
    assert named[0]["cause"] != "unknown"
    assert len(found) == 1, found


#: The default suite makes one pair for each component; the sweep makes them all, with every JAX.
QUICK = {"an XLA flag", "constant", "code", "device count", "custom hook", "a name with an address"}


@pytest.mark.parametrize("cause", [c for c in CAUSES if c.name in QUICK], ids=lambda c: c.name)
def test_the_cause_is_named(lab: Lab, cause: Cause) -> None:
    check(lab, cause)


@pytest.mark.slow
@pytest.mark.parametrize("cause", CAUSES, ids=lambda c: c.name)
def test_the_cause_is_named_by_every_jax(
    run_cli: RunCli, each_jax_python: str, tmp_path: Path, cause: Cause
) -> None:
    (tmp_path / "cache").mkdir()
    check(Lab(run_cli, each_jax_python, tmp_path), cause)


def test_the_same_run_twice_differs_in_nothing(lab: Lab) -> None:
    lab.run({"constant": 7}, {})
    assert lab.explain({"constant": 7}, {}) == []


def test_a_host_callback(lab: Lab) -> None:
    lab.run({"callback": 1}, {})
    found = lab.explain({"callback": 1}, {})
    expected = [] if lab.release() >= (0, 11) else ["host callbacks"]
    assert [d["component"] for d in found] == expected


def test_another_codec(lab: Lab) -> None:
    """A Python without zstandard beside one that has it."""
    hidden = lab.home / "hidden"
    hidden.mkdir()
    for name in ("zstandard.py", "compression.py"):
        (hidden / name).write_text("raise ImportError('hidden for a test')\n")
    python = lab.home / "python"
    python.write_text(
        f'#!/bin/sh\nPYTHONPATH={shlex.quote(str(hidden))} exec {shlex.quote(lab.python)} "$@"\n'
    )
    python.chmod(0o755)
    if '"zstandard"' not in _codec(lab.python):
        pytest.skip("this Python has no zstandard")
    lab.run({}, {})
    (found,) = lab.explain({}, {}, python=str(python))
    sides = found["component"], found["left"], found["right"]
    assert sides == ("compression", "zstandard", "zlib")


def _codec(python: str) -> str:
    program = (
        "import json; from jax._src import compilation_cache as c; "
        "print(json.dumps('zstandard' if c.zstandard else 'zlib'))"
    )
    return subprocess.run([python, "-c", program], capture_output=True, text=True).stdout


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
    run_cli: RunCli, cache: Path, tmp_path: Path, each_jax_python: str
) -> None:
    script = tmp_path / "x.py"
    script.write_text(ADDING.format(2))
    words = ("-C", cache, "--python", each_jax_python, "--json", script)
    assert run_cli("warm", "--portable", *words).returncode == 0
    document = json.loads(run_cli("warm", "--no-write", *words).stdout)
    (module,) = document["modules"]
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
