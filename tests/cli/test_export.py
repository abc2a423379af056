"""``jaxcache export``: there and back, through pipes, in part, and without room."""

import json
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
from ways import names

from jaxcache.cache.ledger.record import Event
from jaxcache.cache.ledger.write import append
from jaxcache.store.local import LocalStore

SMALL = "0.4.38-cpu-zstd"


SECOND = "0.8.3-cpu-zstd"


@pytest.fixture
def cache(corpus: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(corpus / SMALL, tmp_path / "cache"))


def test_there_and_back(run_cli: RunCli, cache: Path, bundle: Path, tmp_path: Path) -> None:
    told = run_cli("export", tmp_path / "again.jxb", "-C", cache, "--json")
    document = json.loads(told.stdout)
    assert (document["schema_version"], document["entries"]) == (1, 7)
    assert document["size_bytes"] == bundle.stat().st_size
    assert document["source_bytes"] == sum(p.stat().st_size for p in cache.glob("*-cache"))
    assert (tmp_path / "again.jxb").read_bytes() == bundle.read_bytes()
    done = run_cli("import", bundle, "-C", tmp_path / "new" / "deep", "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["summary"]["written"] == 7
    assert {e["action"] for e in document["entries"]} == {"write"}
    assert run_cli("diff", cache, tmp_path / "new" / "deep").returncode == 0
    assert run_cli("diff", cache, bundle, "--json").returncode == 0
    verified = run_cli("verify", "-C", tmp_path / "new" / "deep", "--grace", "0s", "--json")
    assert json.loads(verified.stdout)["problems"] == []
    again = json.loads(run_cli("import", bundle, "-C", tmp_path / "new" / "deep", "--json").stdout)
    assert (again["summary"]["same"], again["summary"]["written"]) == (7, 0)


def test_through_a_pipe(cache: Path, tmp_path: Path) -> None:
    env = clean_environment(tmp_path)
    jaxcache = [sys.executable, "-m", "jaxcache"]
    made = subprocess.run(
        [*jaxcache, "export", "-", "-C", cache], env=env, capture_output=True, check=True
    )
    assert made.stdout.startswith(b"\x89JXB")
    done = subprocess.run(
        [*jaxcache, "import", "-", "-C", tmp_path / "new"],
        env=env,
        input=made.stdout,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert names(tmp_path / "new") == names(cache)
    for data in (b"", b"junk", made.stdout[:-1]):
        done = subprocess.run(
            [*jaxcache, "import", "-", "-C", tmp_path / "none"],
            env=env,
            input=data,
            capture_output=True,
            check=False,
        )
        assert done.returncode == 1
        assert not (tmp_path / "none").exists()


def test_a_named_pipe_is_not_waited_for(run_cli: RunCli, cache: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    done = run_cli("copy", tmp_path / "pipe", tmp_path / "new")  # would hang
    assert done.returncode == 10, done.stderr


def test_selection(run_cli: RunCli, cache: Path, tmp_path: Path) -> None:
    for args in (["jit_mlp*"], ["--filter", "module=jit_mlp"]):
        done = run_cli("export", tmp_path / "part.jxb", *args, "-C", cache, "--json")
        assert json.loads(done.stdout)["entries"] == 1, done.stderr
    cpu = run_cli("export", tmp_path / "c.jxb", "--filter", "platform=cpu", "-C", cache, "--json")
    assert json.loads(cpu.stdout)["entries"] == 7
    assert run_cli("export", tmp_path / "x.jxb", "nothing", "-C", cache).returncode == 1
    assert not (tmp_path / "x.jxb").exists()


def test_increments(run_cli: RunCli, corpus: Path, cache: Path, tmp_path: Path) -> None:
    base, more = tmp_path / "base.jxb", tmp_path / "more.jxb"
    run_cli("export", base, "-C", cache)
    for path in (corpus / SECOND).glob("*-cache"):
        shutil.copy2(path, cache)
    for ref in (base, corpus / SMALL):
        done = run_cli("export", more, "--since", ref, "-C", cache, "--json")
        assert json.loads(done.stdout)["entries"] == len(names(corpus / SECOND)), done.stderr
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
        done = run_cli("export", more, "--since", ref, "-C", cache, "--json")
        assert json.loads(done.stdout)["entries"] == 0, done.stderr


def test_only_a_bundle_is_overwritten(run_cli: RunCli, cache: Path, tmp_path: Path) -> None:
    precious = tmp_path / "thesis.tex"
    precious.write_text("text")
    assert run_cli("export", precious, "-C", cache).returncode == 2
    assert precious.read_text() == "text"
    missing = run_cli("export", tmp_path / "none" / "x.jxb", "-C", cache)
    assert missing.returncode == 1
    assert "Traceback" not in missing.stderr
    assert not [p for p in tmp_path.iterdir() if "tmp" in p.name]


def test_a_damaged_entry_finishes_in_part(run_cli: RunCli, cache: Path, tmp_path: Path) -> None:
    min(cache.glob("*-cache")).write_bytes(b"junk")
    done = run_cli("export", tmp_path / "x.jxb", "-C", cache, "--json")
    assert done.returncode == 3
    (left,) = json.loads(done.stdout)["left_out"]
    assert left["kind"] == "bad-codec"


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


@pytest.mark.parametrize("name", ["out.tar.gz", "out.txt"])
def test_the_name_of_another_format_is_refused(
    run_cli: RunCli, cache: Path, tmp_path: Path, name: str
) -> None:
    done = run_cli("export", tmp_path / name, "-C", cache)
    assert done.returncode == 2
    assert f"{name} is the name of another format: a bundle ends in .jxb" in done.stderr
    assert not (tmp_path / name).exists()
