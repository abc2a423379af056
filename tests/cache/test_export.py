"""What ``export`` and ``push`` take out of a cache, and how: what goes in comes out."""

import io
import itertools
import os
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import zstandard
from bundling import (
    SMALL,
    bring,
    contents,
    copy_of,
    first_entry,
    make_bundle,
    opened,
    padded,
    payload_of,
)
from conftest import CORPUS, RunCli
from failing import let_fail

from jaxcache.cache.diff import diff_sides
from jaxcache.cache.ledger.record import Event
from jaxcache.cache.ledger.segments import Ledger
from jaxcache.cache.ledger.write import append
from jaxcache.cache.move import import_bundle, stores
from jaxcache.cache.move.bundle_file import write_stream
from jaxcache.cache.move.export_plan import plan_export
from jaxcache.cache.verify import check
from jaxcache.cache.verify.check import read_content
from jaxcache.core.names import AUTOTUNE_DIR, KERNEL_CACHE
from jaxcache.errors import JaxcacheError
from jaxcache.layouts import open_side
from jaxcache.store.base import MissingError, StoreError
from jaxcache.store.local import LocalStore

CACHES = sorted(p.name for p in CORPUS.iterdir() if p.is_dir())


@pytest.mark.parametrize("name", CACHES)
def test_every_real_cache_round_trips(name: str, tmp_path: Path) -> None:
    source, target = CORPUS / name, tmp_path / "new"
    data = make_bundle(source)
    assert make_bundle(source) == data
    assert zstandard.get_frame_parameters(data[opened(data).stream_at :]).has_checksum
    assert not bring(data, target).failed
    travels = {n: d for n, d in contents(source).items() if n != KERNEL_CACHE}
    assert contents(target) == travels
    for path in target.glob("jit*"):
        there = source / path.name
        if not path.name.endswith("-atime"):
            assert path.stat().st_mtime_ns == there.stat().st_mtime_ns
            assert path.read_bytes()[:1] == there.read_bytes()[:1]
            if path.read_bytes()[:1] == b"\x28":
                assert zstandard.get_frame_parameters(path.read_bytes()).has_checksum
    assert diff_sides(open_side(str(source)), open_side(str(target))).equal
    assert bring(data, target).written == ()


