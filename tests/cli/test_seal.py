"""``jaxcache seal``: same payloads, same dates, smaller, provable, idempotent, beside others."""

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import zstandard
from bundling import contents
from conftest import RunCli
from failing import let_fail
from processes import limited
from ways import names, told

from jaxcache.cache.ledger.record import PAYLOAD, Event, digest_facts
from jaxcache.cache.ledger.write import append
from jaxcache.cache.seal import SealResult, execute_seal, plan_seal
from jaxcache.model import reporting_to
from jaxcache.store import open_store
from jaxcache.store.base import NewFile
from jaxcache.store.local import LocalStore

NS = 1_000_000_000


def dates(cache: Path) -> dict[str, int]:
    return {name: (cache / name).stat().st_mtime_ns for name in names(cache)}


def seal(run_cli: RunCli, cache: Path, *args: str, code: int = 0) -> Any:
    return told(run_cli, "seal", "-C", cache, *args, code=code)


@pytest.mark.parametrize("smaller", [False, True])
@pytest.mark.parametrize(
    "name", ["0.12.0.1-cpu-zstd-maxsize", "0.12.0.1-cuda13-h200-zstd", "0.4.38-cpu-zlib"]
)
def test_sealing_changes_the_frame_and_nothing_else(
    run_cli: RunCli, corpus: Path, cache: Path, name: str, smaller: bool
) -> None:
    shutil.copytree(corpus / name, cache)
    for number, path in enumerate(cache.iterdir()):
        os.utime(path, ns=(10**18 + number, 10**18 + 7 * number))
    left = cache / ".jaxcache-tmp-1-abc"
    left.write_bytes(b"half")
    before, dated = contents(cache), dates(cache)
    size = sum((cache / name).stat().st_size for name in dated)
    level = ["--recompress", "19"] if smaller else []
    planned = seal(run_cli, cache, "--dry-run", *level)
    assert planned["dry_run"] and dates(cache) == dated and left.exists()
    document = seal(run_cli, cache, *level)
    assert not left.exists(), "of a writer that was killed"
    assert (contents(cache), dates(cache)) == (before, dated)
    saved = document["summary"]["saved_bytes"]
    assert saved == size - sum((cache / name).stat().st_size for name in dated)
    assert saved > 0 if smaller else saved == -4 * len(document["sealed"])
    for path in cache.glob("*-cache"):
        data = path.read_bytes()
        zlib = data[0] == 0x78
        assert zlib if "zlib" in name else zstandard.get_frame_parameters(data).has_checksum
    again = seal(run_cli, cache, *level)
    assert again["sealed"] == [] and {s["reason"] for s in again["skipped"]} == {"sealed"}
    found = told(run_cli, "verify", "-C", cache)
    assert (found["problems"], found["proven"], found["checked"]) == ([], len(dated), len(dated))
    assert all(e["sealed"] for e in told(run_cli, "ls", "-C", cache)["entries"])


def test_a_higher_level_is_tried_once(run_cli: RunCli, local: Path) -> None:
    first = seal(run_cli, local, "--recompress", "1")
    assert len(first["sealed"]) == 7
    # Nothing grows by more than its checksum.
    assert all(s["size_bytes_after"] <= s["size_bytes"] + 4 for s in first["sealed"])
    second = seal(run_cli, local, "--recompress", "19")
    assert len(second["sealed"]) == 7 and second["summary"]["saved_bytes"] > 0
    assert seal(run_cli, local, "--recompress", "19")["sealed"] == []
    assert seal(run_cli, local, "--recompress", "3")["sealed"] == []
    shutil.rmtree(local / ".jaxcache")
    for reason in ("no-gain", "sealed"):  # which is remembered
        skipped = seal(run_cli, local, "--recompress", "19")["skipped"]
        assert {entry["reason"] for entry in skipped} == {reason}


def test_a_bad_entry_is_reported_and_not_cemented(run_cli: RunCli, local: Path) -> None:
    short, odd, recorded, *_ = sorted(local.glob("*-cache"))
    short.write_bytes(short.read_bytes()[:-9])
    odd.write_bytes(zstandard.compress(bytes(4) + b"no executable at all"))
    facts = digest_facts("a" * 64, LocalStore(local).info(recorded.name))
    append(LocalStore(local), [Event(recorded.name.removesuffix("-cache"), PAYLOAD, 1, facts)])
    large = local / f"jit_large-{'ab' * 32}-cache"  # sealed, and cut beyond what is read of it
    content = bytes(4) + os.urandom(700_000)
    large.write_bytes(zstandard.ZstdCompressor(write_checksum=True).compress(content)[:-300_000])
    before = {path: path.read_bytes() for path in (short, odd, recorded, large)}
    os.utime(short, (10**9, 10**9))
    os.utime(large, (10**9, 10**9))
    document = seal(run_cli, local, code=1)
    assert {problem["file"]: problem["kind"] for problem in document["problems"]} == {
        short.name: "truncated",
        odd.name: "bad-payload",
        recorded.name: "digest-mismatch",
        large.name: "truncated",
    }
    assert len(document["sealed"]) == 4
    assert {path: path.read_bytes() for path in before} == before


def test_a_refused_write_is_no_damage(local: Path, tmp_path: Path) -> None:
    """With a limit of 0 bytes per file, as on a disk without room."""
    done = limited(tmp_path, 0, "seal", "--recompress", "19", "-C", local)
    assert done.returncode == 3
    assert "not sealed, because they could not be written: file too large" in done.stderr
    assert "not sound" not in done.stderr
    assert done.stdout.startswith("failed\tjit_")


# Beside others: what changes, vanishes or is being written between the plan and its execution.


