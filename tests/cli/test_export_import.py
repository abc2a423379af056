"""``export`` and ``import``, and the commands that look into a bundle."""

import os
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import zstandard
from bundling import forged
from conftest import REPOSITORY, RunCli, clean_environment
from processes import limited, sh
from ways import names, told

from jaxcache.cache.ledger.record import Event
from jaxcache.cache.ledger.write import append
from jaxcache.cache.verify import check as admission
from jaxcache.core import names as core_names
from jaxcache.store.local import LocalStore

SMALL = "0.4.38-cpu-zstd"
SECOND = "0.8.3-cpu-zstd"
OF_TORCH = REPOSITORY / "tests" / "data" / "golden" / "inputs" / "torch.jxb"


@pytest.fixture
def cache(corpus: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(corpus / SMALL, tmp_path / "cache"))


def test_there_and_back(run_cli: RunCli, cache: Path, bundle: Path, tmp_path: Path) -> None:
    new, left = tmp_path / "new" / "deep", tmp_path / ".jaxcache-tmp-1-left"
    left.write_bytes(b"half")
    exported = told(run_cli, "export", tmp_path / "again.jxb", "-C", cache)
    assert not left.exists(), "of a writer that was killed"
    assert exported["size_bytes"] == bundle.stat().st_size
    assert exported["source_bytes"] == sum(p.stat().st_size for p in cache.glob("*-cache"))
    assert (tmp_path / "again.jxb").read_bytes() == bundle.read_bytes()
    assert told(run_cli, "import", bundle, "-C", new)["summary"]["written"] == 7
    assert run_cli("diff", cache, bundle).returncode == 0
    rotten, empty, good, *_ = sorted(new.glob("*-cache"))
    rotten.write_bytes(zstandard.compress(bytes(4) + b"no executable at all"))
    empty.write_bytes(b"")
    inode = good.stat().st_ino
    for counts in ((5, 2), (7, 0)):  # a sound entry replaces a damaged one
        again = told(run_cli, "import", bundle, "-C", new)["summary"]
        assert (again["same"], again["heal"]) == counts
    assert good.stat().st_ino == inode
    assert run_cli("diff", cache, new).returncode == 0
    assert told(run_cli, "verify", "-C", new, "--grace", "0s")["problems"] == []


def test_through_a_pipe(cache: Path, tmp_path: Path) -> None:
    """Streams of a process end with Python, when nothing can be imported any more."""
    (tmp_path / "here" / "jax").mkdir(parents=True)  # a directory, and no jax

    def piped(*words: str | Path, data: bytes = b"") -> Any:
        options = {"env": clean_environment(tmp_path), "cwd": tmp_path / "here", "text": False}
        return sh([sys.executable, "-m", "jaxcache", *words], input=data, **options)

    bundle = piped("export", "-", "-C", cache).stdout
    assert bundle.startswith(b"\x89JXB")
    done = piped("import", "-", "-C", tmp_path / "new", data=bundle)
    assert (done.returncode, done.stderr[-16:]) == (0, b"7 files written\n"), done.stderr
    assert names(tmp_path / "new") == names(cache)
    assert piped("import", "-", "-C", tmp_path / "none", data=bundle[:-1]).returncode == 1
    assert not (tmp_path / "none").exists()


