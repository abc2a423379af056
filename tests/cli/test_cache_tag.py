"""``CACHEDIR.TAG`` in each cache that a command fills, and directories of other programs."""

import os
from pathlib import Path

import pytest
from conftest import RunCli
from object_server import Proxy
from ways import OLD_NS, WAYS, names, old_copy

TAG = "CACHEDIR.TAG"
SIGNATURE = b"Signature: 8a477f597d28d172789f06886806bc55\n"
#: A directory of another program, with a file whose name is like one of ours.
THEIRS = "levanter_kernel_autotune"
FILE = f"{THEIRS}/deeper/.jaxcache-tmp-1-theirs"


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    cache = old_copy(tmp_path / "cache")
    (cache / TAG).write_bytes(SIGNATURE)
    (cache / FILE).parent.mkdir(parents=True)
    (cache / FILE).write_bytes(bytes(5000))
    for path in cache.rglob("*"):
        os.utime(path, ns=(OLD_NS, OLD_NS))
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


def test_a_bucket_gets_neither(run_cli: RunCli, cache: Path, bucket: str, s3: Proxy) -> None:
    assert run_cli("push", bucket, "-C", cache).returncode == 0
    sent = s3.names("put")
    assert sent and not any(TAG in name or THEIRS in name for name in sent)


@pytest.mark.parametrize(
    "line",
    [
        "prune --max-size 0 --orphans --legacy --quarantine --side-caches --yes",
        "rm * --yes",
        "verify --fix --delete --yes",
    ],
)
def test_both_stay(run_cli: RunCli, cache: Path, line: str) -> None:
    assert run_cli(*line.split(), "-C", cache).returncode == 0
    assert (cache / TAG).read_bytes() == SIGNATURE
    assert (cache / FILE).read_bytes() == bytes(5000)


@pytest.mark.parametrize("way", ["copy", "pull", "push", "restore", "save"])
def test_neither_is_carried(run_cli: RunCli, cache: Path, tmp_path: Path, way: str) -> None:
    other = tmp_path / "other"
    (other / "others").mkdir(parents=True)
    assert run_cli(*WAYS[way](cache, other)).returncode == 0
    assert names(other) == names(cache)
    assert not {TAG, THEIRS} & {path.name for path in other.iterdir()}


def test_neither_is_in_a_bundle(run_cli: RunCli, cache: Path, bundle: Path) -> None:
    listed = run_cli("ls", "-q", "-C", bundle).stdout.split()
    assert {f"{key}-cache" for key in listed} == names(cache)


def test_a_limit_on_the_size_does_not_count_what_others_have(run_cli: RunCli, cache: Path) -> None:
    own = [path for path in cache.iterdir() if path.name not in (TAG, THEIRS)]
    size = sum(path.stat().st_size for path in own)
    done = run_cli("prune", "--max-size", size, "-C", cache, "--dry-run")
    assert "nothing to remove" in done.stderr


def test_a_tag_makes_no_cache_of_a_directory(run_cli: RunCli, tmp_path: Path) -> None:
    (tmp_path / "target" / "debug").mkdir(parents=True)
    (tmp_path / "target" / TAG).write_bytes(SIGNATURE)
    assert run_cli("ls", "-C", tmp_path / "target").returncode == 10
