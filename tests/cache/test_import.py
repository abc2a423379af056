"""Imports into caches that hold something already, that are interrupted, or overwritten."""

import io
import itertools
import os
import shutil
import time
from collections.abc import Callable
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
)
from conftest import CORPUS, GiveAway, RunCli
from ways import OLD_NS, names, old_copy

import jaxcache
from jaxcache.cache.bundle.format import Bundle, BundleError, open_bundle, read_bundle
from jaxcache.cache.bundle.reader import verify_bundle
from jaxcache.cache.move import import_bundle, stores
from jaxcache.cache.move.bundle_file import write_stream
from jaxcache.cache.move.export_plan import plan_export
from jaxcache.cache.move.import_bundle import execute_import, plan_import
from jaxcache.cache.move.plan import MoveAction
from jaxcache.cache.move.stores import make_source
from jaxcache.cache.move.sync import plan_sync
from jaxcache.cache.seal import execute_seal, plan_seal
from jaxcache.cache.verify import check
from jaxcache.core.names import AUTOTUNE_DIR
from jaxcache.errors import JaxcacheError
from jaxcache.model import reporting_to
from jaxcache.options import SealOptions
from jaxcache.options.move import ImportOptions
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


def test_links_and_directories_in_the_way_stay(tmp_path: Path) -> None:
    """Nor is a link in the place of the directory of side files followed."""
    source, cache = copy_of(SMALL, tmp_path / "source"), tmp_path / "c"
    outside = tmp_path / "outside"
    for directory in (source / AUTOTUNE_DIR, cache, outside):
        directory.mkdir()
    (source / AUTOTUNE_DIR / "x.textproto").write_bytes(b"tuned")
    (outside / "precious").write_bytes(b"precious")
    names = [p.name for p in sorted(SMALL.glob("*-cache"))]
    (cache / names[0]).symlink_to(outside / "precious")
    (cache / names[1]).mkdir()
    (cache / names[2]).symlink_to(outside / "dangling")
    (cache / AUTOTUNE_DIR).symlink_to(outside)
    bundle = opened(make_bundle(source))
    plan = plan_import(LocalStore(cache), bundle, cache_dir=str(cache), on_conflict="replace")
    assert plan.count(MoveAction.BLOCKED) == 3
    done = execute_import(LocalStore(cache), bundle, plan)
    assert [step.name for step in done.failed] == [f"{AUTOTUNE_DIR}/x.textproto"]
    assert {p.name: p.read_bytes() for p in outside.iterdir()} == {"precious": b"precious"}
    assert (cache / names[0]).is_symlink()
    assert len(list(cache.glob("*-cache"))) == 7


def test_progress_ends_where_it_said_it_would(conflicting: Path) -> None:
    told: list[tuple[int, int]] = []
    target = LocalStore(conflicting)
    bundle = opened(make_bundle(SMALL))
    with reporting_to(lambda *counts: told.append(counts)):
        bundle = verify_bundle(bundle)
        content = bundle.manifest.content_bytes
        assert told == sorted(told) and told.pop() == (content, content)
        told.clear()
        plan = plan_import(target, bundle, cache_dir="x", on_conflict="replace")
        assert told == [(n, 7) for n in range(1, 8)]
        assert (plan.count(MoveAction.REPLACE), plan.count(MoveAction.SAME)) == (2, 5)
        told.clear()
        execute_import(target, bundle, plan)
    assert told == [(1, 2), (2, 2)]


def test_what_another_layout_left_is_told_apart() -> None:
    bundle = opened(forged(lambda d: d.update(layout="torch", entries=[]), b""))
    with pytest.raises(BundleError) as caught:
        plan_import(None, bundle, cache_dir="x")
    assert caught.value.code == "other-layout"


