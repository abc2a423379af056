"""The previous and the present jaxcache over one cache, turn by turn.

The previous one is the newest release before this commit, or what ``JAXCACHE_TEST_PREVIOUS``
names: a commit, a tag, or a directory with the package in it.
"""

import json
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from conftest import REPOSITORY, RunCli

Run = Callable[..., Any]


def git(*args: str) -> bytes | None:
    try:
        done = subprocess.run(["git", *args], cwd=REPOSITORY, capture_output=True, check=False)
    except OSError:
        return None
    return done.stdout if done.returncode == 0 else None


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the previous package."""
    named = os.environ.get("JAXCACHE_TEST_PREVIOUS")
    if named and Path(named, "jaxcache").is_dir():
        return Path(named)
    tag = named or (git("describe", "--tags", "--abbrev=0", "HEAD^") or b"").decode().strip()
    source = git("archive", tag, "jaxcache") if tag else None
    if source is None:
        pytest.skip("no release before this one in this clone: set JAXCACHE_TEST_PREVIOUS")
    directory = tmp_path_factory.mktemp("previous")
    with tarfile.open(fileobj=BytesIO(source)) as archive:
        archive.extractall(directory, filter="data")
    return directory


@pytest.fixture
def old(before: Path, run_cli: RunCli) -> Run:
    """The previous jaxcache, told to print JSON."""
    return lambda *args, code=0: told(run_cli(*args, env={"PYTHONPATH": str(before)}), code)


@pytest.fixture
def new(run_cli: RunCli) -> Run:
    """The present one."""
    return lambda *args, code=0: told(run_cli(*args), code)


def told(done: "subprocess.CompletedProcess[str]", code: int) -> Any:
    assert done.returncode == code, done.stderr
    return json.loads(done.stdout) if done.stdout.startswith("{") else done.stdout


@pytest.fixture
def cache(corpus: Path, tmp_path: Path) -> Path:
    copied = Path(shutil.copytree(corpus / "0.12.0.1-cpu-zstd-maxsize", tmp_path / "cache"))
    for path in copied.iterdir():
        os.utime(path, (1.7e9, 1.7e9))
    return copied


def test_it_is_another_one(before: Path, tmp_path: Path) -> None:
    script = "import jaxcache; print(jaxcache.__file__)"
    env = {**os.environ, "PYTHONPATH": str(before)}
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=env,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.startswith(str(before))


def test_both_see_the_same_entries_whoever_changed_them(old: Run, new: Run, cache: Path) -> None:
    for first, second in ((old, new), (new, old)):
        for args in (("seal", "--again", "--level", "3"), ("pin", "jit_mlp")):
            first(*args, "-C", cache)
            seen = [
                run("ls", "-C", cache, "--json", "--long")["entries"] for run in (first, second)
            ]
            fields = seen[0][0].keys() & seen[1][0].keys()
            assert len(fields) > 10
            assert [{f: e[f] for f in fields} for e in seen[0]] == [
                {f: e[f] for f in fields} for e in seen[1]
            ]
        assert second("verify", "-C", cache, "--json")["problems"] == []


def test_a_pin_of_one_holds_against_the_other(old: Run, new: Run, cache: Path) -> None:
    old("pin", "jit_mlp", "-C", cache)
    new("pin", "jit_loss", "-C", cache)
    for run in (old, new):
        planned = run("prune", "-C", cache, "--older-than", "1d", "--dry-run", "--json")
        assert planned["kept"] == 2
        assert len(planned["removed"]) == 5
    new("pin", "--remove", "jit_mlp", "-C", cache)
    assert old("prune", "-C", cache, "--older-than", "1d", "-n", "--json")["kept"] == 1


def test_what_one_puts_away_the_other_brings_back(old: Run, new: Run, cache: Path) -> None:
    entry = next(cache.glob("jit_mlp-*-cache"))
    whole = entry.stat().st_size
    for first, second in ((old, new), (new, old)):
        os.truncate(entry, whole // 2)
        os.utime(entry, (1.7e9, 1.7e9))
        first("verify", "-C", cache, "--fix")
        assert not entry.exists()
        second("verify", "-C", cache, "--restore")
        assert entry.stat().st_size == whole // 2


def test_bundles_go_both_ways(old: Run, new: Run, cache: Path, tmp_path: Path) -> None:
    for name, first, second in (("a", old, new), ("b", new, old)):
        first("export", tmp_path / f"{name}.jxb", "-C", cache)
        second("import", tmp_path / f"{name}.jxb", "-C", tmp_path / name)
        second("diff", tmp_path / name, cache)
    assert (tmp_path / "a.jxb").read_bytes() == (tmp_path / "b.jxb").read_bytes()