@pytest.fixture
def single(corpus: Path, cache: Path) -> Path:
    """The entry of a cache of one entry."""
    cache.mkdir()
    source = min((corpus / "0.12.0.1-cpu-zstd").glob("jit_mlp*-cache"))
    return Path(shutil.copy2(source, cache))


def seal_one(
    path: Path, meanwhile: Callable[[Path], object] = lambda path: None, *, age_seconds: int = 3600
) -> SealResult:
    """Seal the cache of one entry.

    Args:
        meanwhile: what happens to the entry between the plan and its execution.
        age_seconds: how old the entry is then.
    """
    store = LocalStore(path.parent)
    planned = plan_seal(store)
    (entry,) = planned.todo
    meanwhile(path)
    return execute_seal(store, planned, jobs=1, now_ns=entry.created_ns + age_seconds * NS)


@pytest.mark.parametrize(
    "meanwhile",
    [
        Path.unlink,
        lambda path: path.write_bytes(zstandard.compress(b"\0\0\0\1another")),
        lambda path: path.write_bytes(path.read_bytes() + b"more"),
        lambda path: path.write_bytes(zstandard.compress(b"\0\0\0\1another" * 10_000)),
    ],
    ids=["vanished", "shorter", "extended", "longer"],
)
def test_another_entry_by_now_is_skipped(single: Path, meanwhile: Callable[[Path], object]) -> None:
    done = seal_one(single, meanwhile)
    assert [reason for _, reason in done.skipped] == ["gone"]
    assert (done.sealed, done.problems) == ((), ())
    assert not list(single.parent.glob(".jaxcache-tmp-*"))


def test_what_is_replaced_late_stays(single: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def rewrite(store: LocalStore, file: NewFile, *args: object) -> object:
        single.write_bytes(b"theirs")
        return real(store, file, *args)  # type: ignore[arg-type]

    real = LocalStore.rewrite
    monkeypatch.setattr(LocalStore, "rewrite", rewrite)
    assert [reason for _, reason in seal_one(single).skipped] == ["gone"]
    assert single.read_bytes() == b"theirs"


def test_what_cannot_be_read(single: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    let_fail(monkeypatch, "read", "-cache")
    done = seal_one(single)
    assert [(p.kind, p.detail) for p in done.problems] == [("unreadable", "input/output error")]


@pytest.mark.parametrize(("age_seconds", "young"), [(-59, True), (59, True), (60, False)])
def test_an_unfinished_entry_is_young(single: Path, age_seconds: int, young: bool) -> None:
    single.write_bytes(single.read_bytes()[:-9])
    done = seal_one(single, age_seconds=age_seconds)
    assert [reason for _, reason in done.skipped] == (["young"] if young else [])
    assert [p.kind for p in done.problems] == ([] if young else ["truncated"])


def test_a_payload_beyond_what_a_worker_may_hold_is_skipped(single: Path) -> None:
    store = LocalStore(single.parent)
    planned = plan_seal(store)
    huge = replace(planned.todo[0], payload_bytes=(1 << 30) + 1)
    done = execute_seal(store, replace(planned, todo=(huge,)), jobs=1, now_ns=0)
    assert [reason for _, reason in done.skipped] == ["too-large"]


def test_progress_ends_with_the_last_entry(local: Path) -> None:
    store = LocalStore(local)
    seen: list[tuple[int, int]] = []
    plan = plan_seal(store)
    with reporting_to(lambda *counts: seen.append(counts)):
        execute_seal(store, plan, jobs=2, now_ns=0)
    assert seen == [(n, 7) for n in range(1, 8)]


# kill -9 at random instants while entries are sealed.


#: Seals the whole cache over and over, at levels that give different bytes.
_SEALER = """
import sys, time
from jaxcache.cache.seal import execute_seal, plan_seal
from jaxcache.options import SealOptions
from jaxcache.store import open_store
for n in range(10_000):
    if n == 1:
        print("ready", flush=True)
    store = open_store(sys.argv[1])
    plan = plan_seal(store, SealOptions(recompress=(None, 1, 9, 19)[n % 4]))
    # Levels that gain nothing are skipped, so every other turn starts from unsealed entries.
    execute_seal(store, plan, jobs=2, now_ns=time.time_ns())
    for name, data in ORIGINALS.items():
        store.write(name, [data])
"""


@pytest.mark.parametrize("times", [5, pytest.param(200, marks=pytest.mark.slow)])
def test_killed_seals_lose_nothing(corpus: Path, tmp_path: Path, times: int) -> None:
    cache = Path(shutil.copytree(corpus / "0.12.0.1-cpu-zstd-maxsize", tmp_path / "cache"))
    before = contents(cache)
    originals = {p.name: p.read_bytes() for p in cache.glob("*-cache")}
    script = tmp_path / "sealer.py"
    script.write_text(f"ORIGINALS = {originals!r}\n{_SEALER}")
    chance = random.Random(times)
    left = 0  # how often a temporary file was left
    for _ in range(times):
        process = subprocess.Popen([sys.executable, script, cache], stdout=subprocess.PIPE)
        with process:
            assert process.stdout and process.stdout.readline() == b"ready\n"
            time.sleep(chance.uniform(0, 0.25))
            process.kill()
        assert process.returncode == -signal.SIGKILL  # it was at work until then
        assert contents(cache) == before
        left += any(cache.rglob(".jaxcache-tmp-*"))
    assert left or times < 200
    store = open_store(str(cache))
    execute_seal(store, plan_seal(store), jobs=2, now_ns=time.time_ns())
    assert not list(cache.rglob(".jaxcache-tmp-*"))
    assert contents(cache) == before
    assert not plan_seal(store).todo
