"""``jaxcache import``: dry runs, refusals, and no room."""

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard
from bundling import forged, padded, payload_of
from conftest import CORPUS, REPOSITORY, RunCli
from processes import limited
from ways import names

from jaxcache.cache.verify import check as admission
from jaxcache.core import names as core_names

SMALL = "0.4.38-cpu-zstd"


@pytest.fixture
def cache(corpus: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(corpus / SMALL, tmp_path / "cache"))


def test_a_dry_run_changes_nothing(run_cli: RunCli, bundle: Path, tmp_path: Path) -> None:
    done = run_cli("import", bundle, "-C", tmp_path / "new", "--dry-run")
    assert done.returncode == 0
    assert not (tmp_path / "new").exists()
    assert len(done.stdout.splitlines()) == 7
    assert all(line.startswith("write\t") for line in done.stdout.splitlines())
    assert len(run_cli("import", bundle, "-C", tmp_path / "n", "-n", "-q").stdout.split()) == 7
    rows = run_cli("import", bundle, "-C", tmp_path / "n", "-n", "--jsonl").stdout.splitlines()
    assert {json.loads(r)["action"] for r in rows} == {"write"}


def test_a_whole_process_prints_nothing_after_its_result(
    spawn_cli: RunCli, bundle: Path, tmp_path: Path
) -> None:
    """Its streams end with Python, when nothing can be imported any more."""
    done = spawn_cli("import", bundle, "-C", tmp_path / "new")
    assert done.stderr.splitlines()[-1].endswith("7 files written")


def test_an_unknown_rule_is_refused_before_any_work(
    run_cli: RunCli, bundle: Path, tmp_path: Path
) -> None:
    bundle.write_bytes(b"")  # and not looked at
    done = run_cli("import", bundle, "--on-conflict", "sometimes", "-C", tmp_path / "new")
    assert (done.returncode, "keep or replace or fail" in done.stderr) == (2, True)


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


def test_no_room_for_a_bundle_that_nobody_keeps(
    run_cli: RunCli, bundle: Path, cache: Path, tmp_path: Path
) -> None:
    target = tmp_path / "new"
    done = limited(tmp_path, bundle.stat().st_size - 1, "import", "-", "-C", target, stdin=bundle)
    assert (done.returncode, "cannot keep the bundle in" in done.stderr) == (1, True)
    assert not target.exists()


# The policy of what enters a cache: every way in refuses the same, with the same message.


SOURCE = CORPUS / "0.4.38-cpu-zstd"
#: Every command that brings entries from one place into another directory.
WAYS: dict[str, Callable[[Path, Path], tuple[object, ...]]] = {
    "copy": lambda there, here: ("copy", there, here),
    "pull": lambda there, here: ("pull", there, "-C", here),
    "push": lambda there, here: ("push", here, "-C", there),
    "restore": lambda there, here: ("ci", "restore", there, "-C", here, "--everything"),
}


@pytest.fixture
def there(tmp_path: Path) -> Path:
    path = tmp_path / "there"
    shutil.copytree(SOURCE, path, copy_function=shutil.copyfile)
    for file in path.iterdir():
        os.utime(file, ns=(10**18, 10**18))
    return path


def rot(entry: Path, payload: bytes = b"no executable at all") -> str:
    """Make an entry whose outer layer is sound and whose payload is not."""
    entry.write_bytes(zstandard.compress(bytes(4) + payload))
    os.utime(entry, ns=(10**18, 10**18))
    return entry.name


@pytest.mark.parametrize("way", WAYS)
def test_what_nobody_signed_stays_out_where_signatures_are_required(
    run_cli: RunCli, there: Path, tmp_path: Path, way: str
) -> None:
    config = tmp_path / ".config" / "jaxcache" / "config.toml"
    config.parent.mkdir(parents=True)
    config.write_text("require-signed = true\n")
    done = run_cli(*WAYS[way](there, tmp_path / "here"))
    assert done.returncode == 12, done.stderr
    assert "signed" in done.stderr
    assert names(tmp_path / "here") == set()


@pytest.mark.parametrize("way", WAYS)
def test_what_a_trusted_key_signed_comes_in(
    run_cli: RunCli, there: Path, tmp_path: Path, way: str
) -> None:
    pytest.importorskip("cryptography")
    made = run_cli("trust", "keygen", "me").stdout.split("\t")[1].strip()
    assert run_cli("trust", "add", "me", made).returncode == 0
    signed = tmp_path / "signed"
    assert run_cli("push", signed, "-C", there, "--sign", "me").returncode == 0
    shutil.copy(min((CORPUS / "0.6.2-cpu-zstd").glob("*-cache")), signed)  # by somebody else
    os.utime(min(signed.glob("*-cache")))
    (tmp_path / "pyproject.toml").write_text("[tool.jaxcache]\nrequire-signed = true\n")
    done = run_cli(*WAYS[way](signed, tmp_path / "here"))
    assert done.returncode == (0 if way == "restore" else 12), done.stderr
    assert names(tmp_path / "here") == names(there)


