"""``jaxcache export``: there and back, through pipes, in part, and without room."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import zstandard
from bundling import first_entry, padded, payload_of
from conftest import CORPUS, RunCli, clean_environment
from processes import limited
from ways import names, told

from jaxcache.cache.ledger.record import Event
from jaxcache.cache.ledger.write import append
from jaxcache.store.local import LocalStore

SMALL = "0.4.38-cpu-zstd"
SECOND = "0.8.3-cpu-zstd"


@pytest.fixture
def cache(corpus: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(corpus / SMALL, tmp_path / "cache"))


def test_there_and_back(run_cli: RunCli, cache: Path, bundle: Path, tmp_path: Path) -> None:
    new = tmp_path / "new" / "deep"
    exported = told(run_cli, "export", tmp_path / "again.jxb", "-C", cache)
    assert exported["size_bytes"] == bundle.stat().st_size
    assert exported["source_bytes"] == sum(p.stat().st_size for p in cache.glob("*-cache"))
    assert (tmp_path / "again.jxb").read_bytes() == bundle.read_bytes()
    assert told(run_cli, "import", bundle, "-C", new)["summary"]["written"] == 7
    assert run_cli("diff", cache, new).returncode == 0
    assert run_cli("diff", cache, bundle).returncode == 0
    assert told(run_cli, "verify", "-C", new, "--grace", "0s")["problems"] == []
    again = told(run_cli, "import", bundle, "-C", new)["summary"]
    assert (again["same"], again["written"]) == (7, 0)


def test_through_a_pipe(cache: Path, tmp_path: Path) -> None:
    def piped(*words: str | Path, data: bytes = b"") -> "subprocess.CompletedProcess[bytes]":
        return subprocess.run(
            [sys.executable, "-m", "jaxcache", *words],
            env=clean_environment(tmp_path),
            input=data,
            capture_output=True,
            check=False,
        )

    bundle = piped("export", "-", "-C", cache).stdout
    assert bundle.startswith(b"\x89JXB")
    done = piped("import", "-", "-C", tmp_path / "new", data=bundle)
    assert done.returncode == 0, done.stderr
    assert names(tmp_path / "new") == names(cache)
    for data in (b"", b"junk", bundle[:-1]):
        assert piped("import", "-", "-C", tmp_path / "none", data=data).returncode == 1
        assert not (tmp_path / "none").exists()


def test_a_named_pipe_is_not_waited_for(run_cli: RunCli, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    done = run_cli("copy", tmp_path / "pipe", tmp_path / "new")  # would hang
    assert done.returncode == 10, done.stderr


def test_increments(run_cli: RunCli, corpus: Path, cache: Path, tmp_path: Path) -> None:
    base, more = tmp_path / "base.jxb", tmp_path / "more.jxb"
    run_cli("export", base, "-C", cache)
    for path in (corpus / SECOND).glob("*-cache"):
        shutil.copy2(path, cache)
    for ref in (base, corpus / SMALL):
        done = told(run_cli, "export", more, "--since", ref, "-C", cache)
        assert done["entries"] == len(names(corpus / SECOND))
    run_cli("import", base, "-C", tmp_path / "new")
    run_cli("import", more, "-C", tmp_path / "new")
    assert run_cli("diff", cache, tmp_path / "new").returncode == 0


def test_an_increment_over_a_bundle_whose_ledger_knows_the_seconds(
    run_cli: RunCli, cache: Path, tmp_path: Path
) -> None:
    """The ledger has them exactly, the header of an entry in whole seconds."""
    base, more = tmp_path / "base.jxb", tmp_path / "more.jxb"
    keys = [p.name.removesuffix("-cache") for p in cache.glob("*-cache")]
    append(LocalStore(cache), [Event(k, "compile", 1, {"compile_seconds": 0.25}) for k in keys])
    run_cli("export", base, "-C", cache)
    for ref in (base, cache):
        assert told(run_cli, "export", more, "--since", ref, "-C", cache)["entries"] == 0


@pytest.mark.parametrize("line", ["export thesis.tex", "export thesis.jxb", "ci save thesis.jxb"])
def test_only_a_bundle_is_overwritten(
    run_cli: RunCli, cache: Path, tmp_path: Path, line: str
) -> None:
    *command, name = line.split()
    precious = tmp_path / name
    precious.write_text("chapter one")
    done = run_cli(*command, precious, "-C", cache)
    assert (done.returncode, precious.read_text()) == (2, "chapter one")


def test_a_bundle_has_no_place_in_a_directory_that_is_not_there(
    run_cli: RunCli, cache: Path, tmp_path: Path
) -> None:
    missing = run_cli("export", tmp_path / "none" / "x.jxb", "-C", cache)
    assert missing.returncode == 1
    assert "Traceback" not in missing.stderr
    assert not [p for p in tmp_path.iterdir() if "tmp" in p.name]


def test_no_room_for_a_bundle(cache: Path, tmp_path: Path) -> None:
    before = sorted(p.name for p in tmp_path.iterdir())
    done = limited(tmp_path, 4096, "export", tmp_path / "x.jxb", "-C", cache)
    assert (done.returncode, "Traceback" in done.stderr) == (1, False)
    assert sorted(p.name for p in tmp_path.iterdir()) == before


def test_what_is_written_is_printed_in_the_order_of_the_plan(
    run_cli: RunCli, tmp_path: Path
) -> None:
    """Several threads compress, and small entries are done before large ones."""
    cache = Path(shutil.copytree(CORPUS / "0.10.2-cpu-zstd", tmp_path / "cache"))
    first = first_entry(cache)
    payload = padded(payload_of(first), 12_000_000)
    first.write_bytes(zstandard.ZstdCompressor().compress(bytes(4) + payload))
    assert run_cli("export", tmp_path / "c.jxb", "-C", cache).returncode == 0
    planned = run_cli("import", tmp_path / "c.jxb", "-C", tmp_path / "new", "-n", "-q")
    done = run_cli("import", tmp_path / "c.jxb", "-C", tmp_path / "new", "-q")
    assert len(done.stdout.splitlines()) == 7
    assert done.stdout == planned.stdout
