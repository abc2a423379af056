"""The previous and the present jaxcache over one cache, turn by turn.

The previous one is a wheel that is built, without a network, from the newest release before this
commit; without a release, from the last commit that had another version. ``JAXCACHE_TEST_PREVIOUS``
names another commit or tag. The tests are skipped where this Python lacks what the old wheel needs.
"""

import json
import os
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, PathDistribution, version
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from bundling import opened
from conftest import REPOSITORY, MakeOnce, RunCli
from packaging.requirements import Requirement
from processes import sh
from schemas import check_document

Run = Callable[..., Any]


def git(*args: str) -> bytes | None:
    try:
        done = subprocess.run(["git", *args], cwd=REPOSITORY, capture_output=True, check=False)
    except OSError:
        return None
    return done.stdout if done.returncode == 0 else None


def previous_commit() -> str | None:
    """Return the newest tag before this commit, else the last commit with another version."""
    if tag := git("describe", "--tags", "--abbrev=0", "--match", "v*", "HEAD^"):
        return tag.decode().strip()
    changed = git("log", "-1", "--format=%H", "-G^__version__", "--", "jaxcache/__init__.py") or b""
    parent = f"{changed.decode().strip()}^"
    return parent if git("cat-file", "-e", parent) is not None else None


@pytest.fixture
def before(make_once: MakeOnce) -> Path:
    """A directory with the previous package, as its wheel installs it."""
    return make_once("previous", build_previous) / "installed"


def build_previous(directory: Path) -> None:
    """Build the wheel of the previous commit, and unpack it as ``installed``."""
    commit = os.environ.get("JAXCACHE_TEST_PREVIOUS") or previous_commit()
    source = git("archive", commit) if commit else None
    if source is None:
        pytest.skip("this clone holds no commit of another version (shallow, or no git)")
    if find_spec("hatchling") is None or find_spec("build") is None:
        pytest.skip("hatchling and build are not installed: the group dev")
    with tarfile.open(fileobj=BytesIO(source)) as archive:
        archive.extractall(directory / "source", filter="data")
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", directory]
    done = sh([*build, directory / "source"])
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = directory.glob("*.whl")
    with zipfile.ZipFile(wheel) as opened:
        opened.extractall(directory / "unpacked")
    (metadata,) = (directory / "unpacked").glob("*.dist-info")
    declared = PathDistribution(metadata).requires or []
    if refused := [text for text in declared if not is_met(Requirement(text))]:
        pytest.skip(f"the version before needs {', '.join(refused)}")
    (directory / "unpacked").rename(directory / "installed")


def is_met(requirement: Requirement) -> bool:
    """Whether this Python has what a requirement without an extra names."""
    if requirement.marker and not requirement.marker.evaluate({"extra": ""}):
        return True
    try:
        return requirement.specifier.contains(version(requirement.name), prereleases=True)
    except PackageNotFoundError:
        return False


@pytest.fixture
def old(before: Path, run_cli: RunCli) -> Run:
    """The previous jaxcache."""
    return lambda *args, code=0: told(run_cli(*args, env={"PYTHONPATH": str(before)}), code)


@pytest.fixture
def new(run_cli: RunCli) -> Run:
    """The present one."""
    return lambda *args, code=0: told(run_cli(*args), code)


def told(done: "subprocess.CompletedProcess[str]", code: int) -> Any:
    assert done.returncode == code, done.stderr
    return json.loads(done.stdout) if done.stdout.startswith("{") else done.stdout


@pytest.fixture
def cache(capped_cache: Path) -> Path:
    return capped_cache


def test_it_is_another_one(before: Path, tmp_path: Path) -> None:
    script = "import jaxcache; print(jaxcache.__file__)"
    env = {**os.environ, "PYTHONPATH": str(before)}
    done = sh([sys.executable, "-c", script], env=env, cwd=tmp_path, check=True)
    assert done.stdout.startswith(str(before))


