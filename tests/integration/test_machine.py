"""One difference between two machines at a time: whoever is asked of it gives the same answer.

A cache is filled on one machine and wanted on another. Forecast, ``--require-compatible``,
``ci restore``, ``ci key``, ``explain`` and the cause that ``warm`` prints are asked on the other
one, and plain JAX is the judge: what it counts there, in a process of its own.
"""

import json
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from command_line import run_in_process
from conftest import MakeOnce, clean_environment, find_jax_pythons
from plain_jax import run_plain

from jaxcache.core.machine import hashes_path

pytestmark = pytest.mark.jax

PLAIN_JAX = Path(__file__).parents[2] / "tools/plain_jax.py"
PROGRAM = """
import os
import jax, jax.numpy as jnp, numpy as np

if "JAX_COORDINATOR_ADDRESS" in os.environ:
    jax.distributed.initialize()

@jax.jit
def step(x):
    return (x @ x).sum() + jax.random.normal(jax.random.key(0), ()) + jnp.argmax(x)

step(np.ones((8, 8), np.float32)).block_until_ready()
"""
PORTABLE = {"JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES": "none"}
EAGER = {
    "JAX_PLATFORMS": "cpu",
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
}


@dataclass(frozen=True)
class Row:
    """A difference, and the answer that all must give."""

    name: str
    env: Mapping[str, str] = field(default_factory=lambda: PORTABLE)
    """The environment where the cache is wanted."""
    cause: str = ""
    """Begins ``explain``'s cause of the miss; empty where plain JAX hits."""
    why: str = ""
    """Is in the reason that ``warm`` prints."""
    by_plain_jax: bool = False
    """Plain JAX fills the cache, so that nothing records more than the entry holds."""
    processes: int = 1


TWO_DEVICES = "--xla_force_host_platform_device_count=2"
PRECISION = "jax_default_matmul_precision"
ROWS = (
    Row("nothing"),
    Row("devices", {"JAX_NUM_CPU_DEVICES": "2"}, "device", "number of devices: "),
    Row("processes", processes=2, cause="device", why="devices"),
    Row("x64", {"JAX_ENABLE_X64": "1"}, "config", "jax_enable_x64"),
    Row("XLA flag", {"XLA_FLAGS": "--xla_cpu_enable_fast_math=true"}, "flag", "XLA flags"),
    Row("codec", cause="codec", why="codec"),
    Row("jaxlib", cause="jax", why="jax version"),
    Row("path", {}, "path", "cache path"),
    Row("unknown", by_plain_jax=True),
)
#: Of each of these kinds another row is always tried.
SWEPT = (
    Row("devices by flag", {"XLA_FLAGS": TWO_DEVICES}, "device", "number of devices: "),
    Row("x64's default", {"JAX_ENABLE_X64": "0"}),
    Row("matmul precision", {PRECISION.upper(): "float32"}, "config", PRECISION),
    Row("threefry", {"JAX_THREEFRY_PARTITIONABLE": "0"}, "config", "jax_threefry_partitionable"),
    Row("generator", {"JAX_DEFAULT_PRNG_IMPL": "rbg"}, "config", "jax_default_prng_impl"),
    Row("CPU features", {"XLA_FLAGS": "--xla_cpu_max_isa=SSE4_2"}, "flag", "XLA flag"),
)
EVERY = [*ROWS, *(pytest.param(row, marks=pytest.mark.slow) for row in SWEPT)]