@pytest.mark.parametrize("way", [*WAYS, "export", "save"])
def test_what_verify_calls_damaged_goes_nowhere(
    run_cli: RunCli, there: Path, tmp_path: Path, way: str
) -> None:
    bad = rot(min(there.glob("*-cache")))
    others = names(there) - {bad}
    here, bundle = tmp_path / "here", tmp_path / "b.jxb"
    command = {
        "export": ("export", bundle, "-C", there),
        "save": ("ci", "save", here, "-C", there),
    }.get(way) or WAYS[way](there, here)
    done = run_cli(*command)
    assert done.returncode == (0 if way == "restore" else 3), done.stderr
    if way != "restore":
        assert bad in done.stderr
    if way == "export":
        assert run_cli("import", bundle, "-C", here).returncode == 0
    assert names(here) == others


def test_a_bundle_that_holds_damaged_entries_is_imported_without_them(
    run_cli: RunCli, there: Path, tmp_path: Path
) -> None:
    bundle = tmp_path / "b.jxb"
    bundle.write_bytes(forged(lambda d: None, b"no executable at all"))
    done = run_cli("import", bundle, "-C", tmp_path / "here", "--json")
    assert done.returncode == 3
    document = json.loads(done.stdout)
    assert [e["action"] for e in document["entries"]] == ["damaged"]
    assert document["summary"]["damaged"] == 1
    assert names(tmp_path / "here") == set()
    assert run_cli("import", bundle, "-C", tmp_path / "here", "--atomic").returncode == 1
    assert run_cli("copy", bundle, tmp_path / "other.jxb").returncode == 1


def test_a_sound_entry_replaces_a_damaged_one(run_cli: RunCli, there: Path, tmp_path: Path) -> None:
    bundle, here = tmp_path / "b.jxb", tmp_path / "here"
    assert run_cli("export", bundle, "-C", there).returncode == 0
    shutil.copytree(there, here)
    bad = rot(min(here.glob("*-cache")))
    done = run_cli("import", bundle, "-C", here, "--json")
    assert done.returncode == 0, done.stderr
    actions = {e["file"]: e["action"] for e in json.loads(done.stdout)["entries"]}
    assert actions[bad] == "heal"
    assert run_cli("verify", "-C", here, "--grace", "0s").returncode == 0


@pytest.mark.parametrize("way", ["copy", "pull", "push"])
def test_names_that_no_cache_takes_in_stay_out(
    run_cli: RunCli, there: Path, tmp_path: Path, way: str
) -> None:
    (entry,) = there.glob("jit_loss-*-cache")
    odd = entry.name.replace("jit_loss", "jit_loſs")  # "ſ" is "s" in another case
    for name in (odd, entry.name.replace("jit_", "jit\x1b_")):
        shutil.copy(entry, there / name)
        os.utime(there / name, ns=(10**18, 10**18))
    done = run_cli(*WAYS[way](there, tmp_path / "here"))
    assert done.returncode == 3, done.stderr
    assert "in case only" in done.stderr
    assert "do not print" in done.stderr
    assert names(tmp_path / "here") == names(SOURCE)


def test_what_inflates_without_measure_stays_out(
    run_cli: RunCli, there: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (admission, core_names):
        monkeypatch.setattr(module, "FREE_PAYLOAD_BYTES", 1 << 20)
    (entry,) = there.glob("jit_loss-*-cache")
    entry.write_bytes(zstandard.compress(bytes(4) + padded(payload_of(entry), 40 << 20)))
    os.utime(entry, ns=(10**18, 10**18))
    assert entry.stat().st_size < 1 << 16
    bundle = tmp_path / "b.jxb"
    assert run_cli("export", bundle, "-C", there).returncode == 0
    ways = {
        **{w: WAYS[w] for w in ("pull", "restore")},
        "import": lambda b, h: ("import", b, "-C", h),
    }
    for way, command in ways.items():
        here = tmp_path / way
        args = command(bundle if way == "import" else there, here)
        done = run_cli(*args)
        assert done.returncode == (0 if way == "restore" else 3), done.stderr
        assert names(here) == names(there) - {entry.name}
        if way != "restore":
            assert "--allow-large" in done.stderr
        assert run_cli(*args, "--allow-large").returncode == 0
        assert names(here) == names(there)


def test_a_switch_for_safety_is_neither_hidden_nor_misspelt(
    run_cli: RunCli, there: Path, tmp_path: Path
) -> None:
    project, inner = tmp_path / "pyproject.toml", tmp_path / "package"
    inner.mkdir()
    project.write_text("[tool.jaxcache]\nrequire-signed = true\n")
    copy = ("copy", there, tmp_path / "here")
    for text in ("", "[project]\nname = 'x'\n", f"[tool.jaxcache]\ncache-dir = '{there}'\n"):
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
    run_cli: RunCli, there: Path, tmp_path: Path, argument: str
) -> None:
    bundle = tmp_path / "b.jxb"
    assert run_cli("export", bundle, "-C", there).returncode == 0
    before = sorted(p.name for p in tmp_path.iterdir())
    for command in (
        ("push", argument, "-C", there),
        ("pull", argument, "-C", there),
        ("ls", "-C", argument),
        ("copy", there, argument),
        ("copy", argument, tmp_path / "x"),
        ("export", argument, "-C", there),
        ("import", argument, "-C", there),
        ("import", bundle, "-C", argument),
        ("diff", there, argument),
        ("ci", "save", argument, "-C", there),
        ("ci", "restore", argument, "-C", there),
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
