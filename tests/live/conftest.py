"""Run real programs with the live layer in them."""

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from conftest import REPOSITORY, clean_environment, find_jax_pythons, has_modules, jax_version
from once import fill_once
from plain_jax import run_plain
from processes import sh

from jaxcache.core.system import available_cores

#: Keys of every JAX without the path of the cache.
PORTABLE = {"JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES": "none"}
PLAIN = {"JAXCACHE_LIVE": "0"}
#: Prints a result and what the layer counted; the modules have names of their own.
PROGRAM = """
import json, sys
import jax, jax.numpy as jnp

@jax.jit
def first(x):
    return jnp.sin(x) @ x.T + 1

@jax.jit
def second(x):
    return jax.lax.fori_loop(0, 3, lambda i, y: jnp.cos(y) * i, x)

x = jax.device_put(jnp.asarray([[0.5, 1.5], [2.5, 3.5]]))
result = [first(x).tolist(), second(x).tolist()]
"""
#: Its functions alone.
DEFINITIONS = PROGRAM.partition("x = jax")[0]
#: The end of every program.
TELL = """
import sys
layer = next((m.LAYER for n, m in list(sys.modules.items()) if n.endswith("live.layer")), None)
import json
print(json.dumps({"result": result, "counts": layer and layer.counters.snapshot(),
                  "by_tier": layer and layer.counters.by_tier}), flush=True)
"""


@dataclass
class Ran:
    """How a program ended."""

    code: int
    out: str
    err: str
    document: dict[str, Any] = field(default_factory=dict)

    @property
    def result(self) -> Any:
        """What it computed."""
        return self.document["result"]

    @property
    def hits(self) -> int:
        """Entries that the layer has served from any place."""
        return self["hits_local"] + self["hits_tier"]

    def __getitem__(self, name: str) -> int:
        return int((self.document["counts"] or {}).get(name, 0))


RunLive = Callable[..., Ran]


@cache
def finds_the_layer(python: str) -> bool:
    """Whether jaxcache is installed beside that jax."""
    script = (
        "from importlib.metadata import entry_points as e\n"
        "print(any('jaxcache' in p.value for p in e(group='jax_plugins')))"
    )
    done = sh([python, "-c", script], check=True)
    return done.stdout.strip() == "True"


def live_environment(python: str, home: Path, cache_dir: Path | str | None) -> dict[str, str]:
    """The environment of a program with the layer on."""
    env = clean_environment(home) | {
        "JAXCACHE_LIVE": "1",
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        "JAX_PLATFORMS": "cpu",
    }
    env.pop("PYTHONWARNINGS")
    if cache_dir is not None:
        env["JAX_COMPILATION_CACHE_DIR"] = str(cache_dir)
    if not finds_the_layer(python):
        plugins = home / "plugins" / "jax_plugins"
        plugins.mkdir(parents=True, exist_ok=True)
        (plugins / "jaxcache_live.py").write_text(
            "from jaxcache.live.plugin import initialize as initialize\n"
        )
        env["PYTHONPATH"] = f"{plugins.parent}:{REPOSITORY}"
    return env


@pytest.fixture
def jax_python(each_jax_python: str) -> str:
    """Each interpreter of the matrix in turn whose JAX the layer knows."""
    if jax_version(each_jax_python) < (0, 4, 38):
        pytest.skip("the layer knows JAX from 0.4.38")
    return each_jax_python


@pytest.fixture
def newer_python(jax_python: str) -> str:
    """One that also runs jaxcache's commands and reads its files, which Python 3.10 does not."""
    if not has_modules(jax_python, "tomllib"):
        pytest.skip("Python 3.10 has no tomllib")
    return jax_python


