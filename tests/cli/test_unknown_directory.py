"""A directory of another program below a cache is listed with its bytes, and left alone."""

import json
import os
import shutil
from pathlib import Path

import pytest
from conftest import CORPUS, RunCli
from terminal import run_all, without_style
from ways import MOVES, WAYS

NAME = "levanter_kernel_autotune"
OLD_NS = 10**18


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    path = tmp_path / "cache"
    shutil.copytree(CORPUS / "0.12.0.1-cpu-zstd", path, copy_function=shutil.copyfile)
    sizes = path / NAME / "deeper" / "block_sizes_v1.json"
    sizes.parent.mkdir(parents=True)
    sizes.write_bytes(bytes(5000))
    (path / NAME / ".jaxcache-tmp-1-theirs").write_bytes(b"")
    for file in path.rglob("*"):
        os.utime(file, ns=(OLD_NS, OLD_NS))
    return path


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("ls",), f"{NAME}: 5.0 kB in 2 files of another program"),
        (("stats",), "unknown-directory\t2\t5000"),
        (("verify",), f"unknown-directory\t{NAME}\t\t5.0 kB in 2 files of another program"),
        (("doctor", "--python", "/bin/false"), f"{NAME} holds 5.0 kB in 2 files of another"),
    ],
    ids=["ls", "stats", "verify", "doctor"],
)
def test_it_is_listed_with_its_bytes_and_is_no_problem(
    run_cli: RunCli, cache: Path, words: tuple[str, ...], text: str
) -> None:
    done = run_cli(*words, "-C", cache)
    output = done.stdout + done.stderr
    assert (done.returncode, text in output) == (0, True), output
    assert "stray" not in output
    assert "problem" not in output


def test_a_limit_on_the_size_does_not_count_it(run_cli: RunCli, cache: Path) -> None:
    before = json.loads(run_cli("stats", "-C", cache, "--json").stdout)["size_bytes"]
    shutil.rmtree(cache / NAME)
    assert json.loads(run_cli("stats", "-C", cache, "--json").stdout)["size_bytes"] == before


def test_on_a_terminal_its_bytes_are_not_taken_for_the_ledger(cache: Path, tmp_path: Path) -> None:
    ((_, screen),) = run_all([["stats", "-C", cache]], home=tmp_path, width=120)
    assert "directories of other programs" in without_style(screen)
    assert "of ledger" not in without_style(screen)


@pytest.mark.parametrize("way", [*MOVES, "restore", "save"])
def test_it_is_not_carried(run_cli: RunCli, cache: Path, tmp_path: Path, way: str) -> None:
    done = run_cli(*WAYS[way](cache, tmp_path / "other"))
    assert done.returncode == 0, done.stderr
    assert len([*(tmp_path / "other").glob("*-cache")]) == len([*cache.glob("*-cache")])
    assert not (tmp_path / "other" / NAME).exists()


@pytest.mark.parametrize(
    "words",
    [
        (
            "prune",
            "--max-size",
            "0",
            "--orphans",
            "--legacy",
            "--quarantine",
            "--side-caches",
            "-y",
        ),
        ("verify", "--fix", "--delete", "--yes"),
        ("rm", "*", "--yes"),
    ],
    ids=["prune", "verify", "rm"],
)
def test_it_is_not_removed(run_cli: RunCli, cache: Path, words: tuple[str, ...]) -> None:
    before = sorted((cache / NAME).rglob("*"))
    done = run_cli(*words, "-C", cache)
    assert done.returncode in (0, 3), done.stderr
    assert sorted((cache / NAME).rglob("*")) == before
