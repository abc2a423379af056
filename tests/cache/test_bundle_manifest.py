"""A manifest is believed in nothing: names stay in the cache, and sizes are bounded."""

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxcache.cache.archive import MAX_MANIFEST_VALUES
from jaxcache.cache.bundle.format import (
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
    pack_manifest,
)
from jaxcache.entry.names import FileKind, split_name

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
    assert decode_manifest(encode_manifest(MANIFEST)) == MANIFEST


def test_names_are_as_long_as_a_file_system_takes() -> None:
    directory = "xla_gpu_per_fusion_autotune_cache_dir"
    for name, long in (("é" * 127 + "a", False), ("é" * 128, True)):
        assert (check_file_name(name) is not None) == long
        assert is_side_file(f"{directory}/{name}") == (not long)


def places(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of every value inside."""
    inner = value.items() if isinstance(value, dict) else enumerate(value)
    found = [at]
    for name, one in inner:
        found += places(one, (*at, name)) if isinstance(one, dict | list) else [(*at, name)]
    return found


PLACES = [p for p in places(DOCUMENT) if p]


@settings(max_examples=400)
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
    names = [i.file for i in manifest.items]
    for name in names:
        assert split_name(name)[0] in (FileKind.ENTRY, FileKind.LEGACY_ENTRY)
        assert "/" not in name
        assert len(name.encode()) <= 255
    for item in manifest.items:
        assert 0 <= item.compile_seconds < 1 << 31
        assert (item.atime_ns or 0).to_bytes(8, "little")
        assert manifest.origin_of(item)
    for file in manifest.files:
        assert split_name(file.name)[0] in (FileKind.KERNEL_CACHE, FileKind.AUTOTUNE)
    assert decode_manifest(encode_manifest(manifest)) == manifest


@settings(max_examples=200)
@given(st.binary(max_size=300) | VALUES.map(lambda v: json.dumps(v).encode()))
def test_anything_else_is_refused(data: bytes) -> None:
    try:
        decode_manifest(data)
    except BundleError:
        return
    raise AssertionError(data)


@pytest.mark.parametrize(
    ("kind", "field", "bits"),
    [
        ("entries", "compile_seconds", 31),
        ("entries", "size_bytes", 48),
        ("entries", "created_ns", 63),
        ("entries", "atime_ns", 63),
        ("files", "created_ns", 63),
    ],
)
def test_numbers_have_bounds(kind: str, field: str, bits: int) -> None:
    def read(value: int) -> Manifest:
        document = json.loads(json.dumps(DOCUMENT))
        document[kind][0][field] = value
        return decode_manifest(json.dumps(document).encode())

    assert (
        getattr(getattr(read((1 << bits) - 1), {"entries": "items"}.get(kind, kind))[0], field)
        == (1 << bits) - 1
    )
    with pytest.raises(BundleError, match=f"{field} of .* is invalid"):
        read(1 << bits)


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


def test_the_layout_is_said_where_it_is_not_jaxs() -> None:
    assert "layout" not in DOCUMENT  # as bundles were before there was another
    torch = replace(
        MANIFEST, items=(), files=(SideFile("a/b.bin", 10, "2" * 64, 9),), layout="torch"
    )
    assert decode_manifest(encode_manifest(torch)) == torch


def test_an_invalid_value_is_named_with_its_rule() -> None:
    document = json.loads(json.dumps(DOCUMENT))
    document["entries"][0]["size_bytes"] = -1
    with pytest.raises(BundleError, match=r"size_bytes of entries .* 0 to 281474976710655 .*-1"):
        decode_manifest(json.dumps(document).encode())
    del document["entries"][0]["size_bytes"]
    with pytest.raises(BundleError, match="size_bytes of entries is invalid: it is missing"):
        decode_manifest(json.dumps(document).encode())
