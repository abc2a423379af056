"""Imports into caches that hold something already, and imports that are interrupted."""

import os
import shutil
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import zstandard
from bundling import (
    SMALL,
    bring,
    contents,
    copy_of,
    first_entry,
    forged,
    make_bundle,
    opened,
    padded,
    payload_of,
    write_new,
)
from conftest import CORPUS
from ways import OLD_NS, names, old_copy

from jaxcache.cache.bundle.format import BundleError
from jaxcache.cache.bundle.reader import verify_bundle
from jaxcache.cache.move.bundle_file import bundle_bytes, write_stream
from jaxcache.cache.move.execute import carry_out
from jaxcache.cache.move.export_plan import plan_export
from jaxcache.cache.move.import_bundle import execute_import, plan_import
from jaxcache.cache.move.plan import MoveAction
from jaxcache.cache.move.stores import make_source
from jaxcache.cache.move.sync import plan_copy
from jaxcache.cache.seal import execute_seal, plan_seal
from jaxcache.errors import JaxcacheError, UsageError
from jaxcache.model import reporting_to
from jaxcache.options import SealOptions
from jaxcache.store import make_store
from jaxcache.store.base import StoreError, or_error
from jaxcache.store.local import LocalStore


@pytest.fixture
def conflicting(tmp_path: Path) -> Path:
    """A cache with another executable under one key and another time under a second."""
    cache = copy_of(SMALL, tmp_path / "conflicting")
    one, two = sorted(cache.glob("*-cache"))[:2]
    squeeze = zstandard.ZstdCompressor().compress
    one.write_bytes(squeeze(bytes(4) + padded(payload_of(one), 1 << 15)))
    two.write_bytes(squeeze(b"\0\0\0\7" + payload_of(two)))
    return cache


def test_conflicts_are_kept_replaced_or_refused(conflicting: Path) -> None:
    data = make_bundle(SMALL)
    before = contents(conflicting)
    plan = plan_import(LocalStore(conflicting), opened(data), cache_dir="x")
    assert [s.action for s in plan.steps].count(MoveAction.KEEP) == 1
    assert len(plan.conflicts) == 1
    assert bring(data, conflicting).written == ()
    assert contents(conflicting) == before
    with pytest.raises(JaxcacheError) as caught:
        bring(data, conflicting, on_conflict="fail")
    assert caught.value.code == "conflict"
    assert contents(conflicting) == before
    assert len(bring(data, conflicting, on_conflict="replace").written) == 2
    assert contents(conflicting) == contents(SMALL)


def test_no_dates_come_where_the_cache_has_none(tmp_path: Path) -> None:
    without = copy_of(CORPUS / "0.12.0.1-cpu-zstd", tmp_path / "without")
    bring(make_bundle(SMALL), without)
    assert not list(without.glob("*-atime"))


def test_links_and_directories_in_the_way_stay(tmp_path: Path) -> None:
    names = [p.name for p in sorted(SMALL.glob("*-cache"))]
    cache, outside = tmp_path / "c", tmp_path / "outside"
    cache.mkdir()
    outside.write_bytes(b"precious")
    (cache / names[0]).symlink_to(outside)
    (cache / names[1]).mkdir()
    (cache / names[2]).symlink_to(tmp_path / "dangling")
    bundle = opened(make_bundle(SMALL))
    plan = plan_import(LocalStore(cache), bundle, cache_dir=str(cache), on_conflict="replace")
    assert plan.count(MoveAction.BLOCKED) == 3
    execute_import(LocalStore(cache), bundle, plan)
    assert outside.read_bytes() == b"precious"
    assert not (tmp_path / "dangling").exists()
    assert (cache / names[0]).is_symlink()
    assert len(list(cache.glob("*-cache"))) == 7


def test_a_name_that_differs_in_case_only_is_not_written_beside_the_other(tmp_path: Path) -> None:
    cache = tmp_path / "c"
    cache.mkdir()
    (entry,) = SMALL.glob("jit_loss-*-cache")
    other = cache / entry.name.replace("jit_loss", "JIT_loss")
    shutil.copy(entry, other)
    assert not bring(make_bundle(SMALL, keys=("jit_loss",)), cache).written
    assert list(cache.glob("*-cache")) == [other]


