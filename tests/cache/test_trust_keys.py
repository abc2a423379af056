"""The list of trusted keys, private keys as files, and signatures of single entries."""

import errno
import fcntl
import json
import threading
import tracemalloc
from pathlib import Path

import pytest

from jaxcache.cache.trust import (
    TrustedKey,
    add_trusted,
    changing_alone,
    load_signed,
    load_trusted,
    parse_key,
    public_key_text,
    read_private_key,
    remove_trusted,
    write_signatures,
)
from jaxcache.core.signing import SIGNATURES_DIR, TRUSTED_KEYS
from jaxcache.errors import UntrustedError, UsageError
from jaxcache.store.local import LocalStore

ONE, TWO = bytes(range(32)), bytes(32)


def test_keys_are_listed_by_the_names_given_to_them(tmp_path: Path) -> None:
    assert load_trusted(tmp_path) == []
    directory = tmp_path / "config"
    add_trusted(directory, "ci", public_key_text(ONE))
    add_trusted(directory, "me@home", public_key_text(TWO))
    assert load_trusted(directory) == [TrustedKey("ci", ONE), TrustedKey("me@home", TWO)]
    with pytest.raises(UsageError, match="another key is trusted as ci"):
        add_trusted(directory, "ci", public_key_text(TWO))
    assert remove_trusted(directory, "ci") == TrustedKey("ci", ONE)
    assert load_trusted(directory) == [TrustedKey("me@home", TWO)]


def test_two_changes_at_once_keep_both_keys_without_flock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOTSUP, "flock")

    monkeypatch.setattr(fcntl, "flock", refuse)
    path = tmp_path / TRUSTED_KEYS
    other = threading.Thread(target=add_trusted, args=(tmp_path, "two", public_key_text(TWO)))
    with changing_alone(path) as replace:
        other.start()
        other.join(0.5)
        replace([f"{public_key_text(ONE)} one\n".encode()])
    other.join()
    assert load_trusted(tmp_path) == [TrustedKey("one", ONE), TrustedKey("two", TWO)]


def test_lines_that_are_no_keys_do_not_count(tmp_path: Path) -> None:
    good = f"{public_key_text(ONE)} ci"
    lines = ["# a note", "", public_key_text(TWO), f"{public_key_text(TWO)} a/b", "junk x", good]
    (tmp_path / TRUSTED_KEYS).write_text("\n".join(lines))
    assert load_trusted(tmp_path) == [TrustedKey("ci", ONE)]


def test_a_list_that_would_be_cut_off_is_refused(tmp_path: Path) -> None:
    line = f"{public_key_text(ONE)} ci\n".encode()
    path = tmp_path / TRUSTED_KEYS
    path.write_bytes(line.rjust(1 << 20, b"#"))
    add_trusted(tmp_path, "more", public_key_text(TWO))
    path.write_bytes(line.rjust((1 << 20) + 1, b"#"))
    with pytest.raises(UntrustedError, match="larger than 1048576 bytes"):
        add_trusted(tmp_path, "more", public_key_text(TWO))
    assert path.stat().st_size == (1 << 20) + 1


@pytest.mark.parametrize("text", ["", "jaxcache-ed25519", "AAAA", "!" * 44, "é" * 44])
def test_what_is_no_key_is_refused(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_key(text)
    assert caught.value.code == "bad-key"


def test_a_private_key_is_a_file_of_its_owner(tmp_path: Path) -> None:
    path = tmp_path / "key"
    for data in (b"\xff\xfe", b"", b"jaxcache-ed25519-private AAAA"):
        path.write_bytes(data)
        path.chmod(0o600)
        pytest.importorskip("cryptography")
        with pytest.raises(UsageError, match="not a key"):
            read_private_key(path)
    path.chmod(0o640)
    with pytest.raises(UntrustedError, match="others may read"):
        read_private_key(path)
    for none in (tmp_path / "none", tmp_path):
        with pytest.raises(UsageError, match="cannot read the key"):
            read_private_key(none)


# Signatures of single entries: of as many as there may be, and of nothing that was not signed.


ed25519 = pytest.importorskip("cryptography.hazmat.primitives.asymmetric.ed25519")
KEY = ed25519.Ed25519PrivateKey.generate()
ME = TrustedKey("me", KEY.public_key().public_bytes_raw())


def test_a_cache_of_any_size_can_be_signed(tmp_path: Path) -> None:
    module = "jit_" + "x" * 180
    digests = {f"{module}-{n:064x}-cache": f"{n:064x}" for n in range(110_000)}
    store = LocalStore(tmp_path)
    write_signatures(store, digests, [KEY], now_ns=1)
    assert load_signed(store, [ME]) == {name: {digest} for name, digest in digests.items()}


@pytest.mark.parametrize("end", ["\r", "\x0b", "\x1c", "\x85", "\u2028"])
def test_no_name_has_another_file_signed(tmp_path: Path, end: str) -> None:
    store = LocalStore(tmp_path)
    hostile = f"jit_x{end}{'e' * 64} jit_f-{'0' * 64}-cache"
    write_signatures(store, {hostile: "1" * 64}, [KEY], now_ns=1)
    assert load_signed(store, [ME]) == {hostile: {"1" * 64}}


@pytest.mark.parametrize("spoil", ["signed", "signatures", "public_key", "format", "cut", "deep"])
def test_what_was_changed_counts_for_nothing(tmp_path: Path, spoil: str) -> None:
    other = ed25519.Ed25519PrivateKey.generate()
    store = LocalStore(tmp_path)
    write_signatures(store, {"a-cache": "0" * 64}, [other, KEY], now_ns=1)
    (path,) = (tmp_path / SIGNATURES_DIR).iterdir()
    document = json.loads(path.read_text())
    assert load_signed(store, [ME]) == {"a-cache": {"0" * 64}}
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
    assert load_signed(store, [ME]) == {}


def test_millions_of_values_are_not_parsed(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    directory = tmp_path / SIGNATURES_DIR
    directory.mkdir(parents=True)
    (directory / "1").write_text(f"[{'[],' * 1_000_000}[]]")
    tracemalloc.start()
    try:
        assert load_signed(store, [ME]) == {}
        assert tracemalloc.get_traced_memory()[1] < 40 << 20  # a buffer of the most that is read
    finally:
        tracemalloc.stop()
