"""An entry on its way to XLA: whole, of a believable size, vouched for, of its key's module."""

import random
import zlib
from pathlib import Path

import pytest
import zstandard
from conftest import CORPUS

from jaxcache.live import frame

#: Compresses to literals, matches and a table of each kind, as an executable does.
CONTENT = b"\0\0\0\1" + b"".join(
    random.Random(1).choice([b"fusion.%d " % (n % 7), b"parameter(0)", bytes([n % 251, n % 13])])
    for n in range(600)
)
SEALED = zstandard.ZstdCompressor(write_checksum=True).compress(CONTENT)
#: As JAX writes it, without a checksum.
PLAIN = zstandard.ZstdCompressor().compress(CONTENT)


@pytest.mark.parametrize("entry", [SEALED, zlib.compress(CONTENT)], ids=["zstd", "zlib"])
def test_a_frame_with_a_flipped_bit_is_refused_or_holds_the_same_content(entry: bytes) -> None:
    """A codec leaves some bits unused and has two spellings of one thing; the checksum tells."""
    same = 0
    for bit in range(8 * len(entry)):
        damaged = bytearray(entry)
        damaged[bit // 8] ^= 1 << bit % 8
        try:
            decoded = frame.decode(bytes(damaged))
        except frame.DamagedEntryError:
            continue
        assert decoded == (CONTENT, True), f"bit {bit}"
        same += 1
    assert same < 0.02 * 8 * len(entry)


@pytest.mark.parametrize(
    "entry", [SEALED, PLAIN, zlib.compress(CONTENT)], ids=["zstd", "plain", "zlib"]
)
def test_a_frame_that_is_cut_or_followed_by_bytes_is_refused(entry: bytes) -> None:
    assert frame.decode(entry).content == CONTENT
    for length in range(len(entry)):
        with pytest.raises(frame.DamagedEntryError):
            frame.decode(entry[:length])
    skippable = b"\x50\x2a\x4d\x18\x04\0\0\0seal"
    for damaged in (entry + b"\0", entry + skippable, skippable + entry, entry + entry):
        with pytest.raises(frame.DamagedEntryError):
            frame.decode(damaged)


def test_a_frame_without_a_checksum_is_known_as_unsealed_and_can_be_sealed() -> None:
    assert frame.decode(PLAIN) == (CONTENT, False)
    assert frame.decode(frame.add_checksum(PLAIN, CONTENT)) == (CONTENT, True)
    assert zstandard.decompress(frame.add_checksum(PLAIN, CONTENT)) == CONTENT


@pytest.mark.parametrize("content", [b"", bytes(3), bytes(4)])
def test_a_frame_without_an_executable_is_refused(content: bytes) -> None:
    for entry in (zstandard.compress(content), zlib.compress(content)):
        with pytest.raises(frame.DamagedEntryError):
            frame.decode(entry)


def test_content_beyond_a_limit_is_refused() -> None:
    for entry in (PLAIN, zlib.compress(CONTENT)):
        assert frame.decode(entry, len(CONTENT)).content == CONTENT
        with pytest.raises(frame.DamagedEntryError):
            frame.decode(entry, len(CONTENT) - 1)


@pytest.mark.parametrize(
    "entry", [b"", b"entry", b"\x78", zstandard.MAGIC_NUMBER.to_bytes(4, "little")]
)
def test_what_is_no_frame_is_refused(entry: bytes) -> None:
    with pytest.raises(frame.DamagedEntryError):
        frame.decode(entry)
    with pytest.raises(frame.DamagedEntryError):
        frame.read_header(entry)


@pytest.mark.parametrize("entry", [PLAIN, zlib.compress(CONTENT)], ids=["zstd", "zlib"])
def test_the_compile_seconds_are_read_from_the_start(entry: bytes) -> None:
    assert frame.read_header(entry) == frame.read_header(entry[:400]) == 1


def test_entries_of_one_executable_may_differ_in_their_seconds() -> None:
    later = zlib.compress(b"\0\0\0\2" + CONTENT[4:])
    assert frame.same_payload(PLAIN, later)
    assert not frame.same_payload(PLAIN, zlib.compress(CONTENT + b"x"))
    assert not frame.same_payload(PLAIN, b"") and not frame.same_payload(b"", b"")


# The module of a key.


def corpus_entries() -> list[Path]:
    return sorted(CORPUS.glob("*/*-cache"))


def test_the_module_of_real_entries_is_read() -> None:
    """Of every corpus, but for executables that are compressed once more (GPU constants)."""
    names = {p: frame.module_name(frame.decode(p.read_bytes()).content) for p in corpus_entries()}
    assert len(names) > 20
    assert all(p.name.startswith(f"{name}-") for p, name in names.items() if name)
    assert sum(not name for name in names.values()) <= len(names) // 20


def test_another_module_under_a_key_is_refused() -> None:
    first, second, *_ = corpus_entries()
    frame.open_entry(first.name.removesuffix("-cache"), first.read_bytes(), is_foreign=True)
    with pytest.raises(frame.DamagedEntryError, match="module"):
        frame.open_entry(first.name.removesuffix("-cache"), second.read_bytes(), is_foreign=True)


def test_a_bomb_of_a_tier_is_refused_by_what_it_announces() -> None:
    bomb = zstandard.ZstdCompressor(write_checksum=True).compress(bytes(300 << 20))
    key = "jit_f-" + "a" * 64
    with pytest.raises(frame.DamagedEntryError, match="content size"):
        frame.open_entry(key, bomb, is_foreign=True)
    assert len(frame.open_entry(key, bomb, is_foreign=False).content) == 300 << 20
