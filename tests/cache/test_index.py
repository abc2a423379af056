"""The index spares opening files, is never trusted over them, and can vanish at any time."""

import os
import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import CORPUS
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxcache.cache.index import Index
from jaxcache.cache.listing import Listing, ReadCache, list_cache
from jaxcache.layouts import load_layout
from jaxcache.model import Depth
from jaxcache.options import ListOptions
from jaxcache.store.local import LocalStore

JAX = load_layout("jax")
DIRECTORIES = ["0.12.0.1-cpu-zstd-maxsize", "0.12.0.1-cuda13-h200-zstd", "0.4.38-cpu-zlib"]


class Counting(LocalStore):
    """A store that counts what is opened."""

    opened = 0

    def open(self, name):  # type: ignore[no-untyped-def]
        self.opened += 1
        return super().open(name)

    def read_many(self, names, *, limit):  # type: ignore[no-untyped-def]
        self.opened += len(names)
        return super().read_many(names, limit=limit)


@pytest.fixture(params=DIRECTORIES)
def cache(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    target = tmp_path / "cache"
    shutil.copytree(CORPUS / request.param, target)
    for path in target.iterdir():
        os.utime(path, (time.time() - 60, time.time() - 60))
    return target


def listing(
    cache: Path, index_directory: Path, depth: Depth = Depth.DECODED, **options: Any
) -> tuple[Listing, int]:
    """``ls --long`` and how many files it opened."""
    store = Counting(cache)
    opened = ReadCache(store, JAX, time.time_ns(), str(index_directory))
    return list_cache(opened, ListOptions(sort="key", **options), depth=depth), store.opened


def test_the_second_look_opens_nothing_and_sees_the_same(cache: Path, tmp_path: Path) -> None:
    first, opened = listing(cache, tmp_path / "i")
    assert opened >= len(first.entries)
    assert {e.platform for e in first.entries} <= {"cpu", "gpu"}
    assert all(e.signature and e.source for e in first.entries)
    second, opened = listing(cache, tmp_path / "i")
    assert (second, opened) == (first, 0)


@pytest.mark.parametrize("name", ["-cache", "-atime"])
def test_a_changed_file_is_read_again(cache: Path, tmp_path: Path, name: str) -> None:
    files = sorted(cache.glob(f"*{name}"))
    if not files:
        pytest.skip("no such file in this one")
    listing(cache, tmp_path / "i")
    data = files[0].read_bytes()
    files[0].write_bytes(data if name == "-cache" else bytes(8))
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
    assert all(e.platform != "unknown" for e in limited.entries)
    again, _ = listing(cache, tmp_path / "i", depth=Depth.OPENED)
    assert sum(e.platform != "unknown" for e in again.entries) == 2


@pytest.mark.parametrize("sort", ["key", "size", "used", "created"])
def test_a_limit_in_a_large_cache_opens_the_entries_it_shows(
    cache: Path, monkeypatch: pytest.MonkeyPatch, sort: str
) -> None:
    monkeypatch.setattr("jaxcache.cache.listing._READ_AT_ONCE", 2)
    dates = len(list(cache.glob("*-atime"))) if sort == "used" else 0
    store = Counting(cache)
    options = ListOptions(sort=sort, limit=2)
    found = list_cache(
        ReadCache(store, JAX, time.time_ns()), options, depth=Depth.OPENED, sums=False
    )
    assert store.opened <= dates + 4 * 2  # a first block may be larger than what is read of a head
    assert [e.codec == "unknown" for e in found.entries] == [False, False]
    assert found.summary.entries > 2
    assert "compiling" not in str(found.summary)
    whole = list_cache(ReadCache(Counting(cache), JAX, time.time_ns()), options, depth=Depth.OPENED)
    assert whole.entries == found.entries
    assert "compiling" in str(whole.summary)


def test_a_long_path_is_remembered(cache: Path, tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 120) / ("e" * 120)
    deep.parent.mkdir()
    cache.rename(deep)
    listing(deep, tmp_path / "i")
    assert listing(deep, tmp_path / "i")[1] == 0


def test_filters_on_decoded_fields(cache: Path, tmp_path: Path) -> None:
    everything, _ = listing(cache, tmp_path / "i")
    for field in ("platform", "target", "signature", "source"):
        wanted = getattr(everything.entries[0], field)
        if wanted is None:
            continue
        escaped = wanted.replace("[", "[[]")
        found, _ = listing(
            cache, tmp_path / "i2", depth=Depth.OPENED, filters=(f"{field}={escaped}",)
        )
        assert [e.key for e in found.entries] == [
            e.key for e in everything.entries if getattr(e, field) == wanted
        ]


def test_a_directory_that_cannot_be_written_is_no_error(cache: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    found, _ = listing(cache, tmp_path / "file" / "i")
    assert found.entries


@given(data=st.data())
@settings(max_examples=60)
def test_a_damaged_index_counts_as_absent(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    directory = tmp_path_factory.mktemp("index")
    cache = CORPUS / DIRECTORIES[1]
    whole, _ = listing(cache, directory)
    path = next(directory.iterdir(), None)
    if path is None:
        pytest.skip("the files of a fresh checkout are too young to be indexed")
    good = path.read_bytes()
    how = data.draw(st.sampled_from(["flip", "cut", "grow", "junk"]))
    bad = bytearray(good)
    if how == "flip":
        at = data.draw(st.integers(0, len(good) * 8 - 1))
        bad[at // 8] ^= 1 << at % 8
    elif how == "cut":
        del bad[data.draw(st.integers(0, len(good) - 1)) :]
    elif how == "grow":
        bad += data.draw(st.binary(min_size=1, max_size=20))
    else:
        bad = bytearray(data.draw(st.binary(max_size=200)))
    path.write_bytes(bad)
    assert len(Index.load(directory, str(cache), now_ns=time.time_ns())) == 0
    again, _ = listing(cache, directory)
    used = {e.key: e.last_used_ns for e in whole.entries}  # reading may have moved the atime
    assert [replace(e, last_used_ns=used[e.key]) for e in again.entries] == list(whole.entries)


def test_the_index_forgets_caches_that_are_gone(cache: Path, tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    shutil.copytree(cache, gone, copy_function=shutil.copy2)
    index = tmp_path / "index"
    listing(gone, index)
    before = set(index.iterdir())
    assert before
    shutil.rmtree(gone)
    listing(cache, index)
    assert index.exists() and not before & set(index.iterdir())