def test_a_linked_side_directory_is_not_followed(tmp_path: Path) -> None:
    source, cache, outside = tmp_path / "s", tmp_path / "c", tmp_path / "outside"
    directory = "xla_gpu_per_fusion_autotune_cache_dir"
    (source / directory).mkdir(parents=True)
    (source / directory / "x.textproto").write_bytes(b"tuned")
    cache.mkdir()
    outside.mkdir()
    (cache / directory).symlink_to(outside)
    done = bring(make_bundle(source), cache)
    assert len(done.failed) == 1
    assert not list(outside.iterdir())
    assert bring(make_bundle(source), tmp_path / "new").written
    assert (tmp_path / "new" / directory / "x.textproto").read_bytes() == b"tuned"


class FullDisk(LocalStore):
    """A store that runs out of room after some writes."""

    def __init__(self, path: Path, room: int) -> None:
        super().__init__(path)
        self.room = room

    def write(self, name: str, chunks: Any, **options: Any) -> Any:
        self.room -= 1
        if self.room < 0:
            raise StoreError(name, "no space left on device", code="io-error")
        return super().write(name, chunks, **options)

    def rewrite(self, file: Any, *options: Any) -> Any:
        self.room -= 1
        if self.room < 0:
            raise StoreError(file.name, "no space left on device", code="io-error")
        return super().rewrite(file, *options)

    def write_many(self, files: Any) -> Any:
        return (or_error(partial(write_new, self, file)) for file in files)


@pytest.mark.parametrize("room", [0, 1, 4, 7, 9, 12])
@pytest.mark.parametrize("atomic", [False, True])
def test_a_full_disk_leaves_whole_entries_or_none(
    room: int, atomic: bool, conflicting: Path
) -> None:
    before = contents(conflicting)
    for path in sorted(conflicting.glob("*-cache"))[3:]:
        path.unlink()
        path.with_name(path.name[:-6] + "-atime").unlink()
    partly = contents(conflicting)
    bundle = opened(make_bundle(SMALL))
    store = FullDisk(conflicting, room)
    plan = plan_import(store, bundle, cache_dir="x", on_conflict="replace")
    done = execute_import(store, bundle, plan, atomic=atomic)
    now = contents(conflicting)
    whole = contents(SMALL)
    if done.failed:
        assert all(now[n] in (whole[n], before.get(n)) for n in now)
        if atomic:
            assert done.rolled_back
            assert {n: d for n, d in now.items() if n.endswith("-cache")} == {
                n: d for n, d in partly.items() if n.endswith("-cache")
            }
    else:
        assert now == whole
    assert not [p for p in conflicting.rglob("*") if "tmp" in p.name]
    assert not [*conflicting.glob(".jaxcache/incoming/*")]
    store.room = 10**6
    plan = plan_import(store, bundle, cache_dir="x", on_conflict="replace")
    assert not execute_import(store, bundle, plan, atomic=atomic).failed
    assert contents(conflicting) == whole
    assert not list((conflicting / ".jaxcache").glob("incoming/*"))


def test_progress_ends_where_it_said_it_would(conflicting: Path) -> None:
    store, seen = LocalStore(SMALL), []

    def progress(done: int, total: int) -> None:
        seen.append((done, total))

    def steps() -> list[tuple[int, int]]:
        told = seen.copy()
        seen.clear()
        assert [done for done, _ in told] == sorted(done for done, _ in told)
        return told

    plan = plan_export(store, now_ns=0)
    with reporting_to(progress):
        exported = write_stream(store, plan)
    size = sum(p.stat().st_size for p in SMALL.glob("*-cache"))
    assert (plan.size_bytes, steps()[-1]) == (size, (size, size))
    with exported.stream:
        bundle = opened(b"".join(bundle_bytes(exported)))
    with reporting_to(progress):
        bundle = verify_bundle(bundle)
    content = bundle.manifest.content_bytes
    assert steps()[-1] == (content, content) and content == bundle.manifest.announced_bytes
    target = LocalStore(conflicting)
    with reporting_to(progress):
        import_plan = plan_import(target, bundle, cache_dir="x", on_conflict="replace")
    assert steps() == [(n, 7) for n in range(1, 8)]
    assert (import_plan.count(MoveAction.REPLACE), import_plan.count(MoveAction.SAME)) == (2, 5)
    with reporting_to(progress):
        execute_import(target, bundle, import_plan)
    assert steps() == [(1, 2), (2, 2)]


