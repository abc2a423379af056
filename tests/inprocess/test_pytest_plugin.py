"""``pytest --jaxcache``, in real runs of pytest with real JAX, alone and with xdist."""

import json
import re
import sys
import xml.etree.ElementTree as ET
from collections import Counter
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest
from conftest import has_modules
from processes import sh

from tests.inprocess.conftest import OWN_COUNTS

pytestmark = pytest.mark.jax

#: Writes at the end of each process what JAX itself has counted there.
CONFTEST = """
import os, jax.numpy as jnp
AT_IMPORT = jax.jit(lambda x: x + 1)(jnp.ones(3))

def pytest_sessionfinish(session):
    with open(f"own-{os.getpid()}.json", "w") as file:
        json.dump(own(), file)
"""
TESTS = """
import os, unittest
import jax, jax.numpy as jnp, pytest
from jax._src import compilation_cache
try:
    from jax._src.test_util import JaxTestCase
except ImportError:  # absl is not installed
    JaxTestCase = unittest.TestCase

@jax.jit
def step(x):
    return jnp.sin(x) @ x

@pytest.fixture(scope="module")
def x():
    return jnp.ones((4, 4))

def test_one(x):
    step(x)

def test_cleared(x, compile_report):
    jax.clear_caches()
    step(x)
    assert "jit_step" in [m.module for m in compile_report.modules]
    assert compile_report.compile_requests < 4

def test_reset(x):
    compilation_cache.reset_cache()
    jax.jit(lambda x: x * 3 + float(os.environ.get("OTHER", 0)))(x)

def test_nothing():
    pass

class TestCase(JaxTestCase):
    def test_jax_own(self):
        self.assertEqual(jax.jit(lambda x: x * 5)(2.0), 10.0)

@pytest.mark.jaxcache_may_miss
def test_may_miss():
    jax.jit(lambda x: x * 7 + float(os.environ.get("OTHER", 0)))(1.0)
"""


class Suite:
    """A directory with tests, and how to run them in one Python."""

    def __init__(self, directory: Path, python: str, env: dict[str, str]) -> None:
        self.directory = directory
        self._python = python
        self._env = {n: v for n, v in env.items() if n != "JAX_COMPILATION_CACHE_DIR"}
        names = entry_points(group="pytest11").names if python == sys.executable else ()
        self._plugin = () if "jaxcache" in names else ("-p", "jaxcache.inprocess.pytest_plugin")
        (directory / "conftest.py").write_text(OWN_COUNTS + CONFTEST)
        (directory / "test_steps.py").write_text(TESTS)

    def run(self, *options: str, code: int = 0, **env: str) -> Any:
        for path in self.directory.glob("own-*"):
            path.unlink()
        without = ("-p", "no:cacheprovider", "-p", "no:hypothesispytest", "--strict-markers")
        python = (self._python, "-m", "pytest", *without, "-W", "error")
        done = sh([*python, *self._plugin, *options], env=self._env | env, cwd=self.directory)
        assert done.returncode == code, done.stdout + done.stderr
        return done

    def own(self) -> Counter[str]:
        """What JAX has counted in all processes together."""
        files = self.directory.glob("own-*")
        return sum((Counter(json.loads(file.read_text())) for file in files), Counter())


@pytest.fixture
def suite(inside_python: str, tmp_path: Path, inside_environment: dict[str, str]) -> Suite:
    if not has_modules(inside_python, "pytest", "xdist"):
        pytest.skip("pytest and xdist are not installed beside this jax")
    directory = tmp_path / "suite"
    directory.mkdir()
    return Suite(directory, inside_python, inside_environment)


def said(text: str) -> Counter[str]:
    """The totals that the table at the end has."""
    found = re.search(r"^(\d+) of (\d+) hits · (\d+) written", text, re.MULTILINE)
    assert found, text
    hits, requests, written = map(int, found.groups())
    return Counter(hits=hits, requests=requests, written=written)