@pytest.fixture
def tmp_path(
    request: pytest.FixtureRequest, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """One directory for all that loads ahead: the path of a cache may be in its keys."""
    if "run_ahead" not in request.fixturenames:
        return tmp_path
    number = find_jax_pythons().index(request.getfixturevalue("each_jax_python"))
    directory = tmp_path_factory.getbasetemp() / f"ahead-jax{number}"
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir()
    return directory


@pytest.fixture
def run_live(jax_python: str, tmp_path: Path) -> RunLive:
    """Run a program with the layer on, and read what it tells."""

    def run(
        program: str = PROGRAM,
        *,
        cache_dir: Path | str | None = None,
        check: bool = True,
        options: tuple[str | Path, ...] | None = None,
        **settings: str | None,
    ) -> Ran:
        """Run it, forked from a Python that has imported what jax imports.

        Args:
            options: of a Python of its own, which starts and ends as usual.
        """
        directory = tmp_path / "cache" if cache_dir is None else cache_dir
        given = live_environment(jax_python, tmp_path, directory) | settings
        env = {name: value for name, value in given.items() if value is not None}
        command = [jax_python, *(options or ()), "-c", program + TELL]
        start = run_plain if options is None else sh
        done = start(command, env=env, cwd=tmp_path, check=False)
        last = done.stdout.rstrip().rpartition("\n")[2]
        document = json.loads(last) if last.startswith("{") else {}
        # XLA of 0.8 names tuning flags of the compiler that are no features of the CPU.
        lines = done.stderr.splitlines(keepends=True)
        err = "".join(line for line in lines if "cpu_aot_loader.cc" not in line)
        ran = Ran(done.returncode, done.stdout, err, document)
        if check:
            assert done.returncode == 0, done.stderr
        return ran

    return run


_plain: dict[str, tuple[Path, Any]] = {}


@pytest.fixture
def plain(
    run_live: RunLive, jax_python: str, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Any]:
    """A directory that plain JAX has filled with ``PROGRAM``, once, and what that computes."""
    if jax_python not in _plain:
        directory = tmp_path_factory.mktemp("plain")
        ran = run_live(cache_dir=directory, **PLAIN, **PORTABLE)
        assert ran.document["counts"] is None
        _plain[jax_python] = directory, ran.result
    return _plain[jax_python]


@pytest.fixture
def right(plain: tuple[Path, Any]) -> Any:
    """What ``PROGRAM`` computes by plain JAX."""
    return plain[1]


def entries(cache_dir: Path, module: str = "") -> list[Path]:
    """The entries of a cache, those of one module."""
    return sorted(cache_dir.glob(f"jit_{module}*-cache"))


ON = {"JAXCACHE_LIVE_PRELOAD": "1"}
#: Starts the backend, and waits until so many executables are loaded ahead as ``WAIT`` says.
START = """
import os, sys, time
import jax
jax.devices()
layer = next((m.LAYER for name, m in sys.modules.items() if name.endswith("live.layer")), None)
end = time.monotonic() + 120
wanted = int(os.environ.get("WAIT", 0)) if layer else 0
while wanted and layer.counters["preloaded"] < wanted and time.monotonic() < end:
    time.sleep(0.01)
"""


def can_load_ahead(python: str) -> bool:
    """Whether that jax lets the layer load entries ahead."""
    return jax_version(python) >= (0, 8)


@pytest.fixture
def run_ahead(run_live: RunLive, jax_python: str) -> RunLive:
    """Run a program that waits until so many entries are loaded ahead."""
    if not can_load_ahead(jax_python):
        pytest.skip("nothing is loaded ahead before JAX 0.8")
    if available_cores() < 2:
        pytest.skip("nothing is loaded ahead on one core")

    def run(
        program: str = PROGRAM,
        *,
        before: str = "",
        wait: int = 0,
        check: bool = True,
        **settings: str | None,
    ) -> Ran:
        return run_live(before + START + program, check=check, WAIT=str(wait), **ON | settings)

    return run


_first: dict[str, Ran] = {}


@pytest.fixture
def first(run_ahead: RunLive, jax_python: str, tmp_path: Path) -> Ran:
    """The first run of ``PROGRAM``, once for all tests; the directory is as it left it."""
    fill_once(tmp_path, lambda: _first.setdefault(jax_python, run_ahead()))
    return _first[jax_python]
