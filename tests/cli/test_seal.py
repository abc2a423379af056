"""``jaxcache seal``: same payloads, same dates, smaller, provable, idempotent."""

import hashlib
import io
import json
import os
import shutil
import sys
from pathlib import Path

import pytest
import zstandard
from conftest import clean_environment
from processes import sh

from jaxcache.cache.ledger.record import HIT, Event
from jaxcache.cache.ledger.segments import Ledger
from jaxcache.cache.ledger.write import append
from jaxcache.core.ledger import COMPACT_ABOVE
from jaxcache.entry.codec import decompress_chunks
from jaxcache.store import open_store


def payloads(cache: Path) -> dict[str, str]:
    return {p.name: digest(p) for p in cache.iterdir() if p.name.endswith("-cache")}


def digest(path: Path) -> str:
    data = path.read_bytes()
    content = b"".join(decompress_chunks(io.BytesIO(data), len(data)))
    return hashlib.sha256(content).hexdigest()


def dates(cache: Path) -> dict[str, tuple[int, bytes]]:
    return {
        p.name: (p.stat().st_mtime_ns, p.read_bytes() if p.name.endswith("-atime") else b"")
        for p in cache.iterdir()
        if p.name.endswith(("-cache", "-atime"))
    }


def seal(run_cli, cache: Path, *args: str, code: int = 0):
    done = run_cli("seal", "-C", cache, "--json", *args)
    assert done.returncode == code, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(
    params=["0.12.0.1-cpu-zstd-maxsize", "0.12.0.1-cuda13-h200-zstd", "0.4.38-cpu-zlib"]
)
def cache(request: pytest.FixtureRequest, corpus: Path, tmp_path: Path) -> Path:
    target = tmp_path / "cache"
    shutil.copytree(corpus / request.param, target)
    target.chmod(0o755)
    for n, path in enumerate(target.iterdir()):
        path.chmod(0o644)
        os.utime(path, ns=(10**18 + n, 10**18 + 7 * n))
    return target


@pytest.mark.parametrize("smaller", [False, True])
def test_sealing_changes_the_frame_and_nothing_else(run_cli, cache: Path, smaller: bool) -> None:
    before, dated = payloads(cache), dates(cache)
    size = sum(p.stat().st_size for p in cache.glob("*-cache"))
    level = ["--recompress", "19"] if smaller else []
    planned = seal(run_cli, cache, "--dry-run", *level)
    assert planned["dry_run"] and dates(cache) == dated
    document = seal(run_cli, cache, *level)
    assert payloads(cache) == before and dates(cache) == dated
    assert document["summary"]["saved_bytes"] == size - sum(
        p.stat().st_size for p in cache.glob("*-cache")
    )
    zlib = next(cache.glob("*-cache")).read_bytes()[0] == 0x78
    saved = document["summary"]["saved_bytes"]
    assert saved > 0 if smaller else saved == -4 * len(document["sealed"])
    for path in cache.glob("*-cache"):
        data = path.read_bytes()
        assert data[0] == 0x78 if zlib else zstandard.get_frame_parameters(data).has_checksum
    again = seal(run_cli, cache, *level)
    assert again["sealed"] == [] and {s["reason"] for s in again["skipped"]} == {"sealed"}
    verified = run_cli("verify", "-C", cache, "--json")
    found = json.loads(verified.stdout)
    assert verified.returncode == 0, found
    assert found["proven"] == found["checked"] == len(before) and found["problems"] == []
    listed = json.loads(run_cli("ls", "-C", cache, "--json").stdout)
    assert all(e["sealed"] for e in listed["entries"])


def test_a_higher_level_is_tried_once(run_cli, local: Path) -> None:
    first = seal(run_cli, local, "--recompress", "1")
    assert len(first["sealed"]) == 7
    # Nothing grows by more than its checksum.
    assert all(s["size_bytes_after"] <= s["size_bytes"] + 4 for s in first["sealed"])
    second = seal(run_cli, local, "--recompress", "19")
    assert len(second["sealed"]) == 7 and second["summary"]["saved_bytes"] > 0
    assert seal(run_cli, local, "--recompress", "19")["sealed"] == []
    assert seal(run_cli, local, "--recompress", "3")["sealed"] == []
    shutil.rmtree(local / ".jaxcache")
    assert seal(run_cli, local, "--recompress", "19")["skipped"][0]["reason"] == "no-gain"


def test_a_bad_entry_is_reported_and_not_cemented(run_cli, local: Path) -> None:
    (short,) = local.glob("jit_mlp-*")
    short.write_bytes(short.read_bytes()[:-9])
    (odd,) = local.glob("jit_loss-*")
    odd.write_bytes(zstandard.compress(bytes(4) + b"no executable at all"))
    os.utime(short, (10**9, 10**9))
    before = {p: p.read_bytes() for p in (short, odd)}
    document = seal(run_cli, local, code=1)
    assert {p["kind"] for p in document["problems"]} == {"truncated", "bad-payload"}
    assert len(document["sealed"]) == 5
    assert {p: p.read_bytes() for p in (short, odd)} == before


def test_a_large_sealed_entry_that_was_cut_is_found(run_cli, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    path = cache / f"jit_large-{'ab' * 32}-cache"
    content = bytes(4) + os.urandom(700_000)
    path.write_bytes(zstandard.ZstdCompressor(write_checksum=True).compress(content)[:-300_000])
    os.utime(path, (10**9, 10**9))
    document = seal(run_cli, cache, code=1)
    assert [p["kind"] for p in document["problems"]] == ["truncated"]


def test_what_is_being_written_is_left_alone(run_cli, local: Path) -> None:
    (short,) = local.glob("jit_mlp-*")
    short.write_bytes(short.read_bytes()[:-9])
    document = seal(run_cli, local)
    assert [s["reason"] for s in document["skipped"]] == ["young"]


def test_left_over_temporary_files_go(run_cli, local: Path) -> None:
    (local / ".jaxcache-tmp-1-abc").write_bytes(b"half")
    seal(run_cli, local)
    assert not list(local.glob(".jaxcache-tmp-*"))


def test_a_ledger_of_many_segments_is_compacted(run_cli, local: Path) -> None:
    store = open_store(str(local))
    key = "jit_step-" + "a" * 64
    for at in range(COMPACT_ABOVE + 1):
        append(store, [Event(key, HIT, at)])
    seal(run_cli, local)
    ledger = Ledger.load(store)
    assert len(ledger.segments) <= 2  # the compacted one, and what seal has added
    record = ledger.record(key)
    assert record and record.hits == COMPACT_ABOVE + 1
    assert len(ledger) == 8


def test_levels_have_bounds(run_cli, tmp_path: Path) -> None:
    for level in ("0", "23", "x"):
        assert run_cli("seal", "-C", tmp_path, "--recompress", level).returncode == 2


def test_a_refused_write_is_no_damage(local: Path, tmp_path: Path) -> None:
    """With a limit of 0 bytes per file, as on a disk without room."""
    line = f"ulimit -f 0; exec {sys.executable} -m jaxcache seal --recompress 19 -C {local}"
    done = sh(["sh", "-c", line], env=clean_environment(tmp_path))
    assert done.returncode == 3
    assert "not sealed, because they could not be written: file too large" in done.stderr
    assert "not sound" not in done.stderr
    assert done.stdout.startswith("failed\tjit_")
