"""Run programs that use jaxcache from inside, and read what they print at their end."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import clean_environment, has_modules
from plain_jax import run_plain
from processes import sh

#: Counts what JAX itself counts, beside us; ``own()`` returns and forgets it.
OWN_COUNTS = """
import json
from collections import Counter
import jax
NAMES = {"compile_requests_use_cache": "requests", "cache_hits": "hits", "cache_misses": "written"}
_own = Counter()
def _count(name, **_):
    if short := NAMES.get(name.rpartition("/")[2]):
        _own[short] += 1
def listen():
    jax.monitoring.register_event_listener(_count)
listen()
def own():
    counts = {n: _own[n] for n in NAMES.values()}
    _own.clear()
    return counts
def told(report):
    requests = report.compile_requests - report.uncacheable
    return {"requests": requests, "hits": report.hits, "written": report.written}
"""

RunInside = Callable[..., Any]


@pytest.fixture
def inside_python(each_jax_python: str) -> str:
    """Each Python of the matrix in which jaxcache can be imported."""
    needed = ("tomllib", "rich", "zstandard", "google.protobuf", "humanize")
    if not has_modules(each_jax_python, *needed):
        pytest.skip("jaxcache needs Python 3.11, and its requirements beside this jax")
    return each_jax_python


@pytest.fixture
def inside_environment(tmp_path: Path) -> dict[str, str]:
    """A cache of the test's own with both thresholds lifted."""
    return clean_environment(tmp_path) | {
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path / "cache"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        "JAX_PLATFORMS": "cpu",
        "PYTHONWARNINGS": "",
    }


@pytest.fixture
def run_inside(inside_python: str, inside_environment: dict[str, str], tmp_path: Path) -> RunInside:
    """Run a program; its last line is JSON."""

    def run(
        program: str, *, prefix: tuple[str, ...] = (), home: Path = tmp_path, **env: str
    ) -> Any:
        path = home / "program.py"
        path.write_text(program)
        command = [*prefix, inside_python, path]
        start = sh if prefix else run_plain  # forked, at half the price of a new Python
        done = start(command, env=inside_environment | env, cwd=home, check=False)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    return run
