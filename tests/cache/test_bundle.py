"""Bundles: what goes in comes out, and nothing else gets in."""

import hashlib
import io
import json
import os
import resource
import shutil
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import zstandard
from conftest import CORPUS, REPOSITORY
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxcache.cache.bundle.deliver import bundle_bytes
from jaxcache.cache.bundle.export import plan_export
from jaxcache.cache.bundle.fields import BundleError
from jaxcache.cache.bundle.format import MAGIC, Bundle, pack_header, pack_manifest, read_bundle
from jaxcache.cache.bundle.importing import Action, plan_import, verify_bundle
from jaxcache.cache.bundle.manifest import Manifest, encode_manifest
from jaxcache.cache.bundle.pack import write_stream
from jaxcache.cache.bundle.unpack import Imported, execute_import
from jaxcache.cache.diff import diff_sides, open_side
from jaxcache.cache.ledger.record import Event
from jaxcache.cache.ledger.segments import Ledger, append
from jaxcache.cache.trust import check_signatures, generate_key, read_private_key
from jaxcache.entry.codec import decompress_chunks
from jaxcache.errors import JaxcacheError, UntrustedError
from jaxcache.store import make_store, open_store
from jaxcache.store.base import MissingError, StoreError
from jaxcache.store.local import LocalStore

CACHES = sorted(p.name for p in CORPUS.iterdir() if p.is_dir())
SMALL = CORPUS / "0.4.38-cpu-zstd"


def make_bundle(cache: Path, *, signers: tuple[Any, ...] = (), **options: Any) -> bytes:
    store = LocalStore(cache)
    exported = write_stream(store, plan_export(store, now_ns=0, **options), level=3)
    with exported.stream:
        return b"".join(bundle_bytes(exported, signers))


def opened(data: bytes) -> Bundle:
    return read_bundle(io.BytesIO(data), "test")


def bring(data: bytes, target: Path, **options: Any) -> Imported:
    """Import as the command does."""
    bundle = opened(data)
    verify_bundle(bundle)
    store = make_store(str(target))
    plan_options = {k: options.pop(k) for k in ("on_conflict", "side_caches") if k in options}
    plan = plan_import(store, bundle, cache_dir=str(target), **plan_options)
    return execute_import(store, bundle, plan, **options)


def contents(cache: Path) -> dict[str, bytes]:
    """Every file by name: decompressed where it is an entry, header included."""
    found = {}
    for path in cache.rglob("*"):
        name = str(path.relative_to(cache))
        if not path.is_file() or name == ".lockfile" or name.startswith(".jaxcache"):
            continue
        data = path.read_bytes()
        if name.endswith("-atime") or "xla_gpu" in name:
            found[name] = data
        else:
            found[name] = b"".join(decompress_chunks(io.BytesIO(data), len(data)))
    return found


@pytest.mark.parametrize("name", CACHES)
def test_every_real_cache_round_trips(name: str, tmp_path: Path) -> None:
    source, target = CORPUS / name, tmp_path / "new"
    data = make_bundle(source)
    assert make_bundle(source) == data
    done = bring(data, target)
    assert not done.failed
    assert contents(target) == contents(source)
    for path in target.glob("jit*"):
        there = source / path.name
        if not path.name.endswith("-atime"):
            assert path.stat().st_mtime_ns == there.stat().st_mtime_ns
            assert path.read_bytes()[:1] == there.read_bytes()[:1]
            if path.read_bytes()[:1] == b"\x28":
                assert zstandard.get_frame_parameters(path.read_bytes()).has_checksum
    left = open_side(str(source), open_store)
    assert diff_sides(left, open_side(str(target), open_store)).equal
    again = bring(data, target)
    assert again.written == ()


def test_where_and_when_it_was_made_do_not_show(tmp_path: Path) -> None:
    for name in ("one", "two"):
        shutil.copytree(SMALL, tmp_path / name)
    os.utime(tmp_path / "two", ns=(1, 1))
    files = sorted((tmp_path / "two").iterdir())
    for path in files:
        path.read_bytes()
    assert make_bundle(tmp_path / "one") == make_bundle(tmp_path / "two")


