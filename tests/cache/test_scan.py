"""Scanning many entries, in one process and in several."""

import os
import shutil
import threading
from pathlib import Path

import pytest

from benchmarks.make_cache import make_cache
from jaxcache.cache import scan as scanning
from jaxcache.cache.scan import ScanAids, scan
from jaxcache.model import Depth
from jaxcache.store import concurrency
from jaxcache.store.local import LocalStore


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("large")
    make_cache(target, 300)
    (target / f"jit_empty-{'0' * 64}-cache").write_bytes(b"")
    return target


def test_several_processes_see_what_one_sees(large: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = scan(LocalStore(large))
    monkeypatch.setattr(scanning, "PARALLEL_ABOVE", 10)
    monkeypatch.setattr(concurrency, "_CHUNK", 40)
    steps: list[tuple[int, int]] = []
    shared = scan(LocalStore(large), ScanAids(None, 2, lambda *step: steps.append(step)))
    assert shared.entries == alone.entries
    assert len(shared.entries) == 301
    assert [p.kind for p in shared.problems] == ["empty"]
    assert steps[-1] == (301, 301)


def test_without_processes_to_be_had_one_reads_all(
    large: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError("no semaphores here")

    monkeypatch.setattr(scanning, "PARALLEL_ABOVE", 10)
    monkeypatch.setattr("multiprocessing.get_context", refuse)
    assert len(scan(LocalStore(large), ScanAids(workers=2)).entries) == 301


def test_a_directory_that_changes_while_it_is_read(large: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    shutil.copytree(large, cache)
    stop = threading.Event()
    stable = sorted(cache.glob("*-cache"))[:150]
    volatile = sorted(cache.glob("*-cache"))[150:]

    def churn() -> None:
        while not stop.is_set():
            for path in volatile:
                data = path.read_bytes()
                path.unlink()
                path.write_bytes(data)

    writer = threading.Thread(target=churn)
    writer.start()
    try:
        for _ in range(5):
            seen = {e.file for e in scan(LocalStore(cache)).entries}
            assert {p.name for p in stable} <= seen
    finally:
        stop.set()
        writer.join()


def test_a_plain_scan_without_heads_opens_no_entry(tmp_path: Path, corpus: Path) -> None:
    for path in (corpus / "0.10.2-cpu-zstd").iterdir():
        shutil.copy(path, tmp_path)
        os.chmod(tmp_path / path.name, 0)
    entries = scan(LocalStore(tmp_path), depth=Depth.DATED).entries
    assert len(entries) == 7
    assert {e.codec for e in entries} == {"unknown"}
    assert not any(e.problems for e in entries)