def test_cold_warm_and_xdist_count_what_jax_counts(suite: Suite, tmp_path: Path) -> None:
    cold = suite.run("--jaxcache=../cache", "--junitxml=cold.xml")
    assert said(cold.stdout) == suite.own()
    assert "6 passed" in cold.stdout
    assert (tmp_path / "cache").is_dir(), "the directory is that of where pytest began"
    rows = {line.split()[0]: line for line in cold.stdout.splitlines() if "::" in line}
    assert re.search(r"test_cleared +\d +[1-9]", rows["test_steps.py::test_cleared"])
    assert "test_steps.py::test_nothing" not in rows
    assert "outside of tests" in cold.stdout
    cases = {c.get("name"): c for c in ET.parse(suite.directory / "cold.xml").iter("testcase")}
    properties = {p.get("name"): p.get("value") for p in cases["test_one"].iter("property")}
    assert float(properties["jaxcache_compile_seconds"] or 0) > 0
    assert int(properties["jaxcache_written"] or 0) > 0
    assert not list(cases["test_nothing"].iter("property"))
    # Each module is written once, so what was written is what is there.
    # JAX 0.4.30 names the files by the key alone.
    names = [path.name for path in (tmp_path / "cache").glob("jit_*")]
    written = sum(not name.endswith("-atime") for name in names)
    assert said(cold.stdout)["written"] == written

    warm = suite.run("--jaxcache=../cache", "-n", "2", "--jaxcache-fail-on-miss")
    assert "6 passed" in warm.stdout
    assert said(warm.stdout) == suite.own()
    assert said(warm.stdout)["written"] == 0

    # Misses fail where they are not allowed, and again without writing.
    options = ("--jaxcache=../cache", "--jaxcache-fail-on-miss")
    done = suite.run(*options, "--jaxcache-no-write", code=1, OTHER="1")
    assert "1 failed, 5 passed" in done.stdout
    assert "test_steps.py::test_reset" in done.stdout.partition("FAILURES")[2]
    assert "compile not served by the cache" in done.stdout
    assert re.search(r"jit__lambda \(.*test_steps.py:\d+\)", done.stdout)
    assert "run once without --jaxcache-no-write to fill it" in done.stdout
    failed = suite.run(*options, code=1, OTHER="1")  # nothing was written: it misses again
    assert "so a retry passes (--jaxcache-no-write leaves the cache unchanged)" in failed.stdout
    suite.run(*options, OTHER="1")


def test_the_cache_may_be_a_url(suite: Suite, tmp_path: Path) -> None:
    (suite.directory / "conftest.py").write_text("")
    (suite.directory / "test_steps.py").write_text("def test_light(): pass\n")
    done = suite.run(f"--jaxcache=file://{tmp_path}/a%20b")
    assert f"jaxcache: {tmp_path}/a b\n" in done.stdout
    assert "after gs: come two slashes" in suite.run("--jaxcache=gs:team", code=4).stderr
    said = suite.run("--jaxcache=conftest.py", code=4).stderr
    assert f"cannot make {suite.directory}/conftest.py: file exists" in said


def test_off_it_imports_nothing_and_says_nothing(suite: Suite) -> None:
    (suite.directory / "conftest.py").write_text("")
    (suite.directory / "test_steps.py").write_text(
        "import sys\n"
        "def test_light():\n"
        "    ours = {m for m in sys.modules if m.startswith('jaxcache.')}\n"
        "    assert ours <= {'jaxcache.inprocess', 'jaxcache.inprocess.pytest_plugin'}\n"
        "    assert not {'jax', 'rich', 'zstandard'} & {*sys.modules}\n"
    )
    done = suite.run()
    assert "jaxcache: " not in done.stdout and " jaxcache " not in done.stdout


GUARDED = """
import jax, jax.numpy as jnp, pytest
f = jax.jit(lambda x: x + 1)

@pytest.fixture
def x():
    x = jnp.ones(3)
    f(x)
    return x

@pytest.mark.jaxcache_guard
def test_warm(x):
    f(x)

@pytest.mark.jaxcache_guard(on="compile")
def test_cold(x):
    f(jnp.ones(4))
"""


def test_the_marker_refuses_compiles_in_the_test_and_not_in_its_fixtures(suite: Suite) -> None:
    (suite.directory / "test_guarded.py").write_text(GUARDED)
    done = suite.run("test_guarded.py", code=1)
    assert "1 failed, 1 passed" in done.stdout
    assert "UnexpectedCompileError" in done.stdout