def test_entries_are_dated_by_their_writing_where_no_use_is_known(tmp_path: Path) -> None:
    dated = copy_of(CORPUS / "0.12.0.1-cpu-zstd-maxsize", tmp_path / "dated")
    data = make_bundle(CORPUS / "0.8.3-cpu-zstd")
    bring(data, dated)
    for item in opened(data).manifest.items:
        assert item.atime_ns is None
        stamp = dated / f"{item.key}-atime"
        dates = [int.from_bytes(stamp.read_bytes(), "little"), stamp.stat().st_mtime_ns]
        assert dates == [item.created_ns] * 2


@pytest.mark.parametrize("ledger", [True, False])
def test_what_was_compressed_well_stays_as_small(
    ledger: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Held in memory and streamed, of either codec, with or without a word of the ledger."""
    monkeypatch.setattr(import_bundle, "BUFFERED_BYTES", 1 << 20)
    cache = copy_of(SMALL, tmp_path / "c")
    large = padded(payload_of(first_entry(SMALL)), 17 << 16)
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


def test_no_entry_is_ever_missing(conflicting: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in conflicting.glob("*-cache"):
        path.write_bytes(b"")
    every = names(conflicting)

    def watched(operation: str) -> Callable[..., Any]:
        real = getattr(LocalStore, operation)

        def run(*args: Any, **options: Any) -> Any:
            done = real(*args, **options)
            assert every <= names(conflicting)
            return done

        return run

    for operation in ("write", "rename"):
        monkeypatch.setattr(LocalStore, operation, watched(operation))
    done = bring(make_bundle(SMALL), conflicting, on_conflict="replace", atomic=True)
    assert (len(done.written), done.failed) == (7, ())
    assert all(p.stat().st_size for p in conflicting.glob("*-cache"))
    assert not list((conflicting / ".jaxcache" / "incoming").iterdir())


# What comes between the plan of an import and its end: another writer, an interrupt, an error.


@pytest.fixture
def there(tmp_path: Path) -> Path:
    return old_copy(tmp_path / "there")


@pytest.mark.parametrize("atomic", [False, True])
@pytest.mark.parametrize("on_conflict", ["keep", "replace", "fail"])
def test_what_came_since_stays(there: Path, here: Path, on_conflict: str, atomic: bool) -> None:
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


def test_an_interrupt_is_undone(there: Path, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While its files get their names."""
    here.mkdir()
    old = here / first_entry(there).name
    old.write_bytes(zstandard.compress(bytes(4) + b"other"))
    before = old.read_bytes()
    renames, rename = itertools.count(1), LocalStore.rename

    def interrupt(store: LocalStore, name: str, new_name: str, *, replace: bool = False) -> None:
        if next(renames) == 3:
            raise KeyboardInterrupt
        rename(store, name, new_name, replace=replace)

    monkeypatch.setattr(LocalStore, "rename", interrupt)
    store, bundle = LocalStore(here), verify_bundle(opened(make_bundle(there)))
    plan = plan_import(store, bundle, cache_dir=str(here), on_conflict="replace")
    with pytest.raises(KeyboardInterrupt):
        execute_import(store, bundle, plan, atomic=True)
    assert {p.name: p.read_bytes() for p in here.glob("*-*")} == {old.name: before}


# Files that another user, who owns them, overwrites between their check and their use.


def write_padded(entry: Path, padding: bytes) -> None:
    """Make an entry larger by bytes that do not compress."""
    payload = padded(payload_of(entry), len(padding) + (1 << 16))[: -len(padding)] + padding
    entry.write_bytes(zstandard.compress(bytes(4) + payload))
    os.utime(entry, ns=(OLD_NS, OLD_NS))


class OverwrittenBundle:
    """A bundle in a file, of which another stream can take the place."""

    def __init__(self, path: Path, cache: Path) -> None:
        self.path = path
        self.contents = contents(cache)
        self._bytes = make_bundle(cache)
        entry = first_entry(cache)
        self.entry = entry.name
        changed = bytearray(self.contents[entry.name])
        changed[-1] ^= 1
        entry.write_bytes(zstandard.compress(changed))
        os.utime(entry, ns=(OLD_NS, OLD_NS))
        other = make_bundle(cache)
        at, other_at = (opened(data).stream_at for data in (self._bytes, other))
        self._other_bytes = self._bytes[:at] + other[other_at:]
        assert len(self._other_bytes) == len(self._bytes)
        path.write_bytes(self._bytes)

    def overwrite(self, *_: object) -> None:
        with self.path.open("r+b") as file:
            file.write(self._other_bytes)


@pytest.fixture
def bundle(there: Path, tmp_path: Path) -> OverwrittenBundle:
    write_padded(first_entry(there), os.urandom(1 << 18))
    return OverwrittenBundle(tmp_path / "cache.jxb", there)


@pytest.mark.parametrize("atomic", [False, True])
def test_what_was_checked_is_imported(bundle: OverwrittenBundle, here: Path, atomic: bool) -> None:
    here.mkdir()
    with open_bundle(str(bundle.path)).file as file:
        opened_bundle = read_bundle(file, "test")
        with pytest.raises(BundleError, match=f"{bundle.entry} does not match its digest"):
            jaxcache.open(here).receive(
                opened_bundle, options=ImportOptions(atomic=atomic), check=bundle.overwrite
            )
    assert contents(here).items() <= bundle.contents.items()
    assert bundle.entry not in contents(here)
    assert not [path for path in here.glob(".jaxcache/incoming/*") if path.stat().st_size]


def test_a_bundle_is_copied_as_it_was_checked(
    bundle: OverwrittenBundle, run_cli: RunCli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def verify_then_overwrite(*words: Any, **options: Any) -> Bundle:
        verified = verify_bundle(*words, **options)
        bundle.overwrite()
        return verified

    monkeypatch.setattr("jaxcache.cache.bundle.reader.verify_bundle", verify_then_overwrite)
    done = run_cli("copy", bundle.path, tmp_path / "new.jxb")
    assert (done.returncode, "its stream is damaged" in done.stderr) == (1, True), done.stderr
    assert not (tmp_path / "new.jxb").exists()


class RewoundFile(io.BytesIO):
    """A file whose first bytes are other ones once it was rewound for the second time."""

    def __init__(self, data: bytes, later: bytes) -> None:
        super().__init__(data)
        self._later = later
        self._rewinds = 0

    def seek(self, offset: int, whence: int = 0) -> int:
        if (offset, whence) == (0, 0):
            self._rewinds += 1
            if self._rewinds > 1:
                self.getbuffer()[: len(self._later)] = self._later
        return super().seek(offset, whence)


def test_a_signature_is_held_against_the_header_that_was_used(there: Path) -> None:
    data = make_bundle(there)
    later = bytes(byte ^ 1 for byte in data[:48])
    assert read_bundle(RewoundFile(data, later), "test").head == opened(data).head


@pytest.mark.parametrize("writable", ["owner", "group"])
def test_a_large_entry(
    there: Path, give_away: GiveAway, writable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (check, stores):
        monkeypatch.setattr(module, "BUFFERED_BYTES", 1 << 20)
    entry = first_entry(there)
    write_padded(entry, os.urandom(1 << 20))
    data = entry.read_bytes()
    entry.chmod(0o664 if writable == "group" else 0o644)
    if writable == "owner":
        give_away(entry)
    source = LocalStore(there)
    plan = plan_sync(source, None, target_url="here", now_ns=OLD_NS)
    step = next(step for step in plan.steps if step.name == entry.name)
    parcel = make_source(source, plan).open(step)
    with entry.open("r+b") as file:
        file.write(bytes(len(data)))
    os.utime(entry, ns=(OLD_NS, OLD_NS))
    frame = b"".join(parcel.frame())
    parcel.close()
    assert zstandard.ZstdDecompressor().decompress(frame) == zstandard.decompress(data)