def test_a_named_pipe_is_not_waited_for(run_cli: RunCli, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    done = run_cli("copy", tmp_path / "pipe", tmp_path / "new")  # would hang
    assert done.returncode == 10, done.stderr


def test_increments(run_cli: RunCli, corpus: Path, cache: Path, tmp_path: Path) -> None:
    base, more = tmp_path / "base.jxb", tmp_path / "more.jxb"
    # The ledger has seconds exactly, the header of an entry in whole seconds.
    keys = [name.removesuffix("-cache") for name in names(cache)]
    append(LocalStore(cache), [Event(k, "compile", 1, {"compile_seconds": 0.25}) for k in keys])
    run_cli("export", base, "-C", cache)
    for ref in (base, cache):
        assert told(run_cli, "export", more, "--since", ref, "-C", cache)["entries"] == 0
    for path in (corpus / SECOND).glob("*-cache"):
        shutil.copy2(path, cache)
    for ref in (base, corpus / SMALL):
        done = told(run_cli, "export", more, "--since", ref, "-C", cache)
        assert done["entries"] == len(names(corpus / SECOND))
    run_cli("import", base, "-C", tmp_path / "new")
    run_cli("import", more, "-C", tmp_path / "new")
    assert run_cli("diff", cache, tmp_path / "new").returncode == 0


@pytest.mark.parametrize("line", ["export thesis.tex", "export thesis.jxb", "ci save thesis.jxb"])
def test_a_bundle_is_overwritten(run_cli: RunCli, cache: Path, tmp_path: Path, line: str) -> None:
    *command, name = line.split()
    precious = tmp_path / name
    precious.write_text("chapter one")
    done = run_cli(*command, precious, "-C", cache)
    assert (done.returncode, precious.read_text()) == (2, "chapter one")


def test_no_room_for_a_bundle(run_cli: RunCli, cache: Path, tmp_path: Path) -> None:
    """And no directory for one."""
    before = sorted(p.name for p in tmp_path.iterdir())
    for done in (
        limited(tmp_path, 4096, "export", tmp_path / "x.jxb", "-C", cache),
        run_cli("export", tmp_path / "none" / "x.jxb", "-C", cache),
    ):
        assert (done.returncode, "Traceback" in done.stderr) == (1, False)
        assert sorted(p.name for p in tmp_path.iterdir()) == before


# Imports: what keeps all or some from coming in.


def test_a_python_without_jax_is_said(run_cli: RunCli, bundle: Path, tmp_path: Path) -> None:
    fake = tmp_path / "python"
    fake.write_text("#!/bin/sh\nexit 13\n")
    fake.chmod(0o755)
    for python in (fake, tmp_path / "none"):
        done = run_cli("import", bundle, "-C", tmp_path / "new", "--python", python)
        assert done.returncode == 13
        assert not (tmp_path / "new").exists()


def test_a_broken_jax_of_ours(spawn_cli: RunCli, bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "broken" / "jax").mkdir(parents=True)
    (tmp_path / "broken" / "jax" / "__init__.py").write_text("raise ImportError('no libtpu here')")
    path = os.pathsep.join((str(tmp_path / "broken"), str(REPOSITORY)))
    words = ("import", bundle, "-C", tmp_path / "new", "--dry-run")
    done = spawn_cli(*words, env={"PYTHONPATH": path})
    assert done.returncode == 0
    assert "cannot forecast the hits" in done.stderr and "no libtpu here" in done.stderr
    assert done.stderr.endswith(", hits not checked: no usable jax was found (--python)\n")


def test_no_room_for_entries(run_cli: RunCli, bundle: Path, cache: Path, tmp_path: Path) -> None:
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


def test_damaged_entries_stay_in_the_bundle(run_cli: RunCli, tmp_path: Path) -> None:
    bundle = tmp_path / "b.jxb"
    bundle.write_bytes(forged(lambda d: None, b"no executable at all"))
    document = told(run_cli, "import", bundle, "-C", tmp_path / "here", code=3)
    assert [e["action"] for e in document["entries"]] == ["damaged"]
    assert names(tmp_path / "here") == set()
    assert run_cli("import", bundle, "-C", tmp_path / "here", "--atomic").returncode == 1
    assert run_cli("copy", bundle, tmp_path / "other.jxb").returncode == 1


@pytest.mark.parametrize("argument", ["s3:/bucket/x", "http://"])
def test_what_looks_like_a_url_and_is_none_is_refused(
    run_cli: RunCli, cache: Path, bundle: Path, tmp_path: Path, argument: str
) -> None:
    before = sorted(p.name for p in tmp_path.iterdir())
    for line in (
        *("push {} -C cache", "pull {} -C cache", "ls -C {}", "copy cache {}", "copy {} x"),
        *("export {} -C cache", "import {} -C cache", "import cache.jxb -C {}", "diff cache {}"),
        *("ci save {} -C cache", "ci restore {} -C cache"),
    ):
        done = run_cli(*line.format(argument).split())
        assert done.returncode == 2, (line, done.stderr)
        assert argument in done.stderr
        assert "[bad-url]" in done.stderr, (line, done.stderr)
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


# ``ls``, ``show`` and ``stats`` of a bundle.


def test_a_bundle_is_listed_as_its_cache(run_cli: RunCli, cache: Path, bundle: Path) -> None:
    for words in (
        ("ls", "--sort", "created"),
        ("ls", "--filter", "signature=f32*", "--sort", "platform"),
        ("ls", "--sort", "size", "--limit", "3", "--filter", "size>3kB"),
    ):
        there, here = (told(run_cli, *words, "-C", place) for place in (bundle, cache))
        for document in (there, here):
            for entry in document["entries"]:  # reading the cache gives it a date of last use
                del entry["last_used_at"], entry["last_used_from"]
            del document["problems"], document["cache_dir"]
        assert there == here
    assert len(there["entries"]) == 2
    grouped = told(run_cli, "ls", "-C", bundle, "--group-by", "platform")
    assert [g["name"] for g in grouped["groups"]] == ["cpu"]
    counted = [told(run_cli, "stats", "-C", place) for place in (bundle, cache)]
    assert counted[0]["total"] == counted[1]["total"]
    assert counted[0]["by_platform"][0]["entries"] == 7


def test_show_looks_into_a_bundle(run_cli: RunCli, cache: Path, bundle: Path) -> None:
    here = told(run_cli, "show", "jit_mlp", "-C", cache)
    for words in ((bundle, "jit_mlp"), ("jit_mlp", "-C", bundle)):
        there = told(run_cli, "show", *words)
        assert there["program"] == here["program"]
        assert there["memory"] == here["memory"]
        assert there["entry"]["signature"] == here["entry"]["signature"]
    whole = run_cli("show", bundle)
    assert (whole.returncode, len(whole.stdout.splitlines())) == (0, 7)
    refused = run_cli("show", cache, "jit_mlp")
    assert (refused.returncode, "neither a bundle nor a recipe" in refused.stderr) == (2, True)


def test_what_cannot_be_shown_of_a_bundle_is_said(run_cli: RunCli, bundle: Path) -> None:
    bundle.write_bytes(bundle.read_bytes()[:-200] + bytes(200))
    found = told(run_cli, "ls", "-C", bundle)
    assert len(found["entries"]) == 7
    assert [p["kind"] for p in found["problems"]] == ["bad-payload"]
    for words, code, error in (
        (("show", bundle, "*"), 1, "[bad-bundle]"),
        (("doctor", "-C", bundle), 2, "[not-a-directory]"),
        (("ls", "-C", OF_TORCH), 2, "holds a cache of torch"),
    ):
        refused = run_cli(*words)
        assert (refused.returncode, error in refused.stderr) == (code, True), refused.stderr
