"""A hit that only the ledger has seen is a use to every command."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from conftest import RunCli

pytestmark = pytest.mark.jax
HOUR_AGO_NS = 3600 * 10**9


def test_a_hit_in_the_ledger_is_the_last_use(
    run_cli: RunCli, jax_python: str, tmp_path: Path
) -> None:
    cache, script = tmp_path / "cache", tmp_path / "train.py"
    script.write_text("import jax, numpy as np\njax.jit(lambda x: x @ x)(np.ones((9, 9)))\n")

    def document(*args: str) -> Any:
        done = run_cli(*args, "-C", cache, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    for _ in range(2):
        warm = ("warm", "--python", jax_python, "-C", cache, script)
        assert run_cli(*warm, env={"PYTHONWARNINGS": ""}).returncode == 0
    for path in cache.glob("*-cache"):
        then_ns = path.stat().st_mtime_ns - HOUR_AGO_NS
        os.utime(path, ns=(then_ns, then_ns))
    entries = document("ls")["entries"]
    assert entries and {e["last_used_from"] for e in entries} == {"ledger"}
    assert document("ls", "--filter", "unused>10m")["entries"] == []
    assert document("prune", "--unused-for", "10m", "--dry-run")["removed"] == []
    shown = document("show", entries[0]["key"])["entry"]
    assert {n: shown[n] for n in ("last_used_at", "last_used_from", "compile_seconds")} == {
        n: entries[0][n] for n in ("last_used_at", "last_used_from", "compile_seconds")
    }
    measured = sum(e["compile_seconds"] for e in entries)
    assert measured % 1
    assert document("stats")["total"]["compile_seconds"] == pytest.approx(measured)
    removed = document("prune", "--max-entries", "0", "--grace", "0s", "--dry-run")["removed"]
    assert sum(r["compile_seconds"] for r in removed) == pytest.approx(measured)
    assert {r["last_used_at"] for r in removed} == {e["last_used_at"] for e in entries}
