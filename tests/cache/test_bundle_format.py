"""The file of a bundle: those of before are read, and it is believed in nothing.

Hypothesis makes manifests; the golden record has the bytes of new bundles.
"""

import errno
import hashlib
import io
import json
import os
import resource
import shutil
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import zstandard
from bundling import SMALL, bring, contents, forged, forged_entry, make_bundle, opened
from conftest import CORPUS
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxcache.cache.archive import MAX_MANIFEST_VALUES
from jaxcache.cache.bundle.format import (
    MAGIC,
    MAX_MANIFEST_RAW_BYTES,
    BundleError,
    BundleItem,
    Manifest,
    Origin,
    SideFile,
    check_file_name,
    check_path,
    decode_manifest,
    encode_manifest,
    is_side_file,
    pack_header,
    pack_manifest,
    read_bundle,
)
from jaxcache.cache.bundle.reader import verify_bundle
from jaxcache.cache.recipe import open_recipe
from jaxcache.cache.trust import check_signatures, generate_key, read_private_key
from jaxcache.cache.verify.check import check_unknown_pieces
from jaxcache.core.names import AUTOTUNE_DIR
from jaxcache.entry.names import FileKind, split_name
from jaxcache.errors import UntrustedError

GOLDEN = CORPUS.parent / "containers"
BUNDLE, RECIPE = GOLDEN / "cache.jxb", GOLDEN / "run.recipe"


def test_what_was_written_before_is_read(tmp_path: Path) -> None:
    bring(BUNDLE.read_bytes(), tmp_path / "cache")
    assert contents(tmp_path / "cache") == contents(SMALL)
    with open_recipe(str(RECIPE)) as file:
        assert [r.module for r in file.recipe.requests] == ["jit_f", "jit_g"]
        for digest in {r.bytecode for r in file.recipe.requests}:
            assert hashlib.sha256(file.blob(digest)).hexdigest() == digest


# A manifest: names stay in the cache, and sizes are bounded.


