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


def test_entries_that_are_links_are_named(run_cli: RunCli, tmp_path: Path, corpus: Path) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    for path in (corpus / "0.12.0.1-cpu-zstd").glob("*-cache"):
        (cache / path.name).symlink_to(path)
    assert len(run_cli("ls", "-q", "-C", cache).stdout.splitlines()) == 7
    checked = run_cli("verify", "-C", cache)
    assert checked.returncode == 1 and checked.stdout.count("is a symbolic link") == 7
    for words in (("export", "out.jxb", "-C", cache), ("copy", cache, "out")):
        done = run_cli(*words)
        assert done.returncode == 3, done
        assert done.stderr.count("is a symbolic link, which is not followed") == 7


def test_attributes_of_macos_are_no_entries(run_cli: RunCli, tmp_path: Path, corpus: Path) -> None:
    cache = tmp_path / "cache"
    shutil.copytree(corpus / "0.12.0.1-cpu-zstd", cache)
    for path in [*cache.glob("*-cache")]:
        (cache / f"._{path.name}").write_bytes(b"\0\5\x16\7")
    assert len(run_cli("ls", "-q", "-C", cache).stdout.splitlines()) == 7
    assert run_cli("export", "out.jxb", "-C", cache).returncode == 0
    planned = run_cli("prune", "--max-entries", "6", "--grace", "0s", "-y", "-C", cache)
    assert planned.returncode == 0
    assert len(run_cli("ls", "-q", "-C", cache).stdout.splitlines()) == 6
