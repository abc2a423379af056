"""Scanning many entries, in one process and in several."""

import os
import shutil
import threading
import time
from pathlib import Path
from typing import Any, BinaryIO

import pytest
import zstandard
from failing import let_fail

from benchmarks.make_cache import make_cache
from jaxcache.cache import scan as scanning
from jaxcache.cache.move.bundle_file import make_temporary_bundle
from jaxcache.cache.move.export_plan import plan_export
from jaxcache.cache.move.import_bundle import plan_import
from jaxcache.cache.move.plan import MoveAction
from jaxcache.cache.scan import ScanAids, scan
from jaxcache.cache.verify.run_checks import verify
from jaxcache.core.names import AUTOTUNE_DIR
from jaxcache.layouts import load_layout
from jaxcache.model import Depth, reporting_to
from jaxcache.options import Level, VerifyOptions
from jaxcache.store import concurrency
from jaxcache.store.base import MissingError
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
    with reporting_to(lambda *step: steps.append(step)):
        shared = scan(LocalStore(large), ScanAids(workers=2))
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


# Files that go, or cannot be looked at, between two looks of one command.


def test_a_file_that_cannot_be_looked_at_again_keeps_its_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a disk that lists files and answers nothing more about them."""
    let_fail(monkeypatch, "info")
    (tmp_path / f"jit_f-{'a' * 64}-cache").touch()
    found = verify(
        LocalStore(tmp_path),
        load_layout("jax"),
        VerifyOptions(),
        now_ns=time.time_ns(),
        wait=lambda _: None,
    )
    assert found.checked == 1
    assert [p.kind for p in found.problems] == ["empty"]


class Sealing(LocalStore):
    """A directory in which each entry is sealed after it was listed and before it is read."""

    def open(self, name: str) -> BinaryIO:
        path = Path(self.url, name)
        content = zstandard.decompress(path.read_bytes())
        new = path.with_name(f"{path.name}.new")
        new.write_bytes(zstandard.ZstdCompressor(level=1, write_checksum=True).compress(content))
        new.replace(path)
        return super().open(name)


@pytest.mark.parametrize("level", ["quick", "full"])
def test_an_entry_that_is_replaced_while_it_is_verified_is_sound(
    corpus: Path, tmp_path: Path, level: Level
) -> None:
    cache = shutil.copytree(corpus / "0.12.0.1-cpu-zstd", tmp_path / "cache")
    options = VerifyOptions(level=level, grace_seconds=0.0)
    found = verify(Sealing(cache), load_layout("jax"), options, now_ns=time.time_ns())
    assert found.checked == 7
    assert found.failures == ()


class Emptied(LocalStore):
    """A directory whose files go after they were listed."""

    def open(self, name: str) -> BinaryIO:
        raise MissingError(name)


def test_a_side_file_that_went_meanwhile_is_written(tmp_path: Path) -> None:
    stores: list[Any] = []
    for name, kind in (("source", LocalStore), ("target", Emptied)):
        (tmp_path / name).mkdir()
        (tmp_path / name / AUTOTUNE_DIR).mkdir()
        (tmp_path / name / AUTOTUNE_DIR / "x.textproto").write_bytes(name.encode())
        stores.append(kind(tmp_path / name))
    source, target = stores
    bundle, _ = make_temporary_bundle(source, plan_export(source, now_ns=0))
    with bundle.file:
        planned = plan_import(target, bundle, cache_dir=target.url)
    assert [s.action for s in planned.steps] == [MoveAction.WRITE]
