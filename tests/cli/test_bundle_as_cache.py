"""``ls``, ``show`` and ``stats`` of a bundle."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from conftest import REPOSITORY, RunCli
from ways import told

SMALL = "0.4.38-cpu-zstd"


@pytest.fixture
def cache(corpus: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(corpus / SMALL, tmp_path / "cache"))


def as_json(run_cli: RunCli, *words: object) -> Any:
    document = told(run_cli, *words)
    del document["cache_dir"]
    return document


def test_a_bundle_is_listed_as_its_cache(run_cli: RunCli, cache: Path, bundle: Path) -> None:
    for words in (
        ("ls", "--sort", "created"),
        ("ls", "--filter", "signature=f32*", "--sort", "platform"),
        ("ls", "--sort", "size", "--limit", "3", "--filter", "size>3kB"),
    ):
        there, here = (as_json(run_cli, *words, "-C", place) for place in (bundle, cache))
        for document in (there, here):
            for entry in document["entries"]:  # reading the cache gives it a date of last use
                del entry["last_used_at"], entry["last_used_from"]
            document["problems"] = []
        assert there == here
    assert len(there["entries"]) == 2
    grouped = as_json(run_cli, "ls", "-C", bundle, "--group-by", "platform")
    assert [g["name"] for g in grouped["groups"]] == ["cpu"]
    counted = [as_json(run_cli, "stats", "-C", place) for place in (bundle, cache)]
    assert counted[0]["total"] == counted[1]["total"]
    assert counted[0]["by_platform"][0]["entries"] == 7


def test_show_looks_into_a_bundle(run_cli: RunCli, cache: Path, bundle: Path) -> None:
    here = as_json(run_cli, "show", "jit_mlp", "-C", cache)
    for words in ((bundle, "jit_mlp"), ("jit_mlp", "-C", bundle)):
        there = as_json(run_cli, "show", *words)
        assert there["program"] == here["program"]
        assert there["memory"] == here["memory"]
        assert there["entry"]["signature"] == here["entry"]["signature"]
    whole = run_cli("show", bundle)
    assert (whole.returncode, len(whole.stdout.splitlines())) == (0, 7)
    refused = run_cli("show", bundle, "no_such_entry")
    assert (refused.returncode, "[no-match]" in refused.stderr) == (1, True)
    refused = run_cli("show", cache, "jit_mlp")
    assert (refused.returncode, "neither a bundle nor a recipe" in refused.stderr) == (2, True)
    assert sorted(p.name for p in bundle.parent.iterdir() if p.suffix == ".jxb") == ["cache.jxb"]


def test_a_damaged_bundle_is_listed_with_a_finding(run_cli: RunCli, bundle: Path) -> None:
    data = bytearray(bundle.read_bytes())
    data[-200:] = bytes(200)
    bundle.write_bytes(data)
    found = told(run_cli, "ls", "-C", bundle)
    assert len(found["entries"]) == 7
    assert [p["kind"] for p in found["problems"]] == ["bad-payload"]
    refused = run_cli("show", bundle, "*")
    assert refused.returncode == 1
    assert "[bad-bundle]" in refused.stderr


def test_a_bundle_of_torch_is_not_listed(run_cli: RunCli) -> None:
    bundle = REPOSITORY / "tests" / "data" / "golden" / "inputs" / "torch.jxb"
    refused = run_cli("ls", "-C", bundle)
    assert refused.returncode == 2
    assert "holds a cache of torch" in refused.stderr


def test_doctor_does_not_take_a_bundle_for_a_cache_directory(run_cli: RunCli, bundle: Path) -> None:
    done = run_cli("doctor", "-C", bundle)
    assert (done.returncode, "[not-a-directory]" in done.stderr) == (2, True), done.stderr
    assert "jaxcache show" in done.stderr
    assert done.stdout == ""
