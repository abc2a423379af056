"""``jaxcache import``: dry runs, refusals, and no room."""

import os
import re
import shutil
from pathlib import Path

import pytest
import zstandard
from bundling import contents, forged
from conftest import CORPUS, REPOSITORY, RunCli
from processes import limited
from ways import names, told

from jaxcache.cache.verify import check as admission
from jaxcache.core import names as core_names

SMALL = "0.4.38-cpu-zstd"


@pytest.fixture
def cache(corpus: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(corpus / SMALL, tmp_path / "cache"))


def test_a_whole_process_prints_nothing_after_its_result(
    spawn_cli: RunCli, bundle: Path, tmp_path: Path
) -> None:
    """Its streams end with Python, when nothing can be imported any more."""
    done = spawn_cli("import", bundle, "-C", tmp_path / "new")
    assert done.stderr.splitlines()[-1].endswith("7 files written")


def test_a_directory_that_is_called_jax_is_no_jax(
    run_cli: RunCli, bundle: Path, tmp_path: Path
) -> None:
    (tmp_path / "here" / "jax").mkdir(parents=True)
    done = run_cli("import", bundle, "-C", tmp_path / "new", cwd=tmp_path / "here")
    assert done.returncode == 0, done.stderr


def test_a_python_without_jax_is_said(run_cli: RunCli, bundle: Path, tmp_path: Path) -> None:
    fake = tmp_path / "python"
    fake.write_text("#!/bin/sh\nexit 13\n")
    fake.chmod(0o755)
    for python in (fake, tmp_path / "none"):
        done = run_cli("import", bundle, "-C", tmp_path / "new", "--python", python)
        assert done.returncode == 13
        assert not (tmp_path / "new").exists()


def test_a_jax_of_ours_that_breaks_costs_the_forecast_alone(
    spawn_cli: RunCli, bundle: Path, tmp_path: Path
) -> None:
    (tmp_path / "broken" / "jax").mkdir(parents=True)
    (tmp_path / "broken" / "jax" / "__init__.py").write_text("raise ImportError('no libtpu here')")
    path = os.pathsep.join((str(tmp_path / "broken"), str(REPOSITORY)))
    words = ("import", bundle, "-C", tmp_path / "new")
    done = spawn_cli(*words, "--dry-run", env={"PYTHONPATH": path})
    assert done.returncode == 0
    assert "cannot forecast the hits" in done.stderr and "no libtpu here" in done.stderr
    assert done.stderr.endswith(", hits not checked: no usable jax was found (--python)\n")
    done = spawn_cli(*words, env={"PYTHONPATH": path})
    assert (done.returncode, "forecast" in done.stderr) == (0, False)  # no jax was started
    assert list((tmp_path / "new").glob("*-cache"))


def test_no_room_for_the_entries(
    run_cli: RunCli, bundle: Path, cache: Path, tmp_path: Path
) -> None:
    for options in ([], ["--atomic"]):
        target = tmp_path / f"new{len(options)}"
        done = limited(tmp_path, 4000, "import", bundle, *options, "-C", target)
        assert (done.returncode, "Traceback" in done.stderr) == (3, False)
        if options:
            assert not names(target)
        else:  # what was written, failed and not tried is all that was to be written
            counts = re.findall(r"(\d+) (?:files? written|failed|not tried)", done.stderr)
            assert sum(map(int, counts)) == len(names(cache))
            assert len(counts) > 1
        assert not list(target.rglob(".jaxcache-tmp-*"))
        assert run_cli("import", bundle, *options, "-C", target).returncode == 0
        assert run_cli("diff", cache, target).returncode == 0


def test_no_room_for_a_bundle_that_nobody_keeps(bundle: Path, tmp_path: Path) -> None:
    target = tmp_path / "new"
    done = limited(tmp_path, bundle.stat().st_size - 1, "import", "-", "-C", target, stdin=bundle)
    assert (done.returncode, "cannot keep the bundle in" in done.stderr) == (1, True)
    assert not target.exists()


