"""``jaxcache diff``."""

import json
import shutil
from pathlib import Path

import pytest
from conftest import RunCli

SMALL = "0.4.38-cpu-zstd"


SECOND = "0.8.3-cpu-zstd"


@pytest.fixture
def cache(corpus: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(corpus / SMALL, tmp_path / "cache"))


def names(cache: Path) -> set[str]:
    return {p.name for p in cache.glob("*-cache")}


def test_diff_says_what_is_at_stake(
    run_cli: RunCli, corpus: Path, cache: Path, tmp_path: Path
) -> None:
    other = corpus / SECOND
    done = run_cli("diff", cache, other, "--json")
    assert done.returncode == 1
    document = json.loads(done.stdout)
    assert (document["same"], document["equal"]) == (0, False)
    assert len(document["only_left"]) == len(names(cache))
    assert len(document["only_right"]) == len(names(other))
    assert document["left"]["only_size_bytes"] == sum(
        p.stat().st_size for p in cache.glob("*-cache")
    )
    rows = run_cli("diff", cache, other).stdout.splitlines()
    assert {r[0] for r in rows} == {"<", ">"}
    assert len(run_cli("diff", cache, other, "-q").stdout.split()) == 14
    assert len(run_cli("diff", cache, other, "--jsonl").stdout.splitlines()) == 14
    (tmp_path / "twin").mkdir()
    for path in cache.glob("*-cache"):
        shutil.copy2(path, tmp_path / "twin")
    first, second = sorted((tmp_path / "twin").glob("*-cache"))[:2]
    shutil.copyfile(second, first)
    second.write_bytes(b"")
    rows = run_cli("diff", cache, tmp_path / "twin").stdout.splitlines()
    assert sorted(r.split("\t")[0] for r in rows) == ["!", "<", "x>"]
