"""What every test may ask for: the command line, real caches, and Pythons that have jax."""

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).parents[1]
CORPUS = Path(__file__).parent / "data" / "corpus"

#: Variables of the caller that would change what a test sees.
_FOREIGN = ("JAX_", "XLA_", "LIBTPU", "XDG_", "NO_COLOR", "COLUMNS", "TERM", "PYTHONWARNINGS")

RunCli = Callable[..., "subprocess.CompletedProcess[str]"]


def clean_environment(home: Path) -> dict[str, str]:
    """The caller's environment without what would leak into a test."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(_FOREIGN)}
    env |= {"HOME": str(home), "PYTHONPATH": str(REPOSITORY), "PYTHONHASHSEED": "0"}
    env["PYTHONWARNINGS"] = "error"
    return env


@pytest.fixture
def run_cli(tmp_path: Path) -> RunCli:
    """Run ``jaxcache ARG…`` as a real process, away from the caller's settings."""

    def run(
        *args: str | Path,
        env: dict[str, str] | None = None,
        input: str | None = None,  # noqa: A002
        cwd: Path | None = None,
        timeout: float = 300,
    ) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [sys.executable, "-m", "jaxcache", *map(str, args)],
            env=clean_environment(tmp_path) | (env or {}),
            input=input,
            stdin=None if input is not None else subprocess.DEVNULL,
            capture_output=True,
            text=True,
            cwd=cwd or tmp_path,
            timeout=timeout,
            check=False,
        )

    return run


@pytest.fixture(scope="session")
def corpus() -> Path:
    """Real cache directories of five JAX versions; see ``PROVENANCE.md`` there."""
    return CORPUS


@cache
def _has_jax(python: str) -> bool:
    probe = [python, "-c", "import jax"]
    return subprocess.run(probe, capture_output=True, check=False).returncode == 0


@cache
def jax_version(python: str) -> tuple[int, ...]:
    """The first two numbers of its jax."""
    told = subprocess.run(
        [python, "-c", "import jax; print(jax.__version__)"], capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    return tuple(int(n) for n in told.stdout.split(".")[:2])


@cache
def find_jax_pythons() -> tuple[str, ...]:
    """The interpreters to test with: those named by the environment, else our own."""
    many = os.environ.get("JAXCACHE_TEST_JAX_PYTHONS")
    named = many.split(os.pathsep) if many else [os.environ.get("JAXCACHE_TEST_JAX_PYTHON", "")]
    chosen = [p for p in named if p] or [sys.executable]
    return tuple(p for p in chosen if _has_jax(p))


@pytest.fixture(scope="session")
def jax_python() -> str:
    """An interpreter that has jax."""
    pythons = find_jax_pythons()
    if not pythons:
        pytest.skip("no Python with jax: set JAXCACHE_TEST_JAX_PYTHON")
    return pythons[0]


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """Where a cache may come to be."""
    return tmp_path / "cache"


@pytest.fixture
def script(tmp_path: Path) -> Callable[..., Path]:
    """Write a script and return its path."""

    def write(text: str, name: str = "script.py") -> Path:
        path = tmp_path / name
        path.write_text(textwrap.dedent(text))
        return path

    return write


@pytest.fixture
def warm(run_cli: RunCli, cache: Path, each_jax_python: str) -> Callable[..., Any]:
    """Run ``warm --json`` and return its document; the exit code is checked."""

    def run(
        path: Path, *args: str, options: tuple[str, ...] = (), code: int | None = 0, **kw: Any
    ) -> Any:
        done = run_cli(
            "warm", "--json", "-C", cache, "--python", each_jax_python, *options, path, *args, **kw
        )
        assert code is None or done.returncode == code, done.stderr
        return json.loads(done.stdout) if done.stdout else done.stderr

    return run


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test that takes ``each_jax_python`` once for every interpreter of the matrix."""
    if "each_jax_python" in metafunc.fixturenames:
        pythons = find_jax_pythons()
        marks = pytest.mark.skip(reason="no Python with jax")
        params = [pytest.param(p, id=f"jax{i}") for i, p in enumerate(pythons)]
        metafunc.parametrize("each_jax_python", params or [pytest.param("", marks=marks)])
