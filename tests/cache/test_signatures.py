"""Signatures of single entries: of as many as there may be, and of nothing that was not signed."""

import json
import tracemalloc
from pathlib import Path

import pytest

from jaxcache.cache.trust import TrustedKey, load_signed, write_signatures
from jaxcache.core.signing import SIGNATURES_DIR
from jaxcache.store.local import LocalStore

ed25519 = pytest.importorskip("cryptography.hazmat.primitives.asymmetric.ed25519")


def test_a_cache_of_any_size_can_be_signed(tmp_path: Path) -> None:
    key = ed25519.Ed25519PrivateKey.generate()
    me = TrustedKey("me", key.public_key().public_bytes_raw())
    module = "jit_" + "x" * 180
    digests = {f"{module}-{n:064x}-cache": f"{n:064x}" for n in range(110_000)}
    store = LocalStore(tmp_path)
    write_signatures(store, digests, [key], now_ns=1)
    assert load_signed(store, [me]) == {name: {digest} for name, digest in digests.items()}


@pytest.mark.parametrize("end", ["\r", "\x0b", "\x1c", "\x85", "\u2028"])
def test_no_name_has_another_file_signed(tmp_path: Path, end: str) -> None:
    key = ed25519.Ed25519PrivateKey.generate()
    me = TrustedKey("me", key.public_key().public_bytes_raw())
    store = LocalStore(tmp_path)
    hostile = f"jit_x{end}{'e' * 64} jit_f-{'0' * 64}-cache"
    write_signatures(store, {hostile: "1" * 64}, [key], now_ns=1)
    assert load_signed(store, [me]) == {hostile: {"1" * 64}}


@pytest.mark.parametrize("spoil", ["signed", "signatures", "public_key", "format", "cut", "deep"])
def test_what_was_changed_counts_for_nothing(tmp_path: Path, spoil: str) -> None:
    key, other = (ed25519.Ed25519PrivateKey.generate() for _ in range(2))
    me = TrustedKey("me", key.public_key().public_bytes_raw())
    store = LocalStore(tmp_path)
    write_signatures(store, {"a-cache": "0" * 64}, [other, key], now_ns=1)
    (path,) = (tmp_path / SIGNATURES_DIR).iterdir()
    document = json.loads(path.read_text())
    assert load_signed(store, [me]) == {"a-cache": {"0" * 64}}
    if spoil == "signed":
        document["signed"] = document["signed"].replace("a-cache", "b-cache")
    elif spoil == "signatures":
        document["signatures"] = document["signatures"][:1]
    elif spoil == "public_key":
        document["signatures"][0]["public_key"] = document["signatures"][1]["public_key"]
        del document["signatures"][1]
    elif spoil == "format":
        document = [document]
    text = json.dumps(document)
    if spoil == "cut":
        text = text[:-5]
    elif spoil == "deep":
        text = "[" * 100_000
    path.write_text(text)
    assert load_signed(store, [me]) == {}


def test_millions_of_values_are_not_parsed(tmp_path: Path) -> None:
    me = TrustedKey("me", ed25519.Ed25519PrivateKey.generate().public_key().public_bytes_raw())
    store = LocalStore(tmp_path)
    directory = tmp_path / SIGNATURES_DIR
    directory.mkdir(parents=True)
    (directory / "1").write_text(f"[{'[],' * 1_000_000}[]]")
    tracemalloc.start()
    try:
        assert load_signed(store, [me]) == {}
        assert tracemalloc.get_traced_memory()[1] < 40 << 20  # a buffer of the most that is read
    finally:
        tracemalloc.stop()
