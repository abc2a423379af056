"""Commands on a directory above several caches."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from conftest import RunCli
from terminal import run_all

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
    for command in ("ls", "stats", "verify", "doctor"):
        assert run_cli(command, "-C", root).returncode in (0, 1)
    assert run_cli("prune", "-C", root, "--max-size", "1", "--dry-run").returncode == 0
    assert sorted(root.rglob("*")) == before


def test_one_limit_holds_for_the_sum_of_all_caches(
    run_cli: RunCli, root: Path, tmp_path: Path
) -> None:
    before = document(run_cli, "stats", "-C", root)["size_bytes"]
    limit = before // 2
    prune = ("prune", "-C", root, "--max-size", str(limit), "--grace", "0s")
    planned = document(run_cli, *prune, "--dry-run")
    ((_, screen),) = run_all([(*prune, "--dry-run")], home=tmp_path, width=150)
    assert all(row["key"].partition("-")[0] in screen for row in planned["removed"])
    done = document(run_cli, *prune, "--yes")
    assert planned["removed"] == done["removed"]
    assert len({Path(row["file"]).parent for row in done["removed"]}) > 1
    assert done["size_bytes_after"] <= limit
    after = document(run_cli, "stats", "-C", root)
    assert (after["size_bytes"], after["total"]["entries"]) == (
        done["size_bytes_after"],
        done["kept"],
    )


def test_the_same_key_in_two_caches_is_removed_where_the_plan_says(
    run_cli: RunCli, root: Path
) -> None:
    shutil.copytree(root / "cpu-old", root / "copy")
    for file in (root / "copy").iterdir():
        os.utime(file, (1, 1))
    removed = document(run_cli, "prune", "-C", root, "--older-than", "30d", "--yes")["removed"]
    assert {Path(row["file"]).parent for row in removed} == {Path("copy")}
    assert len(list((root / "cpu-old").glob("*-cache"))) == 7


def test_a_cache_that_nobody_uses_any_more_is_removed_whole(run_cli: RunCli, root: Path) -> None:
    for file in (root / "cpu-old").iterdir():
        os.utime(file, (1, 1))
    (root / "cpu-old" / ".lockfile").touch()
    doctor = ("doctor", "-C", root, "--python", "/nonexistent")
    finding = document(run_cli, *doctor)["findings"][0]
    assert (finding["cache"], finding["trap"]) == (None, "unused-caches")
    assert "cpu-old" in finding["seen"]
    command = finding["fix"].split()
    assert command[:4] == ["jaxcache", "prune", "--unused-for", "30d"]
    done = document(run_cli, *command[1:6], "--yes")
    assert done["removed_caches"] == ["cpu-old"]
    assert not (root / "cpu-old").exists()
    assert "unused-caches" not in json.dumps(document(run_cli, *doctor))


def test_a_directory_with_a_file_of_the_user_stays(run_cli: RunCli, root: Path) -> None:
    for file in (root / "cpu-old").iterdir():
        os.utime(file, (1, 1))
    (root / "cpu-old" / "README").write_text("mine")
    prune = ("prune", "-C", root, "--unused-for", "30d", "--yes")
    assert document(run_cli, *prune)["removed_caches"] == []
    assert (root / "cpu-old" / "README").read_text() == "mine"


def test_doctor_examines_each_cache_and_the_root(run_cli: RunCli, root: Path) -> None:
    damaged = next((root / "machines" / "gpu").glob("*-cache"))
    damaged.write_bytes(b"")
    os.utime(damaged, (1, 1))
    environment = {"JAX_COMPILATION_CACHE_DIR": str(root)}
    done = run_cli("doctor", "-C", root, "--json", "--python", "/nonexistent", env=environment)
    assert done.returncode == 1
    found = json.loads(done.stdout)
    traps = {(finding["cache"], finding["trap"]) for finding in found["findings"]}
    assert {("machines/gpu", "damaged-entries"), (None, "root-as-cache")} <= traps
    assert [row["name"] for row in found["caches"]] == sorted(CACHES)


@pytest.mark.parametrize(
    "command",
    [
        ("show", "jit"),
        ("seal",),
        ("export", "out.jxb"),
        ("report", "out.html"),
        ("warm", "train.py"),
        ("run", "true"),
        ("compile", "train.recipe"),
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
    done = run_cli(command[0], "-C", root, *command[1:])
    assert (done.returncode, "root-of-caches" in done.stderr) == (2, True)
    assert all(f"-C {root / name}" in done.stderr for name in CACHES)


def test_import_into_a_root_is_refused(run_cli: RunCli, root: Path, tmp_path: Path) -> None:
    bundle = tmp_path / "cpu.jxb"
    assert run_cli("export", bundle, "-C", root / "cpu-old").returncode == 0
    done = run_cli("import", bundle, "-C", root)
    assert (done.returncode, "root-of-caches" in done.stderr) == (2, True)
    assert not list(root.glob("*-cache"))


def test_an_entry_of_its_own_makes_a_directory_a_cache(run_cli: RunCli, root: Path) -> None:
    entry = next((root / "cpu-old").glob("*-cache"))
    shutil.copy(entry, root)
    assert [row["file"] for row in document(run_cli, "ls", "-C", root)["entries"]] == [entry.name]


def test_a_link_to_a_cache_is_not_followed(run_cli: RunCli, root: Path, tmp_path: Path) -> None:
    shutil.move(root / "cpu-old", tmp_path / "outside")
    (root / "cpu-old").symlink_to(tmp_path / "outside")
    names = [row["name"] for row in document(run_cli, "ls", "-C", root)["caches"]]
    assert names == ["machines/cpu-new", "machines/gpu"]
