"""``jaxcache pin``."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from conftest import RunCli


@pytest.fixture
def cache(tmp_path: Path, corpus: Path) -> Path:
    """A copy of a real cache with seven entries, their ``-atime`` files and a lock file."""
    target = tmp_path / "cache"
    shutil.copytree(corpus / "0.12.0.1-cpu-zstd-maxsize", target)
    for path in target.iterdir():
        os.utime(path, (1_700_000_000, 1_700_000_000))
    return target


def error_of(done: "subprocess.CompletedProcess[str]") -> str:
    return json.loads(done.stderr)["error"]["code"]


def test_pins_are_listed_honoured_and_taken_back(run_cli: RunCli, cache: Path) -> None:
    assert run_cli("pin", "-C", cache).stdout == ""
    key = run_cli("pin", "-C", cache, "jit_ml").stdout.strip()
    assert key.startswith("jit_mlp-")
    assert json.loads(run_cli("pin", "-C", cache, "--json").stdout)["pinned"] == [key]
    refused = run_cli("rm", "-C", cache, "jit_mlp", "--yes", "--json")
    assert refused.returncode == 1
    assert error_of(refused) == "pinned"
    assert run_cli("pin", "--remove", "-C", cache).returncode == 2
    assert run_cli("pin", "--remove", "-C", cache, "jit_nothing").returncode == 1
    assert run_cli("pin", "--remove", "-C", cache, key[:20]).stdout.strip() == key
    assert run_cli("pin", "-C", cache).stdout == ""
    assert run_cli("rm", "-C", cache, "jit_mlp", "--yes").returncode == 0
