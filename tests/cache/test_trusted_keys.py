"""The list of trusted keys, and private keys, as files."""

import errno
import fcntl
import threading
from pathlib import Path

import pytest

from jaxcache.cache.trust import (
    TrustedKey,
    add_trusted,
    changing_alone,
    load_trusted,
    parse_public_key,
    public_key_text,
    read_private_key,
    remove_trusted,
)
from jaxcache.core.signing import TRUSTED_KEYS
from jaxcache.errors import JaxcacheError, UntrustedError, UsageError

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
    with pytest.raises(JaxcacheError, match="no key is trusted as ci"):
        remove_trusted(directory, "ci")


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
        parse_public_key(text)
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