class Machines:
    """A cache that one machine fills, and another one that wants it."""

    def __init__(self, python: str, directory: Path, row: Row) -> None:
        self._python = self._filler = python
        self._directory = directory
        self.row = row
        self.script = directory / "program.py"
        self.script.write_text(PROGRAM)
        self.filling = EAGER | ({} if row.name == "path" else PORTABLE)
        self.wanting = EAGER | ({} if row.name == "path" else PORTABLE) | row.env
        if row.name == "jaxlib":
            others = [other for other in find_jax_pythons() if other != python]
            if not others:
                pytest.skip("needs a second JAX: set JAXCACHE_TEST_JAX_PYTHONS")
            self._filler = others[0]
        if row.name == "codec":
            (directory / "zstandard.py").write_text("raise ImportError")
            self.wanting |= {"PYTHONPATH": str(directory)}

    def find_filled(self, make_once: MakeOnce) -> Path:
        """Return the filled cache of the row: one for all rows that are filled in the same way.

        The program is also the same file for all of them: an edit is told from another machine by
        what is recorded of a program, which its path names.
        """
        row = self.row
        is_common = row.name != "path" and not row.by_plain_jax and row.processes == 1
        name = f"machines-{'any' if is_common else row.name}"
        name += f"-jax{find_jax_pythons().index(self._filler)}"

        def fill(top: Path) -> None:
            self.script = Path(shutil.copy(self.script, top))
            self.fill(top / "filled")
            (top / "key").write_text(self.key(self.filling, top / "cache"))

        made = make_once(name, fill)
        self.script = made / self.script.name
        return made / "filled"

    def fill(self, cache: Path) -> None:
        """Fill a cache, and export it into a bundle of the same name beside it."""
        if self.row.by_plain_jax:
            self.plain(cache, self.filling)
        else:
            options = ("--processes", str(self.row.processes)) if self.row.processes > 1 else ()
            words = ("warm", "-C", cache, "--python", self._filler, *options, self.script)
            assert self._run(*words, env=self.filling).returncode == 0
        exported = ("export", cache.with_suffix(".jxb"), "-C", cache)
        assert self._run(*exported, env={}).returncode == 0

    def plain(self, cache: Path, env: Mapping[str, str]) -> dict[str, Any]:
        """Run the program by plain JAX, which uses a cache; return its own counts."""
        own = clean_environment(self._directory) | env | {"JAX_COMPILATION_CACHE_DIR": str(cache)}
        done = run_plain([self._python, PLAIN_JAX, self.script], env=own)
        counts: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return counts

    def ask(
        self, *words: str | Path, cache: Path, env: Mapping[str, str] | None = None
    ) -> "subprocess.CompletedProcess[str]":
        """Run a command on the machine that wants the cache, or in another environment."""
        chosen = dict(self.wanting if env is None else env)
        *before, last = words
        return self._run(*before, "-C", cache, "--python", self._python, last, env=chosen)

    def _run(
        self, *words: str | Path, env: Mapping[str, str]
    ) -> "subprocess.CompletedProcess[str]":
        """Run a command in this process: a codec that is hidden is for its children."""
        own = clean_environment(self._directory) | env
        return run_in_process(words, env=own, cwd=self._directory)

    def key(self, env: Mapping[str, str], cache: Path) -> str:
        """Return what ``ci key`` names an environment."""
        return str(self.read("ci", "key", "--json", cache=cache, env=env)["key"])

    def read(self, *words: str | Path, **options: Any) -> dict[str, Any]:
        """Return the JSON of a command."""
        document: dict[str, Any] = json.loads(self.ask(*words, **options).stdout)
        return document


@pytest.mark.parametrize("row", EVERY, ids=lambda row: row.name)
def test_all_answers_agree_with_plain_jax(
    each_jax_python: str, make_once: MakeOnce, tmp_path: Path, row: Row
) -> None:
    machines = Machines(each_jax_python, tmp_path, row)
    filled = machines.find_filled(make_once)
    bundle = filled.with_suffix(".jxb")

    def place(name: str) -> Path:
        """Return the cache as it arrives on the other machine, at a path of its own."""
        shutil.copytree(filled, tmp_path / name)
        return tmp_path / name

    judged = machines.plain(place("judged"), machines.wanting)
    is_hit = judged["misses"] == 0
    # JAX 0.4.30 names a file by the key alone.
    entries = sum(not path.name.endswith("-atime") for path in filled.glob("jit_*"))

    is_unknown = row.by_plain_jax or row.processes > 1
    expected = "unknown" if is_unknown else "hit" if is_hit else "miss"
    words = ("import", "--json", "--dry-run", bundle)
    forecast = machines.read(*words, cache=tmp_path / "new")["forecast"]
    assert forecast == {**forecast, "hit": 0, "miss": 0, "unknown": 0, expected: entries}
    required = machines.ask("import", "--require-compatible", bundle, cache=tmp_path / "new")
    assert (required.returncode == 0) is (is_hit or is_unknown), required.stderr
    assert ("unknown whether" in required.stderr) is is_unknown

    restored = machines.read("ci", "restore", "--json", bundle, cache=tmp_path / "restored")
    assert restored["written"] == (entries if is_hit or is_unknown else 0)

    if not (row.name == "jaxlib" or is_unknown):  # a key has one jax
        key = machines.key(machines.wanting, tmp_path / "cache")
        assert (key == (filled.parent / "key").read_text()) is is_hit

    explained = machines.read("explain", "--json", machines.script, cache=place("a"))
    causes = {d["cause"] for d in explained["differences"]}
    assert any(cause.startswith(row.cause) for cause in causes) if not is_hit else not causes

    warmed = machines.read("warm", "--json", machines.script, cache=place("b"))
    reasons = [m["cause"] for m in warmed["modules"] if m["outcome"] == "written"]
    assert any(row.why in reason for reason in reasons) if not is_hit else not reasons
    if row.name == "path":
        assert is_hit is not hashes_path(warmed["processes"][0]["jax"])