def test_both_see_the_same_entries_whoever_changed_them(old: Run, new: Run, cache: Path) -> None:
    for first, second in ((old, new), (new, old)):
        for args in (("seal", "--recompress", "3"), ("pin", "jit_mlp")):
            first(*args, "-C", cache)
            seen = [
                run("ls", "-C", cache, "--json", "--long")["entries"] for run in (first, second)
            ]
            fields = seen[0][0].keys() & seen[1][0].keys()
            assert len(fields) > 10
            mine, theirs = ([{f: e[f] for f in fields} for e in side] for side in seen)
            assert mine == theirs
        assert second("verify", "-C", cache, "--json")["problems"] == []


def test_a_pin_of_one_holds_against_the_other(old: Run, new: Run, cache: Path) -> None:
    old("pin", "jit_mlp", "-C", cache)
    new("pin", "jit_loss", "-C", cache)
    for run in (old, new):
        planned = run("prune", "-C", cache, "--older-than", "1d", "--dry-run", "--json")
        assert (planned["kept"], len(planned["removed"])) == (2, 5)
    new("pin", "--remove", "jit_mlp", "-C", cache)
    assert old("prune", "-C", cache, "--older-than", "1d", "-n", "--json")["kept"] == 1


def test_what_one_puts_away_the_other_brings_back(old: Run, new: Run, cache: Path) -> None:
    entry = next(cache.glob("jit_mlp-*-cache"))
    sound = entry.read_bytes()
    for first, second in ((old, new), (new, old)):
        os.truncate(entry, len(sound) // 2)
        os.utime(entry, (1.7e9, 1.7e9))
        first("verify", "-C", cache, "--fix")
        assert not entry.exists()
        (kept,) = cache.rglob(entry.name)
        kept.write_bytes(sound)
        second("verify", "-C", cache, "--restore")
        assert entry.read_bytes() == sound


def test_bundles_go_both_ways(old: Run, new: Run, cache: Path, tmp_path: Path) -> None:
    for name, first, second in (("a", old, new), ("b", new, old)):
        first("export", tmp_path / f"{name}.jxb", "-C", cache)
        second("import", tmp_path / f"{name}.jxb", "-C", tmp_path / name)
        second("diff", tmp_path / name, cache)
    one, other = (opened((tmp_path / f"{n}.jxb").read_bytes()).manifest for n in "ab")
    assert one.items == other.items  # of origins, a version may record more
    assert one.stream_sha256 == other.stream_sha256


def test_documents_of_this_version_fit_the_schemas_before(
    before: Path, new: Run, cache: Path
) -> None:
    """A program that was written for the version before reads what this one prints."""
    published = before.parent / "source" / "docs" / "schemas"
    if not published.is_dir():
        pytest.skip("the version before published no schemas")
    for words in (("ls",), ("show", "jit_mlp*"), ("stats",), ("verify",), ("seal", "-n")):
        check_document(words[0], new(*words, "-C", cache, "--json"), published, strict=False)


def test_an_unknown_event_of_the_ledger_is_kept_by_the_previous_one(
    old: Run, new: Run, cache: Path
) -> None:
    """Records that are added later must survive an older jaxcache that changes the cache."""
    new("pin", "jit_mlp", "-C", cache)
    ledger = cache / ".jaxcache" / "ledger"
    (segment,) = ledger.iterdir()
    pin = json.loads(segment.read_text().splitlines()[-1])
    name = "00000000001700000000-0123456789abcdef.jsonl"
    (ledger / name).write_text(json.dumps({**pin, "kind": "weighed", "grams": 3}) + "\n")
    old("seal", "-C", cache)
    old("pin", "jit_loss", "-C", cache)
    texts = [path.read_text() for path in ledger.iterdir()]
    assert any('"weighed"' in text and "grams" in text for text in texts)
    assert set(new("pin", "-C", cache).split()) == set(old("pin", "-C", cache).split())
