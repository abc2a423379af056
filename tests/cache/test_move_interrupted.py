"""What a kill, a full disk or a wrong clock leaves is whole, and goes away again."""

import base64
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from bundling import LATER_NS, write_new

from jaxcache.cache.archive import write_file
from jaxcache.cache.bundle.format import open_bundle
from jaxcache.cache.bundle.reader import verify_bundle
from jaxcache.cache.files import remove_leftovers, staging
from jaxcache.cache.index import read_checked, write_checked
from jaxcache.cache.ledger.record import HIT, Event
from jaxcache.cache.ledger.segments import Ledger
from jaxcache.cache.ledger.write import append, pin, unpin
from jaxcache.cache.move.bundle_file import bundle_bytes, make_temporary_bundle, write_stream
from jaxcache.cache.move.execute import carry_out
from jaxcache.cache.move.export_plan import plan_export
from jaxcache.cache.move.import_bundle import execute_import, plan_import
from jaxcache.cache.move.stores import make_source
from jaxcache.cache.move.sync import plan_sync
from jaxcache.cache.trust import add_trusted, generate_key, load_trusted
from jaxcache.cache.verify import repair
from jaxcache.cache.verify.repair import execute_repair, plan_repair
from jaxcache.cache.verify.run_checks import verify
from jaxcache.errors import JaxcacheError, LockedError
from jaxcache.layouts import load_layout
from jaxcache.layouts.torch.units import hold_lock
from jaxcache.model import FileInfo
from jaxcache.options import VerifyOptions
from jaxcache.store.base import NewFile, StoreError, or_error
from jaxcache.store.local import LocalStore
from jaxcache.warm.crosshost.cross_target import Delivery

JAX = load_layout("jax")
LEFT = ".jaxcache-tmp-1-left"
AUTOTUNE = "xla_gpu_per_fusion_autotune_cache_dir"


@pytest.fixture
def cache(corpus: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(corpus / "0.12.0.1-cpu-zstd-maxsize", tmp_path / "cache"))


def export(cache: Path, file: Path) -> None:
    store = LocalStore(cache)
    exported = write_stream(store, plan_export(store, now_ns=0), level=1)
    with exported.stream:
        write_file(str(file), bundle_bytes(exported))


class Watched(LocalStore):
    """A store that looks after each step whether every entry is still there."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.entries = {p.name for p in path.glob("*-cache")}

    def _watch(self) -> None:
        assert self.entries <= {p.name for p in Path(self.url).glob("*-cache")}

    def write(self, *args: Any, **options: Any) -> Any:
        done = super().write(*args, **options)
        self._watch()
        return done

    def rename(self, *args: Any, **options: Any) -> None:
        super().rename(*args, **options)
        self._watch()


def test_no_entry_is_missing_for_a_moment_while_all_are_replaced(
    cache: Path, tmp_path: Path
) -> None:
    export(cache, tmp_path / "b.jxb")
    for path in cache.glob("*-cache"):
        path.write_bytes(b"")
    store = Watched(cache)
    bundle = open_bundle(str(tmp_path / "b.jxb"))
    with bundle.file:
        verify_bundle(bundle)
        plan = plan_import(store, bundle, cache_dir="x", on_conflict="replace")
        done = execute_import(store, bundle, plan, atomic=True)
    assert (len(done.written), done.failed) == (7, ())
    assert all(p.stat().st_size for p in cache.glob("*-cache"))
    assert not list((cache / ".jaxcache" / "incoming").iterdir())


@pytest.mark.parametrize(
    "name", [LEFT, f"{AUTOTUNE}/{LEFT}", ".jaxcache/incoming/0a-3", f".jaxcache/incoming/{LEFT}"]
)
def test_what_a_killed_writer_left_is_found_and_removed(cache: Path, name: str) -> None:
    (cache / name).parent.mkdir(parents=True, exist_ok=True)
    (cache / name).write_bytes(b"half")
    store = LocalStore(cache)
    found = verify(store, JAX, VerifyOptions(), now_ns=LATER_NS)
    assert [p.file for p in found.failures] == [name]
    done = execute_repair(store, JAX, plan_repair(found, now_ns=LATER_NS))
    assert done.actions == {name: "delete"}
    assert not (cache / name).exists()
    (cache / name).write_bytes(b"half")
    remove_leftovers(store)
    assert not (cache / name).exists()


def test_the_next_compile_removes_what_a_killed_one_left(cache: Path) -> None:
    (cache / LEFT).write_bytes(b"half an entry")
    assert Delivery(LocalStore(cache)).known_keys()
    assert not (cache / LEFT).exists()


def test_what_is_being_staged_is_left_alone(cache: Path) -> None:
    store = LocalStore(cache)
    with staging(store) as stage:
        store.write(f"{stage}-0", [b"entry"], mtime_ns=0)
        found = verify(store, JAX, VerifyOptions(), now_ns=LATER_NS)
        done = execute_repair(store, JAX, plan_repair(found, now_ns=LATER_NS))
        assert set(done.actions.values()) == {"leave-young"}
        remove_leftovers(LocalStore(cache))
        assert store.read(f"{stage}-0", limit=9) == b"entry"
    remove_leftovers(store)
    assert not list((cache / ".jaxcache" / "incoming").iterdir())


class Overtaken(LocalStore):
    """A store where JAX writes each entry anew right before it is deleted."""

    def delete(self, name: str, **options: Any) -> bool:
        if options:
            Path(self.url, name).write_bytes(b"anew")
        return super().delete(name, **options)


def test_an_entry_that_was_written_anew_keeps_its_date(cache: Path) -> None:
    name = next(cache.glob("jit_mlp-*-cache")).name
    (cache / name).write_bytes(b"")
    os.utime(cache / name, (1e9, 1e9))
    found = verify(LocalStore(cache), JAX, VerifyOptions(), now_ns=LATER_NS)
    plan = plan_repair(found, now_ns=LATER_NS, delete=True)
    done = execute_repair(Overtaken(cache), JAX, plan)
    assert done.actions == {name: "leave-changed"}
    assert (cache / name.replace("-cache", "-atime")).exists()


def put_away(cache: Path) -> tuple[str, str]:
    """An entry's name, and its name in quarantine."""
    name = next(cache.glob("jit_mlp-*-cache")).name
    away = f"{repair.quarantine_directory(10**18)}/{name}"
    LocalStore(cache).rename(name, away)
    return name, away


