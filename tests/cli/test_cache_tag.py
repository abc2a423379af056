"""``CACHEDIR.TAG``: in each cache that a command fills, and no stray file to any of them."""

import json
import os
from pathlib import Path

import pytest
from conftest import RunCli
from object_server import Proxy
from ways import WAYS, names, old_copy

TAG = "CACHEDIR.TAG"
SIGNATURE = b"Signature: 8a477f597d28d172789f06886806bc55\n"


@pytest.fixture
def tagged(run_cli: RunCli, tmp_path: Path) -> Path:
    cache = old_copy(tmp_path / "cache")
    (cache / TAG).write_bytes(SIGNATURE)
    os.utime(cache / TAG, ns=(10**18, 10**18))
    return cache


@pytest.mark.parametrize("way", ["copy", "pull", "push", "restore", "save"])
@pytest.mark.parametrize("target", ["absent", "empty", "cache"])
def test_a_command_that_fills_a_cache_tags_it(
    run_cli: RunCli, tmp_path: Path, way: str, target: str
) -> None:
    source = old_copy(tmp_path / "source")
    other = tmp_path / "other"
    if target != "absent":
        other.mkdir()
    if target == "cache":
        (other / next(iter(names(source)))).write_bytes(b"x")
        (other / ".lockfile").touch()
    done = run_cli(*WAYS[way](source, other))
    assert done.returncode in (0, 1), done.stderr
    assert (other / TAG).read_bytes().startswith(SIGNATURE)
    assert not (source / TAG).exists()


@pytest.mark.parametrize("foreign", ["train.py", "lost+found", "notes-cache"])
def test_a_directory_with_other_files_is_not_tagged(
    run_cli: RunCli, tmp_path: Path, foreign: str
) -> None:
    source = old_copy(tmp_path / "source")
    other = tmp_path / "other"
    (other / foreign).mkdir(parents=True)
    assert run_cli("pull", source, "-C", other).returncode == 0
    assert names(other) >= names(source)
    assert not (other / TAG).exists()


def test_a_bucket_gets_no_tag(run_cli: RunCli, tagged: Path, bucket: str, s3: Proxy) -> None:
    assert run_cli("push", bucket, "-C", tagged).returncode == 0
    sent = s3.names("put")
    assert sent and not any(TAG in name for name in sent)


def test_the_tag_is_no_entry_and_no_stray_file(run_cli: RunCli, tagged: Path) -> None:
    verified = run_cli("verify", "-C", tagged)
    assert (verified.returncode, TAG in verified.stdout + verified.stderr) == (0, False)
    found = run_cli("doctor", "-C", tagged, "--python", "/nonexistent").stdout
    assert TAG not in found and "stray" not in found
    files = json.loads(run_cli("stats", "-C", tagged, "--json").stdout)["files"]
    assert [f["files"] for f in files if f["kind"] == "own"] == [1]


@pytest.mark.parametrize(
    "words",
    [
        ("prune", "--max-size", "0", "--orphans", "--side-caches", "--yes"),
        ("rm", "*", "--yes"),
        ("verify", "--fix", "--delete", "--yes"),
    ],
    ids=["prune", "rm", "verify"],
)
def test_the_tag_stays(run_cli: RunCli, tagged: Path, words: tuple[str, ...]) -> None:
    assert run_cli(*words, "-C", tagged).returncode == 0
    assert (tagged / TAG).read_bytes() == SIGNATURE


def test_the_tag_is_not_carried(run_cli: RunCli, tagged: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    (other / "theirs").mkdir(parents=True)
    assert run_cli("copy", tagged, other).returncode == 0
    assert not (other / TAG).exists()
    assert run_cli("export", tmp_path / "cache.jxb", "-C", tagged).returncode == 0
    assert TAG not in run_cli("ls", tmp_path / "cache.jxb").stdout


def test_a_tag_makes_no_cache_of_a_directory(run_cli: RunCli, tmp_path: Path) -> None:
    (tmp_path / "target" / "debug").mkdir(parents=True)
    (tmp_path / "target" / TAG).write_bytes(SIGNATURE)
    assert run_cli("ls", "-C", tmp_path / "target").returncode == 10
