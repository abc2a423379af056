"""A program started in somebody's clone: nothing in the clone decides what it runs or writes."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from processes import sh
from test_security import is_in_table

from live.conftest import PROGRAM, TELL, RunLive, entries, live_environment

pytestmark = pytest.mark.jax


def test_a_program_in_a_clone_runs_as_outside_of_it(
    newer_python: str, clone: Path, tmp_path: Path
) -> None:
    (tmp_path / "precious.txt").write_text("precious")
    (tmp_path / "program.py").write_text(PROGRAM + TELL)
    env = live_environment(newer_python, tmp_path, tmp_path / "cache")
    del env["JAXCACHE_LIVE"]

    def run() -> "subprocess.CompletedProcess[str]":
        return sh([newer_python, tmp_path / "program.py"], env=env, cwd=clone, check=True)

    before = {path.name for path in (clone / ".c").iterdir()}
    done = run()
    assert json.loads(done.stdout)["counts"] is None
    assert (tmp_path / "precious.txt").read_text() == "precious"
    assert entries(tmp_path / "cache")
    assert {path.name for path in (clone / ".c").iterdir()} == before
    assert done.stderr.count("jaxcache: ignored cache-dir and live of") == 1
    env["JAXCACHE_LIVE"] = "1"
    counts = json.loads(run().stdout)["counts"]
    assert (counts["hits_local"], counts.get("evicted", 0)) == (len(entries(tmp_path / "cache")), 0)
    assert (tmp_path / "precious.txt").read_text() == "precious"


def test_forged_files_of_the_layer_change_no_result(run_live: RunLive, tmp_path: Path) -> None:
    """Each file of ``.jaxcache/live`` holds rubbish, then is a link to a file of the user's."""
    settings = {
        "JAXCACHE_LIVE_MAX_SIZE": "1GB",
        "JAXCACHE_LIVE_PRELOAD": "1",
        "JAXCACHE_LIVE_SINGLE_FLIGHT": "2s",
        "JAXCACHE_LIVE_TIERS": str(tmp_path / "tier"),
    }
    first = run_live(**settings)
    keys = [path.name.removesuffix("-cache") for path in entries(tmp_path / "cache")]
    live = tmp_path / "cache" / ".jaxcache" / "live"
    precious = tmp_path / "precious.txt"
    precious.write_text("precious")
    files = [p for p in live.parent.rglob("*") if p.is_file()]
    assert all(is_in_table(p.relative_to(live.parent).as_posix()) for p in files), files
    locks = ("totals.lock", "spool/lock", "shared/x.jsonl")
    names = (
        *locks,
        "leases",
        "sweep",
        "totals",
        "refused",
        f"spool/x/{keys[0]}",
        "runs/x",
        "loading/x",
        "starts/x",
    )
    for forge in (lambda p: p.write_bytes(b"\xff[" * 50_000), lambda p: p.symlink_to(precious)):
        shutil.rmtree(live, ignore_errors=True)
        for name in names:
            (live / name).parent.mkdir(parents=True, exist_ok=True)
            forge(live / name)
        again = run_live(**settings)
        assert again.result == first.result
        assert again["hits_local"] == len(keys)
        assert precious.read_text() == "precious"
    assert len(entries(tmp_path / "cache")) == len(keys)
