"""``ci restore``: what comes, what does not, and what a job is told of it."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import RunCli
from ways import names

Restore = Callable[..., Any]


@pytest.fixture
def cache(corpus: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(corpus / "0.10.2-cpu-zstd", tmp_path / "cache"))


@pytest.fixture
def restore(run_cli: RunCli, tmp_path: Path) -> Restore:
    """Run ``ci restore`` in a job's directory and return its document."""

    def run(place: Path, *options: str | Path) -> Any:
        words = ("-C", tmp_path / "job", "--json", "--everything")
        done = run_cli("ci", "restore", place, *words, *options)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run


def test_a_missing_or_damaged_source_is_a_miss(
    run_cli: RunCli, restore: Restore, bundle: Path, tmp_path: Path
) -> None:
    damaged, empty = tmp_path / "damaged.jxb", tmp_path / "empty.jxb"
    data = bytearray(bundle.read_bytes())
    data[-20] ^= 1
    damaged.write_bytes(data)
    empty.write_bytes(b"")
    for source in (tmp_path / "none.jxb", damaged, empty, tmp_path / "no" / "directory"):
        told = restore(source)
        assert (told["cache_hit"], told["entries"], bool(told["trouble"])) == (False, 0, True)
        assert names(tmp_path / "job") == set()
        failed = run_cli("ci", "restore", source, "-C", tmp_path / "job", "--fail-on-cache-miss")
        assert (failed.returncode, "[cache-miss]" in failed.stderr) == (1, True)
        assert "cache-hit\tfalse" in failed.stdout
        (said,) = (s for s in failed.stderr.splitlines() if s.startswith("nothing restored"))
        assert said.count(str(source)) == 1
        missing = not source.exists()
        assert ("jaxcache ci key --json shows what" in failed.stderr) == missing


def test_what_was_restored_before_is_told(run_cli: RunCli, bundle: Path, tmp_path: Path) -> None:
    words = ("ci", "restore", bundle, "-C", tmp_path / "job", "--everything")
    assert "already present" not in run_cli(*words).stderr
    assert "7 of 7 entries restored" in (again := run_cli(*words).stderr)
    assert "under 1 s of compiling per entry (7 were already present)" in again


def test_a_bundle_that_is_there_may_have_any_name(
    restore: Restore, bundle: Path, tmp_path: Path
) -> None:
    assert restore(bundle.rename(tmp_path / "saved"))["written"] == 7


def test_lookup_only(restore: Restore, bundle: Path, tmp_path: Path) -> None:
    told = restore(bundle, "--lookup-only", "--fail-on-cache-miss")
    assert (told["cache_hit"], told["written"], told["lookup_only"]) == (True, 0, True)
    assert not (tmp_path / "job").exists()


def test_damaged_entries_of_a_directory_stay_there(
    restore: Restore, cache: Path, tmp_path: Path
) -> None:
    victim = min(cache.glob("*-cache"))
    victim.write_bytes(victim.read_bytes()[:-8])
    told = restore(cache)
    assert (told["entries"], told["left_out"]) == (6, 1)
    assert victim.name not in names(tmp_path / "job")


def test_a_cache_that_cannot_be_written_is_said(
    run_cli: RunCli, corpus: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    source = corpus / "0.12.0.1-cpu-zstd"
    # Once as the user who can read every module that it imports.
    assert run_cli("ci", "restore", source, "-C", tmp_path / "new", "--everything").returncode == 0
    directory = request.getfixturevalue("unprivileged")
    cache = shutil.copytree(source, directory / "cache", copy_function=shutil.copyfile)
    shutil.copytree(cache, directory / "source")
    cache.chmod(0o555)
    line = ("ci", "restore", directory / "source", "-C", cache, "--everything")
    done = run_cli(*line, cwd=directory)
    assert done.returncode == 10, done.stderr
    assert f"{cache} cannot be written [read-only]" in done.stderr
    assert run_cli(*line, "--lookup-only", cwd=directory).returncode == 0


def test_signed_bundles_and_nothing_else(
    run_cli: RunCli, restore: Restore, cache: Path, corpus: Path, tmp_path: Path
) -> None:
    pytest.importorskip("cryptography")
    public = run_cli("trust", "keygen", "ci").stdout.strip().partition("\t")[2]
    config = tmp_path / ".config" / "jaxcache" / "config.toml"
    config.write_text("require-signed = true\n")
    signed, unsigned = tmp_path / "signed.jxb", tmp_path / "unsigned.jxb"
    assert run_cli("ci", "save", signed, "-C", cache, "--sign", "ci").returncode == 0
    assert run_cli("ci", "save", unsigned, "-C", cache).returncode == 0
    assert run_cli("ci", "save", tmp_path / "dir", "-C", cache, "--sign", "ci").returncode == 0
    for source in (signed, unsigned, tmp_path / "dir", cache):
        refused = run_cli("ci", "restore", source, "-C", tmp_path / "job", "--everything")
        assert refused.returncode == 12
        assert not (tmp_path / "job").exists()
    assert run_cli("trust", "add", "builders", public).returncode == 0
    assert restore(signed)["entries"] == 7
    assert run_cli("ci", "restore", unsigned, "-C", tmp_path / "job").returncode == 12
    shutil.rmtree(tmp_path / "job")
    (stranger,) = (corpus / "0.8.3-cpu-zstd").glob("jit_mlp-*-cache")
    shutil.copyfile(stranger, tmp_path / "dir" / stranger.name)
    told = restore(tmp_path / "dir")
    assert (told["written"], told["untrusted"]) == (7, 1)
    assert stranger.name not in names(tmp_path / "job")