def test_every_single_bit_flip_of_a_signed_bundle_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("cryptography")
    generate_key(tmp_path / "key")
    cache = tmp_path / "cache"
    cache.mkdir()
    smallest = min(SMALL.glob("*-cache"), key=lambda p: p.stat().st_size)
    shutil.copy2(smallest, cache)
    data = bytearray(make_bundle(cache, signers=(read_private_key(tmp_path / "key"),)))
    check_signatures(opened(bytes(data)), [], required=False)
    passed = []
    for bit in range(len(data) * 8):
        data[bit // 8] ^= 1 << bit % 8
        try:
            bundle = opened(bytes(data))
            check_signatures(bundle, [], required=False)
            verify_bundle(bundle)
            passed.append(bit)
        except (BundleError, UntrustedError):
            pass
        data[bit // 8] ^= 1 << bit % 8
    assert passed == []
    verify_bundle(opened(bytes(data)))


def test_every_truncation_and_every_addition_is_refused() -> None:
    data = make_bundle(SMALL)
    for end in [*range(200), *range(200, len(data), 97), len(data) - 1]:
        with pytest.raises(BundleError):
            opened(data[:end])
    with pytest.raises(BundleError, match="follows"):
        opened(data + b"x")


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_a_damaged_bundle_is_an_error_and_nothing_else(data: st.DataObject) -> None:
    bundle = bytearray(WHOLE)
    kind = data.draw(st.sampled_from(["bytes", "swap", "cut", "zero"]))
    at = data.draw(st.integers(0, len(bundle) - 1))
    other = data.draw(st.integers(0, len(bundle) - 1))
    start, end = sorted((at, other))
    if kind == "bytes":
        bundle[at : at + 8] = data.draw(st.binary(min_size=1, max_size=16))
    elif kind == "swap":
        bundle[at], bundle[other] = bundle[other], bundle[at]
    elif kind == "cut":
        del bundle[start:end]
    else:
        bundle[start:end] = bytes(end - start)
    if bundle == WHOLE:
        return
    with pytest.raises(BundleError):
        verify_bundle(opened(bytes(bundle)))


WHOLE = make_bundle(SMALL)


def forged(change: Callable[[dict[str, Any]], object], content: bytes = b"payload") -> bytes:
    """A bundle whose digests all hold and whose manifest says what it likes."""
    packed = zstandard.ZstdCompressor(write_checksum=True).compress(content)
    document: dict[str, Any] = {
        "format": 1,
        "stream": {"sha256": hashlib.sha256(packed).hexdigest(), "content_bytes": len(content)},
        "origins": [{"platform": "cpu"}],
        "entries": [forged_entry("jit_f", content)],
        "files": [],
    }
    change(document)
    manifest = pack_manifest(json.dumps(document).encode())
    return pack_header(manifest, len(packed), 0) + manifest + packed


def forged_entry(module: str, content: bytes, digit: str = "a") -> dict[str, Any]:
    return {
        "key": f"{module}-{digit * 64}", "codec": "zstd", "compile_seconds": 1, "size_bytes": 10,
        "payload_bytes": len(content), "payload_sha256": hashlib.sha256(content).hexdigest(),
        "created_ns": 10**18, "origin": 0,
    }  # fmt: skip


def test_a_forgery_that_lies_about_nothing_is_read(tmp_path: Path) -> None:
    assert len(bring(forged(lambda d: None), tmp_path / "c").written) == 1


HOSTILE: dict[str, Callable[[dict[str, Any]], object]] = {
    "traversal": lambda d: d["entries"][0].update(key="../x-" + "a" * 64),
    "absolute": lambda d: d["entries"][0].update(key="/etc/x-" + "a" * 64),
    "folder": lambda d: d["entries"][0].update(key="a/x-" + "a" * 64),
    "hidden": lambda d: d["entries"][0].update(key=".x-" + "a" * 64),
    "control": lambda d: d["entries"][0].update(key="\x1b[2J-" + "a" * 64),
    "nul": lambda d: d["entries"][0].update(key="x\0-" + "a" * 64),
    "surrogate": lambda d: d["entries"][0].update(key="x\udc80-" + "a" * 64),
    "long": lambda d: d["entries"][0].update(key="x" * 190 + "-" + "a" * 64),
    "long in bytes": lambda d: d["entries"][0].update(key="é" * 100 + "-" + "a" * 64),
    "no key": lambda d: d["entries"][0].update(key="passwd"),
    "empty key": lambda d: d["entries"][0].update(key=""),
    "own": lambda d: d["files"].append(side(".jaxcache/ledger/1.jsonl")),
    "lock": lambda d: d["files"].append(side(".lockfile")),
    "side traversal": lambda d: d["files"].append(
        side("xla_gpu_per_fusion_autotune_cache_dir/../../x")
    ),
    "side folder": lambda d: d["files"].append(side("xla_gpu_per_fusion_autotune_cache_dir/a/b")),
    "twice": lambda d: (
        d["entries"].append(forged_entry("jit_f", b"")),
    ),
    "case": lambda d: d["entries"].append(forged_entry("JIT_f", b"")),
    "sum": lambda d: d["stream"].update(content_bytes=8),
    "negative": lambda d: d["entries"][0].update(payload_bytes=-7),
    "float": lambda d: d["entries"][0].update(payload_bytes=7.0),
    "true": lambda d: d["entries"][0].update(compile_seconds=True),
    "huge": lambda d: d["entries"][0].update(payload_bytes=1 << 60),
    "huge time": lambda d: d["entries"][0].update(created_ns=1 << 64),
    "huge atime": lambda d: d["entries"][0].update(atime_ns=1 << 64),
    "codec": lambda d: d["entries"][0].update(codec="pickle"),
    "origin": lambda d: d["entries"][0].update(origin=1),
    "no origins": lambda d: d.update(origins=[]),
    "digest": lambda d: d["entries"][0].update(payload_sha256="A" * 64),
    "list": lambda d: d.update(entries={}),
    "nothing": lambda d: d.clear(),
    "newer": lambda d: d.update(format=2),
    "features": lambda d: d["origins"][0].update(cpu_features=[1]),
    "ledger": lambda d: d["entries"][0].update(ledger=3),
}  # fmt: skip


def side(name: str) -> dict[str, Any]:
    return {
        "name": name, "size_bytes": 0, "sha256": hashlib.sha256().hexdigest(), "created_ns": 1,
    }  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_manifest_is_refused(name: str) -> None:
    with pytest.raises(BundleError):
        opened(forged(HOSTILE[name]))


def test_a_payload_that_is_not_the_announced_one_is_refused() -> None:
    other = hashlib.sha256(b"another").hexdigest()
    bundle = opened(forged(lambda d: d["entries"][0].update(payload_sha256=other)))
    with pytest.raises(BundleError, match="not the one announced"):
        verify_bundle(bundle)


def test_payloads_in_another_order_are_refused() -> None:
    def reorder(document: dict[str, Any]) -> None:
        document["entries"] = [
            forged_entry("jit_b", b"load", "b"), forged_entry("jit_a", b"pay"),
        ]  # fmt: skip

    with pytest.raises(BundleError, match="not the one announced"):
        verify_bundle(opened(forged(reorder)))


def test_a_stream_that_ends_early_or_goes_on_is_refused() -> None:
    for size in (6, 8, 1 << 40):

        def announce(document: dict[str, Any], size: int = size) -> None:
            document["entries"][0]["payload_bytes"] = size
            document["stream"]["content_bytes"] = size

        with pytest.raises(BundleError):
            verify_bundle(opened(forged(announce)))


def test_manifest_bombs_are_refused_in_little_memory() -> None:
    bomb = zstandard.ZstdCompressor(level=19).compress(bytes(150 << 20))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(BundleError):
        opened(pack_header(bomb, 0, 0) + bomb)
    wide = pack_manifest(b"[" + b"[]," * (1 << 20) + b"0]")
    with pytest.raises(BundleError):
        opened(pack_header(wide, 0, 0) + wide)
    many = zstandard.ZstdCompressor().compress(b"[" + b"[]," * (8 << 20) + b"0]")
    with pytest.raises(BundleError, match="more values"):
        opened(pack_header(many, 0, 0) + many)
    deep = pack_manifest(b"[" * 200_000)
    with pytest.raises(BundleError):
        opened(pack_header(deep, 0, 0) + deep)
    digits = pack_manifest(b'{"format":' + b"1" * 100_000 + b"}")
    with pytest.raises(BundleError):
        opened(pack_header(digits, 0, 0) + digits)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500 << 10


def test_sixteen_signatures_are_read_and_no_more() -> None:
    packed = pack_manifest(encode_manifest(Manifest((), (), (), hashlib.sha256().hexdigest(), 0)))
    for signed in (16, 17):
        data = pack_header(packed, 0, signed) + bytes(96 * signed) + packed
        if signed == 16:
            assert len(opened(data).signatures) == 16
        else:
            with pytest.raises(BundleError, match="more signatures"):
                opened(data)


def test_absurd_headers_are_refused() -> None:
    good = make_bundle(SMALL)
    assert good[:8] == MAGIC
    for offset, value in ((8, 2), (10, 17)):
        data = bytearray(good)
        data[offset : offset + 2] = value.to_bytes(2, "little")
        with pytest.raises(BundleError):
            opened(bytes(data))
    data = bytearray(good)
    data[12:16] = struct.pack("<I", 1 << 31)
    with pytest.raises(BundleError):
        opened(bytes(data))
    for junk in (b"", b"x", b"PK\3\4" + bytes(100), bytes(4096)):
        with pytest.raises(BundleError):
            opened(junk)


def copy_of(source: Path, target: Path) -> Path:
    shutil.copytree(source, target)
    return target


def first_entry(cache: Path) -> Path:
    return min(cache.glob("*-cache"))


def test_a_damaged_entry_is_left_out_and_reported(tmp_path: Path) -> None:
    cache = copy_of(SMALL, tmp_path / "c")
    bad = first_entry(cache)
    bad.write_bytes(bad.read_bytes()[:-10])
    store = LocalStore(cache)
    exported = write_stream(store, plan_export(store, now_ns=0))
    exported.stream.close()
    assert [p.file for p in exported.left_out] == [bad.name]
    assert len(exported.manifest.items) == 6


class FadingStore(LocalStore):
    """One entry cannot be read, one side file is gone since it was listed."""

    def open_many(self, names: Sequence[str]) -> Iterator[Any]:
        for name in names:
            yield StoreError(name, "bad disk") if name == names[2] else self.open(name)

    def open(self, name: str) -> Any:
        if name.endswith("gone"):
            raise MissingError(name)
        return super().open(name)


def test_what_cannot_be_read_is_left_out_and_what_is_gone_is_not_missed(tmp_path: Path) -> None:
    cache = copy_of(SMALL, tmp_path / "c")
    folder = cache / "xla_gpu_per_fusion_autotune_cache_dir"
    folder.mkdir(exist_ok=True)
    for name in ("a-gone", "b-there"):
        (folder / name).write_bytes(b"autotuned")
    store = FadingStore(cache)
    exported = write_stream(store, plan_export(store, now_ns=0))
    exported.stream.close()
    assert [(p.kind, p.detail) for p in exported.left_out] == [("unreadable", "bad disk")]
    assert len(exported.manifest.items) == 6
    assert [f.name.rpartition("/")[2] for f in exported.manifest.files] == ["b-there"]


def test_a_good_entry_stays_and_a_bad_one_is_healed(tmp_path: Path) -> None:
    cache = copy_of(SMALL, tmp_path / "c")
    good, bad = sorted(cache.glob("*-cache"))[:2]
    before = (good.read_bytes(), good.stat().st_ino)
    bad.write_bytes(b"")
    done = bring(make_bundle(SMALL), cache)
    assert [s.action for s in done.written] == [Action.HEAL]
    assert (good.read_bytes(), good.stat().st_ino) == before
    assert contents(cache) == contents(SMALL)


@pytest.fixture
def conflicting(tmp_path: Path) -> Path:
    """A cache with another executable under one key and another time under a second."""
    cache = copy_of(SMALL, tmp_path / "conflicting")
    one, two = sorted(cache.glob("*-cache"))[:2]
    squeeze = zstandard.ZstdCompressor().compress
    payload = zstandard.ZstdDecompressor().decompress(two.read_bytes())[4:]
    one.write_bytes(squeeze(bytes(4) + b"another executable"))
    two.write_bytes(squeeze(b"\0\0\0\7" + payload))
    return cache


def test_conflicts_are_kept_replaced_or_refused(conflicting: Path) -> None:
    data = make_bundle(SMALL)
    before = contents(conflicting)
    plan = plan_import(LocalStore(conflicting), opened(data), cache_dir="x")
    assert [s.action for s in plan.steps].count(Action.KEEP) == 1
    assert len(plan.conflicts) == 1
    assert bring(data, conflicting).written == ()
    assert contents(conflicting) == before
    with pytest.raises(JaxcacheError) as caught:
        bring(data, conflicting, on_conflict="fail")
    assert caught.value.code == "conflict"
    assert contents(conflicting) == before
    assert len(bring(data, conflicting, on_conflict="replace").written) == 2
    assert contents(conflicting) == contents(SMALL)


def test_atimes_come_where_the_cache_has_them(tmp_path: Path) -> None:
    without = copy_of(CORPUS / "0.12.0.1-cpu-zstd", tmp_path / "without")
    bring(make_bundle(SMALL), without)
    assert not list(without.glob("*-atime"))
    dated = copy_of(CORPUS / "0.12.0.1-cpu-zstd-maxsize", tmp_path / "dated")
    first_entry(dated).unlink()
    bring(make_bundle(CORPUS / "0.8.3-cpu-zstd"), dated)
    for entry in dated.glob("*-cache"):
        assert len(entry.with_name(entry.name[:-6] + "-atime").read_bytes()) == 8


def test_what_the_ledger_knows_travels_and_is_not_counted_twice(tmp_path: Path) -> None:
    cache = copy_of(SMALL, tmp_path / "c")
    key = first_entry(cache).name.removesuffix("-cache")
    append(LocalStore(cache), [
        Event(key, "compile", 5, {"compile_seconds": 0.25, "jax_version": "0.4.38"}),
        Event(key, "hit", 6, {"count": 3}), Event(key, "pin", 7),
    ])  # fmt: skip
    data = make_bundle(cache)
    for _ in range(2):
        bring(data, tmp_path / "new")
    record = Ledger.load(LocalStore(tmp_path / "new")).record(key)
    assert record is not None
    assert (record.compile_seconds, record.jax_version, record.hits) == (0.25, "0.4.38", 3)
    assert not record.pinned
    assert record.payload_sha256 is not None
    assert record.file_mtime_ns == first_entry(tmp_path / "new").stat().st_mtime_ns


def test_what_the_ledger_knows_of_entries_that_are_here_already_comes_too(tmp_path: Path) -> None:
    cache = copy_of(SMALL, tmp_path / "c")
    here = copy_of(SMALL, tmp_path / "here")
    key = first_entry(cache).name.removesuffix("-cache")
    append(LocalStore(cache), [Event(key, "hit", 6, {"count": 3})])
    assert bring(make_bundle(cache), here).written == ()
    record = Ledger.load(LocalStore(here)).record(key)
    assert record is not None and (record.hits, record.payload_sha256) == (3, None)


def test_a_file_from_before_1970_travels(tmp_path: Path) -> None:
    cache = copy_of(SMALL, tmp_path / "c")
    side = cache / "xla_gpu_kernel_cache_file"
    side.write_bytes(b"kernels")
    for path in (side, first_entry(cache)):
        os.utime(path, (-5, -5))
    data = make_bundle(cache)
    bundle = opened(data)
    assert bundle.size_bytes == len(data)
    assert bundle.manifest.files[0].created_ns == 0
    assert min(i.created_ns for i in bundle.manifest.items) == 0


def test_links_and_folders_in_the_way_stay(tmp_path: Path) -> None:
    names = [p.name for p in sorted(SMALL.glob("*-cache"))]
    cache, outside = tmp_path / "c", tmp_path / "outside"
    cache.mkdir()
    outside.write_bytes(b"precious")
    (cache / names[0]).symlink_to(outside)
    (cache / names[1]).mkdir()
    (cache / names[2]).symlink_to(tmp_path / "dangling")
    bundle = opened(make_bundle(SMALL))
    plan = plan_import(LocalStore(cache), bundle, cache_dir=str(cache), on_conflict="replace")
    assert plan.count(Action.BLOCKED) == 3
    execute_import(LocalStore(cache), bundle, plan)
    assert outside.read_bytes() == b"precious"
    assert not (tmp_path / "dangling").exists()
    assert (cache / names[0]).is_symlink()
    assert len(list(cache.glob("*-cache"))) == 7


def test_a_name_that_differs_in_case_only_is_not_written_beside_the_other(tmp_path: Path) -> None:
    cache = tmp_path / "c"
    bring(forged(lambda d: None), cache)
    (there,) = cache.glob("*-cache")
    other = there.rename(there.with_name(there.name.replace("jit_f", "JIT_F")))
    assert not bring(forged(lambda d: None), cache).written
    assert list(cache.glob("*-cache")) == [other]


def test_a_linked_side_folder_is_not_followed(tmp_path: Path) -> None:
    source, cache, outside = tmp_path / "s", tmp_path / "c", tmp_path / "outside"
    folder = "xla_gpu_per_fusion_autotune_cache_dir"
    (source / folder).mkdir(parents=True)
    (source / folder / "x.textproto").write_bytes(b"tuned")
    cache.mkdir()
    outside.mkdir()
    (cache / folder).symlink_to(outside)
    done = bring(make_bundle(source), cache)
    assert len(done.failed) == 1
    assert not list(outside.iterdir())
    assert bring(make_bundle(source), tmp_path / "new").written
    assert (tmp_path / "new" / folder / "x.textproto").read_bytes() == b"tuned"


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
    store.room = 10**6
    plan = plan_import(store, bundle, cache_dir="x", on_conflict="replace")
    assert not execute_import(store, bundle, plan, atomic=atomic).failed
    assert contents(conflicting) == whole
    assert not list((conflicting / ".jaxcache").glob("incoming/*"))


@pytest.mark.parametrize("atomic", [False, True])
def test_kill_nine_leaves_whole_entries_and_the_next_run_does_the_rest(
    atomic: bool, tmp_path: Path
) -> None:
    bundle = tmp_path / "b.jxb"
    bundle.write_bytes(make_bundle(SMALL))
    script = (
        "import sys, time\n"
        "from pathlib import Path\n"
        "import test_bundle as t\n"
        "print('ready', flush=True)\n"
        "t.bring(Path(sys.argv[1]).read_bytes(), Path(sys.argv[2]), atomic=bool(int(sys.argv[3])))"
        "\nprint('done', flush=True)\ntime.sleep(60)\n"
    )
    path = os.pathsep.join(map(str, (REPOSITORY, REPOSITORY / "tests", Path(__file__).parent)))
    whole = contents(SMALL)
    for delay in (0.0, 0.004, 0.01, 0.02, 0.04):
        target = tmp_path / f"c{delay}"
        child = subprocess.Popen(
            [sys.executable, "-c", script, bundle, target, str(int(atomic))],
            env={**os.environ, "PYTHONPATH": path}, stdout=subprocess.PIPE,
        )  # fmt: skip
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        time.sleep(delay)
        child.send_signal(signal.SIGKILL)
        child.wait()
        child.stdout.close()
        if target.exists():
            entries = [p for p in target.iterdir() if p.name.endswith(("-cache", "-atime"))]
            for path_ in entries:
                data = path_.read_bytes()
                if path_.name.endswith("-cache"):
                    data = b"".join(decompress_chunks(io.BytesIO(data), len(data)))
                assert data == whole[path_.name]
        assert not bring(bundle.read_bytes(), target, atomic=atomic).failed
        assert contents(target) == whole
        assert not list(target.glob(".jaxcache-tmp-*"))