#: Every command that brings entries from one place into another directory.
def test_a_bundle_that_holds_damaged_entries_is_imported_without_them(
    run_cli: RunCli, tmp_path: Path
) -> None:
    bundle = tmp_path / "b.jxb"
    bundle.write_bytes(forged(lambda d: None, b"no executable at all"))
    document = told(run_cli, "import", bundle, "-C", tmp_path / "here", code=3)
    assert [e["action"] for e in document["entries"]] == ["damaged"]
    assert document["summary"]["damaged"] == 1
    assert names(tmp_path / "here") == set()
    assert run_cli("import", bundle, "-C", tmp_path / "here", "--atomic").returncode == 1
    assert run_cli("copy", bundle, tmp_path / "other.jxb").returncode == 1


def test_a_sound_entry_replaces_a_damaged_one(run_cli: RunCli, bundle: Path, cache: Path) -> None:
    rotten, empty, good, *_ = sorted(cache.glob("*-cache"))
    rotten.write_bytes(zstandard.compress(bytes(4) + b"no executable at all"))
    empty.write_bytes(b"")
    before = (good.read_bytes(), good.stat().st_ino)
    done = told(run_cli, "import", bundle, "-C", cache)
    healed = {e["file"] for e in done["entries"] if e["action"] == "heal"}
    assert healed == {rotten.name, empty.name}
    assert (good.read_bytes(), good.stat().st_ino) == before
    assert contents(cache) == contents(CORPUS / SMALL)
    assert run_cli("verify", "-C", cache, "--grace", "0s").returncode == 0


def test_a_switch_for_safety_is_neither_hidden_nor_misspelt(
    run_cli: RunCli, cache: Path, tmp_path: Path
) -> None:
    project, inner = tmp_path / "pyproject.toml", tmp_path / "package"
    inner.mkdir()
    project.write_text("[tool.jaxcache]\nrequire-signed = true\n")
    copy = ("copy", cache, tmp_path / "here")
    for text in ("", "[project]\nname = 'x'\n", f"[tool.jaxcache]\ncache-dir = '{cache}'\n"):
        (inner / "pyproject.toml").write_text(text)
        assert run_cli(*copy, cwd=inner).returncode == 12
    for line in ("require_signed = true", "require-sigend = true", 'require-signed = "true"'):
        project.write_text(f"[tool.jaxcache]\n{line}\n")
        done = run_cli(*copy, cwd=inner)
        assert done.returncode == 2, line
        assert "require-signed" in done.stderr
        assert "[bad-config]" in done.stderr
    assert names(tmp_path / "here") == set()


@pytest.mark.parametrize("argument", ["s3:/bucket/x", "http://"])
def test_what_looks_like_a_url_and_is_none_is_refused(
    run_cli: RunCli, cache: Path, bundle: Path, tmp_path: Path, argument: str
) -> None:
    before = sorted(p.name for p in tmp_path.iterdir())
    for command in (
        ("push", argument, "-C", cache),
        ("pull", argument, "-C", cache),
        ("ls", "-C", argument),
        ("copy", cache, argument),
        ("copy", argument, tmp_path / "x"),
        ("export", argument, "-C", cache),
        ("import", argument, "-C", cache),
        ("import", bundle, "-C", argument),
        ("diff", cache, argument),
        ("ci", "save", argument, "-C", cache),
        ("ci", "restore", argument, "-C", cache),
    ):
        done = run_cli(*command)
        assert done.returncode == 2, (command, done.stderr)
        assert argument in done.stderr
        assert "[bad-url]" in done.stderr, (command, done.stderr)
    assert run_cli("ls", env={"JAX_COMPILATION_CACHE_DIR": argument}).returncode == 2
    assert sorted(p.name for p in tmp_path.iterdir()) == before


def test_a_large_payload_that_does_not_compress_comes_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what lies beyond the free size counts, compressed, for how large it may be."""
    for module in (admission, core_names):
        monkeypatch.setattr(module, "FREE_PAYLOAD_BYTES", 1 << 20)
    zeros, noise = memoryview(bytes(1 << 20)), memoryview(os.urandom(1 << 20))
    assert admission.check_payload_pieces("some", [zeros, noise]) is None
    error = admission.check_payload_pieces("some", [zeros, zeros])
    assert error and "compresses to a trifle" in error.detail
