"""Scanning entries in one process and in several, and the index, which spares opening files."""

import os
import shutil
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

import pytest
import zstandard
from conftest import CORPUS
from failing import let_fail
from hypothesis import given, settings
from hypothesis import strategies as st
from ways import old_copy

from benchmarks.make_cache import make_cache
from jaxcache.cache import scan as scanning
from jaxcache.cache.index import Index
from jaxcache.cache.listing import Listing, ReadCache, list_cache
from jaxcache.cache.scan import ScanAids, scan
from jaxcache.cache.verify.run_checks import verify
from jaxcache.layouts import load_layout
from jaxcache.model import Depth, reporting_to
from jaxcache.options import ListOptions, VerifyOptions
from jaxcache.store import concurrency
from jaxcache.store.local import LocalStore

JAX = load_layout("jax")


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("large")
    make_cache(target, 300)
    (target / f"jit_empty-{'0' * 64}-cache").write_bytes(b"")
    return target


@pytest.mark.parametrize("refused", [False, True], ids=["several", "none to be had"])
def test_several_processes_see_what_one_sees(
    large: Path, monkeypatch: pytest.MonkeyPatch, refused: bool
) -> None:
    def refuse(*_: object) -> None:
        raise OSError("no semaphores here")

    alone = scan(LocalStore(large))
    monkeypatch.setattr(scanning, "PARALLEL_ABOVE", 10)
    monkeypatch.setattr(concurrency, "_CHUNK", 40)
    if refused:
        monkeypatch.setattr("multiprocessing.get_context", refuse)
    steps: list[tuple[int, int]] = []
    with reporting_to(lambda *step: steps.append(step)):
        shared = scan(LocalStore(large), ScanAids(workers=2))
    assert shared.entries == alone.entries
    assert ([p.kind for p in shared.problems], steps[-1]) == (["empty"], (301, 301))


def test_a_directory_that_changes_while_it_is_read(large: Path, tmp_path: Path) -> None:
    cache = Path(shutil.copytree(large, tmp_path / "cache"))
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
    assert [(e.codec, e.problems) for e in entries] == [("unknown", ())] * 7


# Files that go, or cannot be looked at, between two looks of one command.


def test_a_file_that_cannot_be_looked_at_again_keeps_its_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a disk that lists files and answers nothing more about them."""
    let_fail(monkeypatch, "info")
    (tmp_path / f"jit_f-{'a' * 64}-cache").touch()
    store, now_ns = LocalStore(tmp_path), time.time_ns()
    found = verify(store, JAX, VerifyOptions(), now_ns=now_ns, wait=lambda _: None)
    assert (found.checked, [p.kind for p in found.problems]) == (1, ["empty"])


class Sealing(LocalStore):
    """A directory in which each entry is sealed after it was listed and before it is read."""

    def open(self, name: str) -> BinaryIO:
        path = Path(self.url, name)
        content = zstandard.decompress(path.read_bytes())
        new = path.with_name(f"{path.name}.new")
        new.write_bytes(zstandard.ZstdCompressor(level=1, write_checksum=True).compress(content))
        new.replace(path)
        return super().open(name)


def test_an_entry_that_is_replaced_while_it_is_verified_is_sound(
    corpus: Path, tmp_path: Path
) -> None:
    cache = shutil.copytree(corpus / "0.12.0.1-cpu-zstd", tmp_path / "cache")
    options = VerifyOptions(level="full", grace_seconds=0.0)
    found = verify(Sealing(cache), JAX, options, now_ns=time.time_ns())
    assert (found.checked, found.failures) == (7, ())


# The index spares opening files, is never trusted over them, and can vanish at any time.


class Counting(LocalStore):
    """A store that counts what is opened."""

    opened = 0

    def open(self, name):  # type: ignore[no-untyped-def]
        self.opened += 1
        return super().open(name)

    def read_many(self, names, *, limit):  # type: ignore[no-untyped-def]
        self.opened += len(names)
        return super().read_many(names, limit=limit)


@pytest.fixture
def cache(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A cache of which no file is young; a parameter is its directory in the corpus."""
    name = getattr(request, "param", "0.12.0.1-cpu-zstd-maxsize")
    return old_copy(tmp_path / "cache", CORPUS / name)


def listing(
    cache: Path, index_directory: Path, depth: Depth = Depth.DECODED, **options: Any
) -> tuple[Listing, int]:
    """``ls --long`` and how many files it opened."""
    store = Counting(cache)
    opened = ReadCache(store, JAX, time.time_ns(), str(index_directory))
    return list_cache(opened, ListOptions(sort="key", **options), depth=depth), store.opened


@pytest.mark.parametrize("cache", ["0.12.0.1-cuda13-h200-zstd", "0.4.38-cpu-zlib"], indirect=True)
def test_the_second_look_opens_nothing_and_sees_the_same(cache: Path, tmp_path: Path) -> None:
    first, opened = listing(cache, tmp_path / "i")
    assert opened >= len(first.entries)
    assert {e.platform for e in first.entries} <= {"cpu", "gpu"}
    assert all(e.signature and e.source for e in first.entries)
    second, opened = listing(cache, tmp_path / "i")
    assert (second, opened) == (first, 0)