def test_a_restoration_that_was_killed_between_its_two_names_is_finished(cache: Path) -> None:
    name, away = put_away(cache)
    os.link(cache / away, cache / name)
    done = repair.restore(LocalStore(cache), JAX)
    assert ([r.file for r in done.restored], done.left) == ([name], ())
    assert (cache / name).exists()
    assert not (cache / away).exists()


def test_an_entry_whose_date_was_lost_comes_back_with_one(cache: Path) -> None:
    name, away = put_away(cache)
    stamp = cache / name.replace("-cache", "-atime")
    stamp.unlink()
    mtime_ns = (cache / away).stat().st_mtime_ns
    repair.restore(LocalStore(cache), JAX)
    assert int.from_bytes(stamp.read_bytes(), "little") == mtime_ns


@pytest.mark.parametrize("now_ns", [-(10**18), 0, 2**63 - 1, 10**21])
def test_quarantine_has_a_name_at_any_time(now_ns: int) -> None:
    assert repair.quarantine_directory(now_ns).startswith(".jaxcache/quarantine/")


@pytest.mark.parametrize(("now_ns", "counts"), [(-5, 1), (10**21, 0)])
def test_what_is_learnt_while_the_clock_is_wrong_can_be_read(
    tmp_path: Path, now_ns: int, counts: int
) -> None:
    """A date in the future counts for nothing."""
    append(LocalStore(tmp_path), [Event("key", HIT, now_ns)])
    ledger = Ledger.load(LocalStore(tmp_path))
    assert (len(ledger), ledger.damaged) == (counts, 0)


def test_the_later_of_pin_and_unpin_counts_though_the_clock_went_back(cache: Path) -> None:
    store = LocalStore(cache)
    (key,) = pin(store, JAX, ["jit_mlp"], now_ns=10**18)
    unpin(store, [key], now_ns=10**17)
    record = Ledger.load(store).record(key)
    assert record and not record.pinned
    pin(store, JAX, [key], now_ns=10**16)
    record = Ledger.load(store).record(key)
    assert record and record.pinned


