"""Commands over GPU entries where cramjam, which decompresses parts of them, is not installed."""

import json
import os
import shutil
import sys
from pathlib import Path

import pytest
from conftest import RunCli


def test_without_cramjam_a_snappy_entry_is_unreadable_and_stays(
    run_cli: RunCli, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = shutil.copytree(corpus / "0.12.0.1-cuda13-h200-zstd", tmp_path / "cache")
    for path in cache.iterdir():
        os.utime(path, (1.7e9, 1.7e9))
    with monkeypatch.context() as blocked:
        blocked.setitem(sys.modules, "cramjam", None)
        done = run_cli("verify", "--fix", "-C", cache, "--json")
        problems = json.loads(done.stdout)["problems"]
        assert (done.returncode, {p["kind"] for p in problems}) == (1, {"unreadable"})
        assert all("jaxcache[gpu]" in p["detail"] for p in problems)
        listed = json.loads(run_cli("ls", "-C", cache, "--json").stdout)["entries"]
        assert [e["problems"] for e in listed] == [["unreadable"]] * 8
        shown = run_cli("show", "jit_mlp*", "-C", cache, "--json")
        assert (shown.returncode, json.loads(shown.stdout)["program"]) == (1, None)
        refused = run_cli("show", "jit_mlp*", "-C", cache, "--hlo")
        assert (refused.returncode, "jaxcache[gpu]" in refused.stderr) == (1, True)
    # Nothing of this is remembered.
    listed = json.loads(run_cli("ls", "-C", cache, "--json").stdout)["entries"]
    assert [(e["platform"], e["problems"]) for e in listed] == [("gpu", [])] * 8


def test_without_cramjam_snappy_entries_are_copied_as_they_are(
    run_cli: RunCli, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = corpus / "0.12.0.1-cuda13-h200-zstd"
    bundle = tmp_path / "cache.jxb"
    with monkeypatch.context() as blocked:
        blocked.setitem(sys.modules, "cramjam", None)
        assert run_cli("export", bundle, "-C", cache).returncode == 0
        assert run_cli("import", bundle, "-C", tmp_path / "imported").returncode == 0
        assert run_cli("push", tmp_path / "pushed", "-C", cache).returncode == 0
    for copy in ("imported", "pushed"):
        assert run_cli("diff", cache, tmp_path / copy).returncode == 0
        assert run_cli("verify", "-C", tmp_path / copy).returncode == 0
