"""Commands on a directory above several caches."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from conftest import RunCli

#: Where each cache of the root lies, and which of the corpus it is.
CACHES = {
    "cpu-old": "0.10.2-cpu-zstd",
    "machines/cpu-new": "0.12.0.1-cpu-zstd",
    "machines/gpu": "0.8.3-cuda13-h200-zstd",
}


@pytest.fixture
def root(tmp_path: Path, corpus: Path) -> Path:
    path = tmp_path / "root"
    for name, source in CACHES.items():
        shutil.copytree(corpus / source, path / name)
        for file in (path / name).rglob("*"):
            file.chmod(0o755 if file.is_dir() else 0o644)
    (path / "notes").mkdir()
    return path


def document(run_cli: RunCli, *arguments: str | Path) -> Any:
    return json.loads(run_cli(*arguments, "--json").stdout)


@pytest.mark.parametrize(("command", "sums"), [("ls", "summary"), ("stats", "total")])
def test_a_row_for_each_cache_and_their_sums(
    run_cli: RunCli, root: Path, command: str, sums: str
) -> None:
    found = document(run_cli, command, "-C", root)
    assert found["cache_dir"] == str(root)
    assert [row["name"] for row in found["caches"]] == sorted(CACHES)
    single = [document(run_cli, "stats", "-C", root / name)["total"] for name in sorted(CACHES)]
    for field in ("entries", "payload_bytes", "compile_seconds"):
        assert [row[field] for row in found["caches"]] == [total[field] for total in single]
        assert found[sums][field] == sum(total[field] for total in single)


def test_keys_and_filters_choose_in_every_cache(run_cli: RunCli, root: Path) -> None:
    found = document(run_cli, "ls", "-C", root, "--filter", "platform=gpu")
    entries = {row["name"]: row["entries"] for row in found["caches"]}
    assert entries == {"cpu-old": 0, "machines/cpu-new": 0, "machines/gpu": 6}
    unknown = run_cli("ls", "-C", root, "no-such-module")
    assert (unknown.returncode, "no-match" in unknown.stderr) == (1, True)


def test_verify_names_the_cache_of_each_problem(run_cli: RunCli, root: Path) -> None:
    assert run_cli("verify", "-C", root).returncode == 0
    damaged = next((root / "cpu-old").glob("*-cache"))
    damaged.write_bytes(damaged.read_bytes()[:-9])
    os.utime(damaged, (1, 1))
    done = run_cli("verify", "-C", root, "--json")
    assert done.returncode == 1
    found = json.loads(done.stdout)
    assert (found["checked"], found["ok"]) == (20, 19)
    (problem,) = (row for row in found["problems"] if row["kind"] != "unsealed")
    assert (problem["cache"], problem["file"]) == ("cpu-old", damaged.name)
    assert run_cli("verify", "-C", root, "--fix").returncode == 0
    assert not damaged.exists()
    assert list((root / "cpu-old" / ".jaxcache" / "quarantine").rglob("*-cache"))


def test_looking_at_a_root_writes_nothing_into_it(run_cli: RunCli, root: Path) -> None:
    before = sorted(root.rglob("*"))
    for command in ("ls", "stats", "verify"):
        assert run_cli(command, "-C", root).returncode == 0
    assert sorted(root.rglob("*")) == before


@pytest.mark.parametrize(
    "command",
    [
        ("show", "jit"),
        ("seal",),
        ("export", "out.jxb"),
        ("rm", "jit"),
        ("pin", "jit"),
        ("push", "elsewhere"),
        ("verify", "--restore"),
    ],
    ids=lambda words: words[0],
)
def test_a_command_that_needs_one_cache_names_those_that_are_there(
    run_cli: RunCli, root: Path, command: tuple[str, ...]
) -> None:
    done = run_cli(*command, "-C", root)
    assert (done.returncode, "root-of-caches" in done.stderr) == (2, True)
    assert all(f"-C {root / name}" in done.stderr for name in CACHES)


def test_an_entry_of_its_own_makes_a_directory_a_cache(run_cli: RunCli, root: Path) -> None:
    entry = next((root / "cpu-old").glob("*-cache"))
    shutil.copy(entry, root)
    assert [row["file"] for row in document(run_cli, "ls", "-C", root)["entries"]] == [entry.name]


def test_a_link_to_a_cache_is_not_followed(run_cli: RunCli, root: Path, tmp_path: Path) -> None:
    shutil.move(root / "cpu-old", tmp_path / "outside")
    (root / "cpu-old").symlink_to(tmp_path / "outside")
    names = [row["name"] for row in document(run_cli, "ls", "-C", root)["caches"]]
    assert names == ["machines/cpu-new", "machines/gpu"]