def test_a_private_key_is_whole_or_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("cryptography")

    def full(fd: int, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    path = tmp_path / "keys" / "ci.key"
    with monkeypatch.context() as patched:
        patched.setattr(os, "write", full)
        with pytest.raises(JaxcacheError, match="No space left"):
            generate_key(path)
    assert not list(path.parent.iterdir())
    assert generate_key(path)


def test_keys_that_are_trusted_at_the_same_time_are_all_trusted(tmp_path: Path) -> None:
    keys = {f"key{n}": base64.b64encode(bytes([n]) * 32).decode() for n in range(12)}
    with ThreadPoolExecutor(12) as pool:
        list(pool.map(lambda item: add_trusted(tmp_path, *item), keys.items()))
    assert {k.name for k in load_trusted(tmp_path)} == keys.keys()


def test_a_stopped_command_that_changes_the_keys_is_not_waited_for_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jaxcache.cache.trust._TURN_SECONDS", 0.1)
    fd = os.open(tmp_path / ".lockfile", os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        with pytest.raises(LockedError, match="another process is changing"):
            add_trusted(tmp_path, "friend", base64.b64encode(bytes(32)).decode())
    finally:
        os.close(fd)
    assert load_trusted(tmp_path) == []


def test_the_next_writer_removes_what_a_killed_one_left_beside(cache: Path, tmp_path: Path) -> None:
    for directory in ("index", "trust", "out"):
        (tmp_path / directory).mkdir()
        (tmp_path / directory / LEFT).write_bytes(b"half")
    write_checked(tmp_path / "index" / "a.idx", b"magic\n", [b"bo", b"dy"])
    assert read_checked(tmp_path / "index" / "a.idx", b"magic\n") == b"body"
    add_trusted(tmp_path / "trust", "me", base64.b64encode(bytes(32)).decode())
    export(cache, tmp_path / "out" / "b.jxb")
    assert not list(tmp_path.glob(f"*/{LEFT}"))


class Refusing(LocalStore):
    """A store in which one name cannot be written."""

    refused = ""

    def write(self, name: str, chunks: Iterable[bytes], **options: Any) -> FileInfo:
        if name == self.refused:
            raise StoreError(name, "input/output error", code="io-error")
        return super().write(name, chunks, **options)

    def write_many(self, files: Sequence[NewFile]) -> Iterator[FileInfo]:
        return (or_error(partial(write_new, self, file)) for file in files)


def test_of_an_entry_that_could_not_be_imported_the_ledger_says_nothing(
    cache: Path, tmp_path: Path
) -> None:
    names = sorted(p.name for p in cache.glob("*-cache"))
    keys = [name.removesuffix("-cache") for name in names]
    append(LocalStore(cache), [Event(key, HIT, 5) for key in keys])
    export(cache, tmp_path / "c.jxb")
    bundle = open_bundle(str(tmp_path / "c.jxb"))
    with bundle.file:
        verify_bundle(bundle)
        (tmp_path / "new").mkdir()
        store = Refusing(tmp_path / "new")
        store.refused = names[-1]
        plan = plan_import(store, bundle, cache_dir=store.url)
        done = execute_import(store, bundle, plan)
    assert [f.name for f in done.failed] == [names[-1]]
    assert keys[-1] not in Ledger.load(store)
    assert set(Ledger.load(store)) == {s.name.removesuffix("-cache") for s in done.written}


def test_no_room_for_temporary_files_is_an_error_with_a_name(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: Any, **options: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tempfile, "TemporaryFile", full)
    store = LocalStore(cache)
    with pytest.raises(JaxcacheError, match="no space left on device"):
        make_temporary_bundle(store, plan_export(store, now_ns=0))


def test_a_new_directory_is_dated_like_the_one_it_is_filled_from(
    cache: Path, tmp_path: Path
) -> None:
    # A test that read the original would otherwise count as a last use.
    for file in cache.iterdir():
        os.utime(file, (0, 0))
    (tmp_path / "new").mkdir()
    source, target = LocalStore(cache), LocalStore(tmp_path / "new")
    plan = plan_sync(source, target, now_ns=LATER_NS)
    carry_out(make_source(source, plan), target, plan, now_ns=LATER_NS)
    assert len(list((tmp_path / "new").glob("*-cache"))) == 7
    for stamp in cache.glob("*-atime"):
        assert Path(target.url, stamp.name).read_bytes() == stamp.read_bytes()


def test_what_the_system_refuses_is_not_called_a_mistake_of_ours(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from jaxcache.cli import main

    def full() -> None:
        raise OSError(28, "No space left on device", "/tmp/x")

    monkeypatch.setattr(main, "_read", lambda argv: full)
    assert main.run(["ls"]) == 1
    assert capsys.readouterr().err == "jaxcache: /tmp/x: no space left on device [io-error]\n"


@pytest.mark.parametrize(("code", "held"), [(28, True), (5, None)])
def test_torchs_lock_is_not_needed_where_there_is_no_room_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, held: bool | None
) -> None:
    def refuse(*args: Any, **options: Any) -> int:
        raise OSError(code, os.strerror(code))

    store, kernel = LocalStore(tmp_path), f"aa/c{'a' * 51}.main.so"
    with hold_lock(store, kernel) as taken:
        assert taken
    monkeypatch.setattr(os, "open", refuse)
    if held is None:
        with pytest.raises(StoreError), hold_lock(store, kernel):
            raise AssertionError("an unknown error was taken for a lock")
    else:
        with hold_lock(store, kernel) as taken:
            assert taken is held