def test_only_what_is_wanted_comes(tmp_path: Path) -> None:
    bundle = opened(make_bundle(SMALL))
    last = bundle.manifest.items[-1]
    store = make_store(str(tmp_path / "c"))
    plan = plan_import(
        store,
        bundle,
        cache_dir="x",
        wanted=lambda item: None if item.key == last.key else "not this one",
    )
    assert (plan.count(MoveAction.LEFT), plan.count(MoveAction.WRITE, MoveAction.LEFT)) == (
        6,
        7,
    )
    assert [s.name for s in execute_import(store, bundle, plan).written] == [last.file]
    assert [p.name for p in (tmp_path / "c").glob("*-cache")] == [last.file]
    with pytest.raises(UsageError):
        plan_import(store, bundle, cache_dir="x", on_conflict="ask")


def test_what_another_layout_left_is_told_apart() -> None:
    bundle = opened(forged(lambda d: d.update(layout="torch", entries=[]), b""))
    with pytest.raises(BundleError) as caught:
        plan_import(None, bundle, cache_dir="x")
    assert caught.value.code == "other-layout"


def test_entries_are_dated_by_their_writing_where_no_use_is_known(tmp_path: Path) -> None:
    dated = copy_of(CORPUS / "0.12.0.1-cpu-zstd-maxsize", tmp_path / "dated")
    bundle = opened(make_bundle(CORPUS / "0.8.3-cpu-zstd"))
    plan = plan_import(LocalStore(dated), bundle, cache_dir="x")
    assert plan.with_atimes
    execute_import(LocalStore(dated), bundle, plan)
    for item in bundle.manifest.items:
        stamp = (dated / f"{item.key}-atime").read_bytes()
        assert item.atime_ns is None
        assert int.from_bytes(stamp, "little") == item.created_ns
        assert (dated / f"{item.key}-atime").stat().st_mtime_ns == item.created_ns