MANIFEST = Manifest(
    items=(
        BundleItem("jit_f-" + "a" * 64, False, "zstd", 0, 10, 7, "0" * 64, 5, None, 0),
        BundleItem("jit_g-" + "b" * 64, True, "zlib", 3, 10, 0, "1" * 64, 5, 6, 1),
    ),
    files=(SideFile("xla_gpu_kernel_cache_file", 3, "2" * 64, 9),),
    origins=(Origin("cpu", cpu_features=("+avx2",)), Origin("gpu", ifrt_version=3)),
    stream_sha256="3" * 64,
    content_bytes=10,
    since="",
)
DOCUMENT = json.loads(encode_manifest(MANIFEST))


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.sampled_from(["../x", "/etc/passwd", "jit_f-" + "a" * 64, "a" * 300, "\udc80", 2**70]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


def test_there_and_back() -> None:
    files = (SideFile("a/b.bin", 10, "2" * 64, 9),)
    for manifest in (MANIFEST, replace(MANIFEST, items=(), files=files, layout="torch")):
        data = encode_manifest(manifest)
        assert decode_manifest(data) == manifest
        assert (b"layout" in data) == (manifest.layout != "jax"), "as before there was another"


def places(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of every value inside."""
    found = [at]
    for name, one in value.items() if isinstance(value, dict) else enumerate(value):
        found += places(one, (*at, name)) if isinstance(one, dict | list) else [(*at, name)]
    return found


PLACES = [p for p in places(DOCUMENT) if p]


@settings(max_examples=200)
@given(st.lists(st.tuples(st.sampled_from(PLACES), VALUES), min_size=1, max_size=3))
def test_any_value_anywhere_is_refused_or_harmless(changes: list[tuple[Any, Any]]) -> None:
    document = json.loads(json.dumps(DOCUMENT))
    for place, value in changes:
        at = document
        try:
            for name in place[:-1]:
                at = at[name]
            at[place[-1]] = value
        except (TypeError, KeyError, IndexError):
            continue
    try:
        manifest = decode_manifest(json.dumps(document).encode())
    except BundleError:
        return
    assert manifest.content_bytes == manifest.announced_bytes
    for item in manifest.items:
        assert split_name(item.file)[0] in (FileKind.ENTRY, FileKind.LEGACY_ENTRY)
        assert "/" not in item.file
        assert len(item.file.encode()) <= 255
        assert 0 <= item.compile_seconds < 1 << 31
        assert (item.atime_ns or 0).to_bytes(8, "little")
        assert manifest.origin_of(item)
    for file in manifest.files:
        assert split_name(file.name)[0] in (FileKind.KERNEL_CACHE, FileKind.AUTOTUNE)
    assert decode_manifest(encode_manifest(manifest)) == manifest


def test_names_are_as_long_as_a_file_system_takes() -> None:
    for name, long in (("é" * 127 + "a", False), ("é" * 128, True)):
        assert (check_file_name(name) is not None) == long
        assert is_side_file(f"{AUTOTUNE_DIR}/{name}") == (not long)


@pytest.mark.parametrize(
    ("field", "bits"),
    [("compile_seconds", 31), ("size_bytes", 48), ("created_ns", 63), ("atime_ns", 63)],
)
def test_numbers_have_bounds(field: str, bits: int) -> None:
    def read(value: int) -> Manifest:
        document = json.loads(json.dumps(DOCUMENT))
        document["entries"][0][field] = value
        return decode_manifest(json.dumps(document).encode())

    most = (1 << bits) - 1
    assert getattr(read(most).items[0], field) == most
    with pytest.raises(BundleError, match=f"{field} of .* is invalid"):
        read(most + 1)


def test_paths_of_another_layout_have_a_depth() -> None:
    assert check_path("/".join("abcdefghijklmnop")) is None
    assert check_path("/".join("abcdefghijklmnopq")) == "is nested deeper than 16"
    for name in ("a//b", "/a", "a/", "a/../b", "a/.b", ""):
        assert check_path(name), name


def test_a_manifest_has_a_size_at_most() -> None:
    values = b"," * MAX_MANIFEST_VALUES
    pack_manifest(values)
    raw = bytes(MAX_MANIFEST_RAW_BYTES)
    pack_manifest(raw)
    for more in (values + b"[", raw + b"x"):
        with pytest.raises(BundleError) as caught:
            pack_manifest(more)
        assert caught.value.code == "too-large"


# Bundles that are damaged, or made by somebody who means harm.


def test_every_single_bit_flip_of_a_signed_bundle_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("cryptography")
    generate_key(tmp_path / "key")
    cache = tmp_path / "cache"
    cache.mkdir()
    shutil.copy2(min(SMALL.glob("*-cache"), key=lambda p: p.stat().st_size), cache)
    data = bytearray(make_bundle(cache, signers=(read_private_key(tmp_path / "key"),)))
    whole = opened(bytes(data))
    check_signatures(whole, [], required=False)
    passed = []
    for bit in range(len(data) * 8):
        data[bit // 8] ^= 1 << bit % 8
        bundle = replace(whole, file=io.BytesIO(data))
        try:
            if bit // 8 < whole.stream_at:
                bundle = opened(bytes(data))
                check_signatures(bundle, [], required=False)
            verify_bundle(bundle)
            passed.append(bit)
        except (BundleError, UntrustedError):
            pass
        data[bit // 8] ^= 1 << bit % 8
    assert passed == []
    verify_bundle(opened(bytes(data)))


WHOLE = make_bundle(SMALL)


def test_every_truncation_and_every_addition_is_refused() -> None:
    for end in [*range(200), *range(200, len(WHOLE), 97), len(WHOLE) - 1]:
        with pytest.raises(BundleError):
            opened(WHOLE[:end])
    size = len(WHOLE)
    with pytest.raises(BundleError, match=f"be {size} bytes long and is {size + 1}: .*follows"):
        opened(WHOLE + b"x")


Change = Callable[[dict[str, Any]], object]
#: Modules in keys: they lead elsewhere, are hidden, do not print, or are too long.
MODULES = ("../x", "/etc/x", "a/x", ".x", "\x1b[2J", "x\0", "x\udc80", "x" * 190, "é" * 100)
#: What no entry may say.
FACTS: list[dict[str, object]] = [
    *({"key": f"{module}-{'a' * 64}"} for module in MODULES),
    *({"key": "passwd"}, {"key": ""}, {"codec": "pickle"}, {"origin": 1}, {"ledger": 3}),
    *({"payload_bytes": -7}, {"payload_bytes": 7.0}, {"compile_seconds": True}),
    {"payload_sha256": "A" * 64},
]


def say(facts: dict[str, object]) -> Change:
    """Of the entry."""
    return lambda document: document["entries"][0].update(facts)


def bring_along(name: str) -> Change:
    """A side file."""
    file = {"name": name, "size_bytes": 0, "created_ns": 1, "sha256": hashlib.sha256().hexdigest()}
    return lambda document: document["files"].append(file)


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d["entries"].append(forged_entry("jit_f", b"")),  # twice
        lambda d: d["entries"].append(forged_entry("JIT_f", b"")),
        lambda d: d["stream"].update(content_bytes=8),
        lambda d: d.update(origins=[]),
        lambda d: d.update(entries={}),
        lambda d: d.clear(),
        lambda d: d.update(format=2),
        lambda d: d["origins"][0].update(cpu_features=[1]),
        *map(say, FACTS),
        *map(bring_along, (".jaxcache/ledger/1.jsonl", ".lockfile")),
        *map(bring_along, (f"{AUTOTUNE_DIR}/../../x", f"{AUTOTUNE_DIR}/a/b/c/d")),
    ],
)
def test_a_hostile_manifest_is_refused(change: Change) -> None:
    with pytest.raises(BundleError):
        opened(forged(change))


def announce(size: int) -> Change:
    """Of the payload and of the whole stream."""

    def change(document: dict[str, Any]) -> None:
        document["entries"][0]["payload_bytes"] = size
        document["stream"]["content_bytes"] = size

    return change


#: Another digest, another order, a stream that goes on, and two that end early.
OTHER_CONTENT: list[Change] = [
    lambda d: d["entries"][0].update(payload_sha256=hashlib.sha256(b"another").hexdigest()),
    lambda d: d.update(
        entries=[forged_entry("jit_b", b"load", "b"), forged_entry("jit_a", b"pay")]
    ),
    announce(6),
    announce(8),
    announce(1 << 40),
]


@pytest.mark.parametrize("change", OTHER_CONTENT)
def test_a_stream_that_is_not_the_announced_one_is_refused(change: Change) -> None:
    with pytest.raises(BundleError):
        verify_bundle(opened(forged(change)))


def test_manifest_bombs_are_refused_in_little_memory() -> None:
    bomb = zstandard.compress(bytes(150 << 20))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(BundleError):
        opened(pack_header(bomb, 0, 0) + bomb)
    many = zstandard.ZstdCompressor().compress(b"[" + b"[]," * (8 << 20) + b"0]")
    with pytest.raises(BundleError, match="more values"):
        opened(pack_header(many, 0, 0) + many)
    wide, deep, digits = b"[" + b"[]," * (1 << 20) + b"0]", b"[" * 200_000, b"1" * 100_000
    for packed in map(pack_manifest, (wide, deep, b'{"format":' + digits + b"}")):
        with pytest.raises(BundleError):
            opened(pack_header(packed, 0, 0) + packed)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500 << 10


def test_sixteen_signatures_are_read_and_no_more() -> None:
    packed = pack_manifest(encode_manifest(Manifest((), (), (), hashlib.sha256().hexdigest(), 0)))
    most, more = (pack_header(packed, 0, n) + bytes(96 * n) + packed for n in (16, 17))
    assert len(opened(most).signatures) == 16
    with pytest.raises(BundleError, match="more signatures"):
        opened(more)


def test_absurd_headers_are_refused() -> None:
    assert WHOLE[:8] == MAGIC
    for offset, value, reason in (
        *((0, b"PK\3\4", ""), (0, bytes(8), ""), (8, b"\2\0", ""), (10, b"\x11\0", "")),
        *((12, struct.pack("<I", 64 << 20), "cut off"), (15, b"\x80", "larger manifest")),
        (12, struct.pack("<I", (64 << 20) + 1), "larger manifest"),
    ):
        with pytest.raises(BundleError, match=f".*{reason}"):
            opened(WHOLE[:offset] + value + WHOLE[offset + len(value) :])


def test_a_bundle_cannot_call_a_known_format_unknown() -> None:
    frame = memoryview(b"\x28\xb5\x2f\xfd" + bytes(90))
    assert check_unknown_pieces(iter([frame[:2], frame[2:]])) is not None
    assert check_unknown_pieces(iter([memoryview(b"JX"), frame])) is None


class BadSectors(io.BytesIO):
    """A file that can be measured and not read."""

    def read(self, size: int | None = -1) -> bytes:
        raise OSError(errno.EIO, os.strerror(errno.EIO))


def test_a_bundle_on_a_bad_disk_is_an_error_of_its_own() -> None:
    with pytest.raises(BundleError, match=r"^test: input/output error$"):
        read_bundle(BadSectors(WHOLE), "test")
    bundle = replace(opened(WHOLE), file=BadSectors(WHOLE))
    with pytest.raises(BundleError, match=r"test: .*Input/output error"):
        verify_bundle(bundle)
