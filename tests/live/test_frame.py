"""The frame of an entry: whatever is damaged, what it decodes to is right, or it is refused."""

import random
import zlib

import pytest
import zstandard

from jaxcache.live.frame import DamagedEntryError, decode

#: Compresses to literals, matches and a table of each kind, as an executable does.
CONTENT = b"\0\0\0\1" + b"".join(
    random.Random(1).choice([b"fusion.%d " % (n % 7), b"parameter(0)", bytes([n % 251, n % 13])])
    for n in range(600)
)
SEALED = zstandard.ZstdCompressor(write_checksum=True).compress(CONTENT)


@pytest.mark.parametrize("entry", [SEALED, zlib.compress(CONTENT)], ids=["zstd", "zlib"])
def test_a_frame_with_a_flipped_bit_is_refused_or_holds_the_same_content(entry: bytes) -> None:
    """A codec leaves some bits unused and has two spellings of one thing; the checksum tells."""
    same = 0
    for bit in range(8 * len(entry)):
        damaged = bytearray(entry)
        damaged[bit // 8] ^= 1 << bit % 8
        try:
            decoded = decode(bytes(damaged))
        except DamagedEntryError:
            continue
        assert decoded == (CONTENT, True), f"bit {bit}"
        same += 1
    assert same < 0.02 * 8 * len(entry)


@pytest.mark.parametrize("entry", [SEALED, zlib.compress(CONTENT)], ids=["zstd", "zlib"])
def test_a_frame_that_is_cut_or_followed_by_bytes_is_refused(entry: bytes) -> None:
    assert decode(entry) == (CONTENT, True)
    for length in range(len(entry)):
        with pytest.raises(DamagedEntryError):
            decode(entry[:length])
    skippable = b"\x50\x2a\x4d\x18\x04\0\0\0seal"
    for damaged in (entry + b"\0", entry + skippable, skippable + entry, entry + entry):
        with pytest.raises(DamagedEntryError):
            decode(damaged)


def test_a_frame_without_a_checksum_is_known_as_unsealed() -> None:
    assert decode(zstandard.ZstdCompressor().compress(CONTENT)) == (CONTENT, False)