class Gated(LocalStore):
    """Writes of entries wait until another thread opens a gate."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.asked, self.gate = threading.Event(), threading.Event()
        self.opener = threading.Thread(target=self._open)
        self.opener.start()

    def _open(self) -> None:
        assert self.asked.wait(60)
        self.gate.set()

    def write_many(self, files: Any) -> Any:
        self.asked.set()
        assert self.gate.wait(60)
        return super().write_many(files)


def test_writes_that_end_last_are_waited_for_and_told(tmp_path: Path) -> None:
    (tmp_path / "c").mkdir()
    store, bundle = Gated(tmp_path / "c"), opened(make_bundle(SMALL))
    done = execute_import(store, bundle, plan_import(store, bundle, cache_dir="x"))
    store.opener.join()
    assert {s.name for s in done.written} == {p.name for p in SMALL.glob("*-cache")}


@pytest.mark.parametrize("ledger", [True, False])
def test_what_was_compressed_well_stays_as_small(ledger: bool, tmp_path: Path) -> None:
    """Held in memory and streamed, of either codec, with or without a word of the ledger."""
    cache = copy_of(SMALL, tmp_path / "c")
    large = padded(payload_of(first_entry(SMALL)), 17 << 20)
    module = first_entry(SMALL).name[:-71]
    (cache / f"{module}-{1:064x}-cache").write_bytes(zstandard.compress(bytes(4) + large))
    store = LocalStore(cache)
    execute_seal(store, plan_seal(store, SealOptions(recompress=19)), jobs=1, now_ns=time.time_ns())
    if not ledger:
        shutil.rmtree(cache / ".jaxcache")
    sizes = {p.name: p.stat().st_size for p in cache.glob("*-cache")}
    bring(make_bundle(cache), tmp_path / "new")
    assert contents(tmp_path / "new").keys() >= sizes.keys()
    for name, size in sizes.items():
        assert (tmp_path / "new" / name).stat().st_size <= size * 65 / 64 + 4
    exported = write_stream(store, plan_export(store, now_ns=0))
    exported.stream.close()
    assert exported.size_bytes <= exported.manifest.source_bytes


# What comes between the plan of an import and its end: another writer, an interrupt, an error.


@pytest.fixture
def there(tmp_path: Path) -> Path:
    return old_copy(tmp_path / "there")


@pytest.mark.parametrize("atomic", [False, True])
@pytest.mark.parametrize("on_conflict", ["keep", "replace", "fail"])
def test_an_import_replaces_nothing_that_came_since_its_plan(
    there: Path, tmp_path: Path, on_conflict: str, atomic: bool
) -> None:
    here = tmp_path / "here"
    here.mkdir()
    old = here / first_entry(there).name
    if on_conflict == "replace":
        content = bytes(4) + padded(payload_of(first_entry(there)), 1 << 15)
        old.write_bytes(zstandard.compress(content))
    store, bundle = LocalStore(here), verify_bundle(opened(make_bundle(there)))
    plan = plan_import(store, bundle, cache_dir=str(here), on_conflict=on_conflict)
    old.write_bytes(b"written by JAX meanwhile")
    os.utime(old, ns=(OLD_NS, OLD_NS + 1))
    done = execute_import(store, bundle, plan, atomic=atomic)
    assert old.read_bytes() == b"written by JAX meanwhile"
    assert [step.name for step in done.failed] == [old.name]
    assert done.exit_code == 3
    assert done.rolled_back == atomic
    # Each step ended once: it was written, or it ended as one of the others.
    assert [s.name for s in done.steps] == [s.name for s in plan.steps]
    others = {*MoveAction} - {MoveAction.WRITE, MoveAction.HEAL, MoveAction.REPLACE}
    assert len(done.written) + done.count(*others) == len(plan.steps)


class InterruptedCommit(LocalStore):
    """A store that is interrupted while the files of an atomic import get their names."""

    left = 3

    def rename(self, name: str, new_name: str, *, replace: bool = False) -> None:
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt
        super().rename(name, new_name, replace=replace)


def test_an_interrupted_atomic_import_puts_back_what_was_there(there: Path, tmp_path: Path) -> None:
    here = tmp_path / "here"
    here.mkdir()
    old = here / first_entry(there).name
    old.write_bytes(zstandard.compress(bytes(4) + b"other"))
    before = old.read_bytes()
    store, bundle = InterruptedCommit(here), verify_bundle(opened(make_bundle(there)))
    plan = plan_import(store, bundle, cache_dir=str(here), on_conflict="replace")
    with pytest.raises(KeyboardInterrupt):
        execute_import(store, bundle, plan, atomic=True)
    assert {p.name: p.read_bytes() for p in here.glob("*-*")} == {old.name: before}


class Unreadable(LocalStore):
    """A store of which one entry cannot be read."""

    def fetch(self, name: str, **options: Any) -> Any:
        if name == first_entry(Path(self.path)).name:
            raise StoreError(name, "input/output error", code="io-error")
        return super().fetch(name, **options)


def test_an_atomic_copy_leaves_out_what_cannot_be_read(there: Path, tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    source, target = Unreadable(there), LocalStore(tmp_path / "here")
    plan = plan_copy(source, plan_export(source, now_ns=OLD_NS), target, cache_dir="here")
    done = carry_out(make_source(source, plan), target, plan, now_ns=OLD_NS, atomic=True)
    assert (done.exit_code, done.rolled_back) == (3, False)
    assert names(tmp_path / "here") == names(there) - {first_entry(there).name}
