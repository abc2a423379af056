"""No command follows a link below a cache's ``.jaxcache``: nothing is changed behind one."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from conftest import GiveAway, RunCli


def state(directory: Path) -> dict[str, Any]:
    return {
        str(p.relative_to(directory)): (
            p.lstat().st_mtime_ns,
            p.read_bytes() if p.is_file() else None,
        )
        for p in sorted(directory.rglob("*"))
    } | {"": directory.stat().st_mtime_ns}


@pytest.mark.parametrize(
    "link", [".jaxcache", ".jaxcache/ledger", ".jaxcache/quarantine", ".jaxcache/incoming"]
)
def test_nothing_behind_a_link_is_touched(
    run_cli: RunCli, tmp_path: Path, corpus: Path, give_away: GiveAway, link: str
) -> None:
    victim, cache = tmp_path / "victim", tmp_path / "cache"
    (victim / "ledger").mkdir(parents=True)
    for name in ("thesis.tex", "ledger/notes.jsonl", ".jaxcache-tmp-1-aa"):
        (victim / name).write_text("precious\n")
    shutil.copytree(corpus / "0.12.0.1-cpu-zstd-maxsize", cache)
    shutil.rmtree(cache / ".jaxcache", ignore_errors=True)
    (cache / link).parent.mkdir(exist_ok=True)
    (cache / link).symlink_to(victim)
    first, second = sorted(cache.glob("*-cache"))[:2]
    first.write_bytes(b"damaged")
    give_away(cache / ".jaxcache")
    before = state(victim)
    for words in (
        ("verify", "--fix", "--grace", "0s"),
        ("pin", second.name.removesuffix("-cache")),
        ("prune", "--max-entries", "2", "--orphans", "-y"),
        ("import", str(tmp_path / "bundle.jxb")),
    ):
        if words[0] == "import":
            run_cli("export", words[1], "-C", corpus / "0.12.0.1-cpu-zstd")
        run_cli(*words, "-C", cache)
    assert state(victim) == before