def test_what_cannot_be_read_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Entries, side files, and the dates of entries."""
    cache = copy_of(SMALL, tmp_path / "c")
    side_files = [f"{AUTOTUNE_DIR}/{name}.textproto" for name in ("a-gone", "b-there", "c-locked")]
    (cache / AUTOTUNE_DIR).mkdir()
    for name in side_files:
        (cache / name).write_bytes(b"autotuned")
    gone, broken, dateless, *_ = sorted(p.name for p in cache.glob("*-cache"))
    stamp = f"{dateless.removesuffix('-cache')}-atime"
    failures = {
        gone: MissingError(gone),
        broken: StoreError(broken, "bad disk"),
        stamp: StoreError(stamp, "permission denied"),
        side_files[0]: MissingError(side_files[0]),
        side_files[2]: StoreError(side_files[2], "permission denied"),
    }

    def read_many(store: LocalStore, names: Sequence[str], **limit: int) -> Iterator[object]:
        for name, data in zip(names, read_all(store, names, **limit), strict=True):
            yield failures.get(name, data)

    read_all = LocalStore.read_many
    for name, error in failures.items():
        let_fail(monkeypatch, "fetch", name, error)
    monkeypatch.setattr(LocalStore, "read_many", read_many)
    store = LocalStore(cache)
    exported = write_stream(store, plan_export(store, now_ns=0))
    exported.stream.close()
    assert {p.file: (p.kind, p.detail) for p in exported.left_out} == {
        broken: ("unreadable", "bad disk"),
        stamp: ("unreadable", "permission denied"),
        side_files[2]: ("unreadable", "permission denied"),
    }
    dates = {item.file: item.atime_ns for item in exported.manifest.items}
    assert len(dates) == 5
    assert dates[dateless] is None and None not in {d for n, d in dates.items() if n != dateless}
    assert [f.name for f in exported.manifest.files] == [side_files[1]]


def test_nothing_is_taken_over_of_present_entries(here: Path, tmp_path: Path) -> None:
    cache = copy_of(SMALL, tmp_path / "c")
    here = copy_of(SMALL, here)
    key = first_entry(cache).name.removesuffix("-cache")
    append(LocalStore(cache), [Event(key, "hit", 6, {"count": 3})])
    assert bring(make_bundle(cache), here).written == ()
    assert Ledger.load(LocalStore(here)).record(key) is None


@pytest.mark.parametrize(
    ("data", "date"),
    [
        (((1 << 63) - 1).to_bytes(8, "little"), (1 << 63) - 1),
        ((1 << 63).to_bytes(8, "little"), None),  # in the year 2262
        (bytes(9), None),
        (bytes(8), 0),
    ],
)
def test_a_senseless_date_stays_behind(tmp_path: Path, data: bytes, date: int | None) -> None:
    cache = copy_of(SMALL, tmp_path / "c")
    entry = first_entry(cache)
    entry.with_name(entry.name.removesuffix("-cache") + "-atime").write_bytes(data)
    items = {i.file: i for i in opened(make_bundle(cache)).manifest.items}
    assert items[entry.name].atime_ns == date
    assert sum(i.atime_ns is not None for i in items.values()) == 6 + (date is not None)


@pytest.mark.parametrize("codec", ["zstd", "zlib"])
def test_payloads_too_large_to_hold_travel(
    tmp_path: Path, codec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(import_bundle, "BUFFERED_BYTES", 1 << 20)
    for module in (check, stores):
        monkeypatch.setattr(module, "BUFFERED_BYTES", 2 << 20)
    cache, small = tmp_path / "c", first_entry(SMALL)
    cache.mkdir()
    name = small.name.rpartition("-")[0][:-65]
    # Held whole and compressed as they come, from just the limit of either and from beyond it.
    for number, size in enumerate((1 << 20, (1 << 20) + 1, 2 << 20, (2 << 20) + 1)):
        content = bytes(4) + padded(payload_of(small), size, number)
        data = zlib.compress(content, 1) if codec == "zlib" else zstandard.compress(content)
        (cache / f"{name}-{number:064x}-cache").write_bytes(data)
    done = bring(make_bundle(cache), tmp_path / "new")
    assert (len(done.written), done.failed) == (4, ())
    assert contents(tmp_path / "new") == contents(cache)


def test_a_large_entry_that_changes_while_it_is_read_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(check, "BUFFERED_BYTES", 2 << 20)

    def entry(last: bytes) -> bytes:
        return zstandard.compress(bytes(4) + bytes(2 << 20) + last)

    data, other = entry(b"x"), entry(b"y")
    content = read_content(io.BytesIO(data), len(data))
    assert sum(map(len, content.chunks(io.BytesIO(data)))) == (2 << 20) + 1
    for changed in (other, data[:-1], b""):
        with pytest.raises(JaxcacheError, match="changed while it was read"):
            list(content.chunks(io.BytesIO(changed)))


@pytest.mark.parametrize(
    ("layout", "names"),
    [
        ("jax", (f"{AUTOTUNE_DIR}/a.textproto", f"{AUTOTUNE_DIR}/A.textproto")),
        ("torch", ("triton/a/kernel.json", "triton/A/kernel.json")),
    ],
)
def test_names_that_differ_in_case_alone(
    run_cli: RunCli, tmp_path: Path, layout: str, names: Sequence[str]
) -> None:
    """A cache on a file system that folds case can hold one of them, so no bundle holds both."""
    for name in names:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
        os.utime(path, (1e9, 1e9))
    done = run_cli("export", tmp_path.with_suffix(".jxb"), "-C", tmp_path, "--layout", layout)
    assert done.returncode == 3
    pairs = itertools.permutations(names)
    texts = (f"left out {one}: differs from {other} in case only" for one, other in pairs)
    assert sum(text in done.stderr for text in texts) == 1
