"""``jaxcache copy``: between any two, and into bundles."""

import itertools
import json
import shutil
from pathlib import Path

import pytest
from conftest import RunCli
from ways import names

SMALL = "0.4.38-cpu-zstd"


@pytest.fixture
def cache(corpus: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(corpus / SMALL, tmp_path / "cache"))


def test_copy_between_any_two(run_cli: RunCli, cache: Path, tmp_path: Path) -> None:
    stops = [cache, tmp_path / "a", tmp_path / "b.jxb", tmp_path / "c.jxb", tmp_path / "d"]
    for source, target in itertools.pairwise(stops):
        done = run_cli("copy", source, target)
        assert done.returncode == 0, done.stderr
        assert run_cli("diff", cache, target).returncode == 0
    assert (tmp_path / "b.jxb").read_bytes() == (tmp_path / "c.jxb").read_bytes()
    assert run_cli("copy", tmp_path / "none", tmp_path / "e").returncode == 10
    planned = run_cli("copy", cache, tmp_path / "e", "--dry-run").stdout.splitlines()
    copied = run_cli("copy", cache, tmp_path / "e").stdout.splitlines()
    assert {line.split("\t")[0] for line in planned} == {"write"}
    assert {line.split("\t")[0] for line in copied} == {"written"}
    assert not any("unknown" in line.split("\t") for line in copied)


def test_what_a_copy_into_a_bundle_tells(
    run_cli: RunCli, cache: Path, bundle: Path, tmp_path: Path
) -> None:
    keys = sorted(n.removesuffix("-cache") for n in names(cache))
    for source in (cache, bundle):
        for command in (("copy", source), ("export",)):
            if command == ("export",) and source is bundle:
                continue
            target = tmp_path / "copied.jxb"
            place = ("-C", cache) if command == ("export",) else ()
            document = json.loads(run_cli(*command, target, *place, "--json").stdout)
            assert (document["entries"], document["left_out"]) == (7, [])
            assert document["size_bytes"] == target.stat().st_size
            lines = run_cli(*command, target, *place, "--jsonl").stdout.splitlines()
            assert sorted(json.loads(x)["key"] for x in lines) == keys
            assert sorted(run_cli(*command, target, *place, "-q").stdout.split()) == keys
            told = run_cli(*command, target, *place)
            assert (told.stdout, "7 entries in" in told.stderr) == ("", True)


@pytest.mark.parametrize("option", ["--dry-run", "--atomic", "--on-conflict=fail"])
def test_a_copy_into_a_bundle_takes_no_option_of_directories(
    run_cli: RunCli, cache: Path, bundle: Path, tmp_path: Path, option: str
) -> None:
    for source in (cache, bundle):
        assert run_cli("copy", source, tmp_path / "new.jxb", option).returncode == 2
    assert not (tmp_path / "new.jxb").exists()


def test_a_source_without_entries_is_told(run_cli: RunCli, tmp_path: Path) -> None:
    """Such as the home directory, where its cache was meant."""
    (tmp_path / "home").mkdir()
    for target in ("new", "new.jxb"):
        done = run_cli("copy", tmp_path / "home", tmp_path / target)
        assert f"warning: no entries in {tmp_path / 'home'}" in done.stderr
