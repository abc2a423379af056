"""What Linux alone has, and ``flock``, are refused: commands do the same work without them.

``make test-other-systems`` runs whole directories of tests without what Linux alone has.
"""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import refuse_calls
from conftest import StepRuns, clean_environment
from processes import sh
from warm_checks import STEP

pytestmark = pytest.mark.skipif(
    refuse_calls.why_not("all") is not None, reason=str(refuse_calls.why_not("all"))
)
Run = Callable[..., Any]


@pytest.fixture
def without_linux(tmp_path: Path) -> Run:
    """Run ``jaxcache ARG…`` without /proc, renameat2, flock and extended attributes."""

    def run(*args: str | Path, code: int = 0) -> Any:
        command = [sys.executable, refuse_calls.__file__, "all", sys.executable, "-m", "jaxcache"]
        done = sh([*command, *map(str, args)], env=clean_environment(tmp_path), cwd=tmp_path)
        if "cannot refuse calls" in done.stderr:
            pytest.skip(done.stderr.splitlines()[-1])
        assert done.returncode == code, done.stderr
        assert "Traceback" not in done.stderr
        return json.loads(done.stdout) if done.stdout.startswith("{") else done.stdout

    return run


#: Prints whether each call is refused, and what /proc has.
_CALLS = """
import ctypes, fcntl, os
def refused(call):
    try:
        return call() == -1
    except OSError:
        return True
rename = ctypes.CDLL(None).renameat2
calls = [
    lambda: fcntl.flock(0, fcntl.LOCK_SH),
    lambda: os.listxattr("/"),
    lambda: rename(-100, b"a", -100, b"b", 1),
]
print([*map(refused, calls)], os.listdir("/proc"))
"""


def test_the_calls_are_refused(tmp_path: Path) -> None:
    """Else nothing below says anything."""
    command = [sys.executable, refuse_calls.__file__, "all", sys.executable, "-c", _CALLS]
    done = sh(command, cwd=tmp_path)
    if "cannot refuse calls" in done.stderr:
        pytest.skip(done.stderr.splitlines()[-1])
    assert done.stdout == "[True, True, True] []\n", done.stderr


def test_entries_are_sealed_pruned_and_moved_to_quarantine_and_back(
    without_linux: Run, capped_cache: Path
) -> None:
    (entry,) = capped_cache.glob("jit_mlp-*-cache")
    assert without_linux("seal", "-C", capped_cache, "--json")["summary"]["sealed"] == 7
    sound = entry.read_bytes()
    os.truncate(entry, 100)
    os.utime(entry, (1.7e9, 1.7e9))
    (problem,) = without_linux("verify", "-C", capped_cache, "--fix", "--json")["problems"]
    assert (problem["action"], entry.exists()) == ("quarantine", False)
    (kept,) = capped_cache.rglob(entry.name)
    kept.write_bytes(sound)
    without_linux("verify", "-C", capped_cache, "--restore")
    assert entry.read_bytes() == sound
    without_linux("prune", "-C", capped_cache, "--max-entries", "2", "--yes")
    assert len(list(capped_cache.glob("*-cache"))) == 2


def test_kernels_of_torch_are_removed_though_nobody_can_lock_them(
    without_linux: Run, torch_cache: Path
) -> None:
    assert without_linux("ls", "-C", torch_cache, "--json")["entries"]
    limit = ("--max-size", "200kB", "--grace", "0s", "--yes")
    pruned = without_linux("prune", "-C", torch_cache, *limit, "--json")
    assert (pruned["unmet"], pruned["spared"]) == ([], [])
    assert any(removal["file"].endswith(".so") for removal in pruned["removed"])


def test_doctor_and_bug_report_leave_out_what_they_cannot_see(
    without_linux: Run, capped_cache: Path
) -> None:
    python = ("--python", "/nonexistent")
    found = without_linux("doctor", "-C", capped_cache, *python, "--json")
    assert "lock-held" not in {f["trap"] for f in found["findings"]}
    report = without_linux("bug-report", "-C", capped_cache, *python, "--json")
    assert report["cache"]["filesystem"] is None


@pytest.mark.jax
def test_a_program_hits_and_what_it_compiles_is_written(
    without_linux: Run, step_runs: StepRuns, step_cache: Path, each_jax_python: str, script: Any
) -> None:
    path = script(STEP + "jax.jit(lambda x: x * 2)(1.0)\n")
    options = ("--portable", "--python", each_jax_python, "-C", step_cache, "--json")
    summary = without_linux("warm", *options, path)["summary"]
    assert (summary["hits"], summary["written"]) == (step_runs.hot["summary"]["hits"], 1)