@pytest.mark.parametrize("name", ["-cache", "-atime"])
def test_a_changed_file_is_read_again(cache: Path, tmp_path: Path, name: str) -> None:
    path = min(cache.glob(f"*{name}"))
    listing(cache, tmp_path / "i")
    path.write_bytes(path.read_bytes() if name == "-cache" else bytes(8))
    changed, opened = listing(cache, tmp_path / "i")
    assert 0 < opened <= 6  # of 14 and more
    alone, _ = listing(cache, tmp_path / "other")
    assert changed == alone


def test_a_file_replaced_by_another_of_the_same_size_and_time(cache: Path, tmp_path: Path) -> None:
    listing(cache, tmp_path / "i")
    path = next(cache.glob("*-cache"))
    was = path.stat()
    new = path.with_name("new")
    new.write_bytes(b"\0" * was.st_size)
    os.utime(new, ns=(was.st_atime_ns, was.st_mtime_ns))
    new.rename(path)
    changed, _ = listing(cache, tmp_path / "i")
    assert [p.kind for p in changed.problems] == ["bad-codec"]


def test_young_files_are_not_remembered(cache: Path, tmp_path: Path) -> None:
    path = next(cache.glob("*-cache"))
    path.write_bytes(path.read_bytes())
    listing(cache, tmp_path / "i")
    _, opened = listing(cache, tmp_path / "i")
    assert opened > 0


def test_deleted_entries_leave_and_come_back(cache: Path, tmp_path: Path) -> None:
    first, _ = listing(cache, tmp_path / "i")
    path = next(cache.glob("*-cache"))
    path.rename(tmp_path / "away")
    assert len(listing(cache, tmp_path / "i")[0].entries) == len(first.entries) - 1
    (tmp_path / "away").rename(path)
    assert listing(cache, tmp_path / "i")[0].entries == first.entries


def test_only_what_is_shown_is_decoded(cache: Path, tmp_path: Path) -> None:
    limited, _ = listing(cache, tmp_path / "i", limit=2)
    assert [e.platform for e in limited.entries] == ["cpu", "cpu"]
    again, _ = listing(cache, tmp_path / "i", depth=Depth.OPENED)
    assert sum(e.platform != "unknown" for e in again.entries) == 2


@pytest.mark.parametrize("sort", ["size", "used"])
def test_a_limit_in_a_large_cache_opens_the_entries_it_shows(
    cache: Path, monkeypatch: pytest.MonkeyPatch, sort: str
) -> None:
    monkeypatch.setattr("jaxcache.cache.listing._READ_AT_ONCE", 2)
    dates = len(list(cache.glob("*-atime"))) if sort == "used" else 0
    store = Counting(cache)
    options = ListOptions(sort=sort, limit=2)
    read = ReadCache(store, JAX, time.time_ns())
    found = list_cache(read, options, depth=Depth.OPENED, sums=False)
    assert store.opened <= dates + 4 * 2  # a first block may be larger than what is read of a head
    assert [e.codec == "unknown" for e in found.entries] == [False, False]
    assert found.summary.entries > 2
    whole = list_cache(read, options, depth=Depth.OPENED)
    assert whole.entries == found.entries
    assert ["compiling" in str(each.summary) for each in (found, whole)] == [False, True]


@pytest.mark.parametrize("cache", ["0.12.0.1-cuda13-h200-zstd"], indirect=True)
def test_filters_on_decoded_fields(cache: Path, tmp_path: Path) -> None:
    everything, _ = listing(cache, tmp_path / "i")
    for field in ("platform", "target", "signature", "source"):
        wanted = getattr(everything.entries[0], field)
        filters = (f"{field}={wanted.replace('[', '[[]')}",)
        found, _ = listing(cache, tmp_path / "i2", depth=Depth.OPENED, filters=filters)
        keys = [e.key for e in everything.entries if getattr(e, field) == wanted]
        assert [e.key for e in found.entries] == keys


def test_a_directory_that_cannot_be_written_is_no_error(cache: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    found, _ = listing(cache, tmp_path / "file" / "i")
    assert found.entries


@given(data=st.data())
@settings(max_examples=25)
def test_a_damaged_index_counts_as_absent(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    directory = tmp_path_factory.mktemp("index")
    cache = CORPUS / "0.12.0.1-cuda13-h200-zstd"
    whole, _ = listing(cache, directory)
    path = next(directory.iterdir(), None)
    if path is None:
        pytest.skip("the files of a fresh checkout are too young to be indexed")
    good = path.read_bytes()
    at, bit = data.draw(st.integers(0, len(good) - 1)), data.draw(st.integers(0, 7))
    flipped = good[:at] + bytes([good[at] ^ 1 << bit]) + good[at + 1 :]
    junk = data.draw(st.binary(min_size=1, max_size=200))
    path.write_bytes(data.draw(st.sampled_from([flipped, good[:at], good + junk, junk])))
    assert len(Index.load(directory, str(cache), now_ns=time.time_ns())) == 0
    again, _ = listing(cache, directory)
    used = {e.key: e.last_used_ns for e in whole.entries}  # reading may have moved the atime
    assert [replace(e, last_used_ns=used[e.key]) for e in again.entries] == list(whole.entries)


def test_the_index_forgets_caches_that_are_gone(cache: Path, tmp_path: Path) -> None:
    gone = Path(shutil.copytree(cache, tmp_path / "gone"))
    listing(gone, tmp_path / "i")
    (of_gone,) = (tmp_path / "i").iterdir()
    shutil.rmtree(gone)
    listing(cache, tmp_path / "i")
    (of_cache,) = (tmp_path / "i").iterdir()
    assert of_cache != of_gone
