"""The outer layer: real entries, every way to damage them, hostile frames, and sealed ones."""

import contextlib
import io
import random
import struct
import tracemalloc
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxcache.entry import zstd
from jaxcache.entry.codec import (
    HEAD_BYTES,
    CodecError,
    add_checksum,
    check_frame,
    check_small,
    compress_content,
    decompress_chunks,
    decompress_whole,
    detect_codec,
    read_entry_header,
    seal_entry,
    seal_frame,
)
from jaxcache.entry.decode import read_payload


def decompress(data: bytes) -> bytes:
    return b"".join(decompress_chunks(io.BytesIO(data), len(data)))


def kind_of(data: bytes) -> str:
    with pytest.raises(CodecError) as caught:
        decompress(data)
    return caught.value.kind


def entry_bytes(seconds: int, payload: bytes, codec: str = "zstd", checksum: bool = False) -> bytes:
    content = struct.pack(">i", seconds) + payload
    if codec == "zlib":
        return zlib.compress(content)
    return zstandard.ZstdCompressor(write_checksum=checksum).compress(content)


def test_every_entry_of_every_generation_reads_and_is_sealed_with_its_own_blocks(
    corpus: Path,
) -> None:
    paths = sorted(corpus.glob("*/*-cache"))
    assert len(paths) > 60
    for path in paths:
        data = path.read_bytes()
        whole = decompress(data)
        head = read_entry_header(data, len(data))
        assert head.compile_seconds == int.from_bytes(whole[:4], "big")
        assert head.content_bytes in (None, len(whole))
        assert head.checksum == (head.codec == "zlib") == path.parent.name.endswith("zlib")
        if head.checksum:
            assert whole == zlib.decompress(data)
            continue
        sealed = seal_entry(data)
        assert (sealed[:4], sealed[4], sealed[5:-4]) == (data[:4], data[4] | 4, data[5:])
        # JAX decompresses like this, which checks the checksum.
        for frame in (data, sealed):
            assert zstandard.ZstdDecompressor().decompress(frame) == whole


def test_every_truncation_and_every_extension_is_found(corpus: Path) -> None:
    for path in (
        next((corpus / "0.12.0.1-cpu-zstd").glob("jit_mlp*")),
        next((corpus / "0.4.38-cpu-zlib").glob("jit_mlp*-cache")),
    ):
        data = path.read_bytes()
        assert kind_of(b"") == "empty"
        for length in range(1, len(data), 7):
            assert kind_of(data[:length]) in ("truncated", "bad-codec")
        assert kind_of(data + b"\0") == "trailing-bytes"
        assert kind_of(data + data) == "trailing-bytes"


@settings(max_examples=150)
@given(
    st.binary(min_size=1, max_size=300), st.sampled_from([b"", b"\x28\xb5\x2f\xfd", b"\x78\x9c"])
)
def test_rubbish_is_a_codec_error_or_content(rubbish: bytes, start: bytes) -> None:
    data = start + rubbish
    for read in (decompress, lambda d: read_entry_header(d, len(d))):
        try:
            read(data)
        except CodecError as error:
            assert error.detail


def test_an_announced_gigabyte_is_refused_before_it_is_allocated() -> None:
    # Magic, single segment with an 8-byte content size, then one RLE block.
    bomb = b"\x28\xb5\x2f\xfd\xe0" + struct.pack("<Q", 1 << 40) + b"\x03\x00\x04\x00"
    tracemalloc.start()
    assert kind_of(bomb) == "bad-codec"
    with pytest.raises(CodecError):
        read_entry_header(bomb, len(bomb))
    assert tracemalloc.get_traced_memory()[1] < 1_000_000
    tracemalloc.stop()


@pytest.mark.parametrize("codec", ["zstd", "zlib"])
def test_a_bomb_streams_in_bounded_memory(codec: str) -> None:
    bomb = entry_bytes(0, bytes(16_000_000), codec)
    assert len(bomb) < 25_000
    tracemalloc.start()
    assert sum(map(len, decompress_chunks(io.BytesIO(bomb), len(bomb)))) == 16_000_004
    assert tracemalloc.get_traced_memory()[1] < 8_000_000
    tracemalloc.stop()


@pytest.mark.parametrize(
    ("data", "kind", "detail"),
    [
        (entry_bytes(-1, b"x"), "bad-header", "compile time of -1 s"),
        (zstandard.ZstdCompressor().compress(b"abc"), "bad-header", "holds 3 bytes, less than"),
        (entry_bytes(3, b"payload" * 100)[:15], "truncated", "inside the first zstd block"),
        (zlib.compress(b"abc"), "truncated", "inside the header"),
    ],
)
def test_a_header_that_cannot_be_read_is_named(data: bytes, kind: str, detail: str) -> None:
    with pytest.raises(CodecError, match=detail) as caught:
        read_entry_header(data, len(data))
    assert caught.value.kind == kind


def test_the_frame_walk_needs_no_decompression(corpus: Path) -> None:
    data = bytearray(next((corpus / "0.12.0.1-cpu-zstd").glob("jit_bigconst*")).read_bytes())
    data[len(data) // 2] ^= 0xFF  # damage that only decompression could notice
    check_frame(io.BytesIO(bytes(data)), len(data))


def test_a_first_block_beyond_the_head_is_said_so(corpus: Path) -> None:
    data = next((corpus / "0.10.2-cpu-zstd").glob("jit_bigconst*")).read_bytes()
    assert len(data) > HEAD_BYTES
    assert read_entry_header(data[:HEAD_BYTES], len(data)).compile_seconds is None
    assert read_entry_header(data, len(data)).compile_seconds == 0


@pytest.mark.parametrize("codec", ["announced", "zstd", "zlib"])
def test_an_entry_of_exactly_the_limit_is_decompressed_and_one_byte_more_is_not(codec: str) -> None:
    content = bytes(4) + b"payload" * 100
    compressor = zstandard.ZstdCompressor(write_content_size=codec == "announced")
    data = zlib.compress(content) if codec == "zlib" else compressor.compress(content)
    assert decompress_whole(data, limit=len(content)) == content
    assert decompress_whole(data, limit=len(content) - 1) is None
    assert read_payload(io.BytesIO(data), len(data), limit=len(content) - 4) == content[4:]
    with pytest.raises(CodecError, match=f"inflate to more than {len(content) - 5}"):
        read_payload(io.BytesIO(data), len(data), limit=len(content) - 5)


@pytest.mark.parametrize(("window", "refused"), [(0x88, False), (0x89, True), (0x90, True)])
def test_the_largest_window_is_that_of_the_zstd_command(window: int, refused: bool) -> None:
    # Magic, no content size, the window's exponent and mantissa, one raw block of five bytes.
    data = b"\x28\xb5\x2f\xfd\x00" + bytes([window]) + b"\x29\x00\x00" + b"\0\0\0\1x"
    if refused:
        with pytest.raises(CodecError, match="wants a window"):
            read_entry_header(data, len(data))
    else:
        assert read_entry_header(data, len(data)).compile_seconds == 1
        assert decompress(data) == b"\0\0\0\1x"


@pytest.mark.parametrize(("beyond", "reason"), [(0, "corruption"), (1, "cannot hold")])
def test_no_more_is_believed_than_blocks_can_hold(beyond: int, reason: str) -> None:
    block = b"\x03\x00\x10\x00"  # the last one: 128 KiB of one byte
    announced = struct.pack("<Q", 17 * 32768 + beyond)
    with pytest.raises(CodecError, match=reason):
        read_entry_header(b"\x28\xb5\x2f\xfd\xe0" + announced + block, 17)


def other(data: bytes, at: int) -> bytes:
    """The same with another last bit of one byte."""
    changed = bytearray(data)
    changed[at] ^= 1
    return bytes(changed)


@pytest.mark.parametrize(
    ("data", "kind", "small"),
    [
        (entry_bytes(3, b"payload", checksum=True), None, True),
        (entry_bytes(3, b"payload"), None, False),
        (entry_bytes(3, b"payload", "zlib"), None, None),
        (zstandard.ZstdCompressor(write_content_size=False).compress(bytes(9)), None, None),
        (entry_bytes(3, bytes(4 << 20)), None, None),
        (entry_bytes(3, bytes((4 << 20) - 4)), None, False),
        (entry_bytes(-1, b"payload"), "bad-header", None),
        (zstandard.ZstdCompressor(write_content_size=False).compress(b"abc"), "bad-header", None),
        (zlib.compress(b"abc"), "bad-header", None),
        (b"", "empty", None),
        (b"neither", "bad-codec", None),
        (b"x", "truncated", None),
        (b"(neither", "bad-codec", None),
        (entry_bytes(3, b"payload")[:-1], "truncated", None),
        (entry_bytes(3, b"payload") + b"x", "trailing-bytes", None),
        (entry_bytes(3, b"payload", checksum=True) + b"x", "trailing-bytes", None),
        (entry_bytes(3, b"payload", "zlib")[:-1], "truncated", None),
        (entry_bytes(3, b"payload", "zlib") + b"x", "trailing-bytes", None),
        (other(entry_bytes(3, b"payload", checksum=True), -1), "checksum-mismatch", None),
        (other(entry_bytes(3, b"payload", "zlib"), -1), "checksum-mismatch", None),
        # A single segment, its size in one byte, lies about that.
        (other(entry_bytes(3, b"x" * 199), 5), "bad-codec", None),
        (other(entry_bytes(3, b"x" * 200), 5), "bad-codec", None),
    ],
)
def test_a_small_check_agrees(data: bytes, kind: str | None, small: bool | None) -> None:
    with pytest.raises(CodecError) if kind else contextlib.nullcontext() as caught:
        decompress_whole(data, limit=8 << 20)
    assert (caught and caught.value.kind) == kind
    assert kind in (None, "bad-header") or kind_of(data) == kind
    assert check_small(data) is small


@pytest.mark.parametrize(
    ("data", "kind", "detail"),
    [
        (b"\x28\xb5\x2f\xfd\x00\x58\x06\x00\x00", "bad-codec", "reserved block type at byte 6"),
        (b"\x28\xb5\x2f\xfd\x00\x58\x06\x00", "truncated", "ends at byte 8, inside a zstd block"),
        (b"\x28\xb5\x2f\xfd\x04\x58\x01\x00\x00abc", "truncated", "inside the content checksum"),
        (b"\x28\xb5\x2f\xfd\x04\x58\x01\x00\x00abcde", "trailing-bytes", "1 bytes follow"),
        (b"\x28\xb5\x2f\xfd" + b"\x08" * 13, "truncated", "zstd frame header"),
        (b"\x28\xb5\x2f\xfd" + b"\x08" * 14, "bad-codec", "zstd frame header"),
        (b"neither", "bad-codec", "starts with 6e656974, neither zstd nor zlib"),
    ],
)
def test_what_is_wrong_with_a_frame_is_said(data: bytes, kind: str, detail: str) -> None:
    with pytest.raises(CodecError) as caught:
        check_frame(io.BytesIO(data), len(data))
    assert (caught.value.kind, detail in caught.value.detail) == (kind, True), caught.value.detail


def test_only_zlib_of_a_full_window_is_zlib() -> None:
    for start in (b"\x78\x01", b"\x78\x9c", b"\x78\xda"):
        assert detect_codec(start) == "zlib"
    for start in (b"\x78", b"\x78\x9d", b"\x68\x81", b"", b"\x28\xb5\x2f"):
        assert detect_codec(start) == "unknown"


@pytest.mark.parametrize("copies", [2, 4, 6, 8, 10, 12])
def test_a_stream_goes_on_where_a_piece_of_it_ends_with_a_piece_of_its_content(copies: int) -> None:
    """There the decoder gives nothing once, before it asks for more input."""
    generator = random.Random(copies)
    lines = [generator.randbytes(64) * copies for _ in range(60_000 // copies)]
    content = b"".join(lines)
    for level in (1, 3):
        entry = zstd.compress(content, level)
        assert len(entry) > 1 << 18
        assert decompress(entry) == content


# Sealed frames: the same content, and no single-bit flip yields another one silently.


#: The smallest entry of a CPU and of a GPU.
_SMALL = ["0.10.2-cpu-zstd/jit__fun-*-cache", "0.10.2-cuda13-h200-kernelcache/jit_sharded_sum-*"]

contents = st.one_of(
    st.binary(min_size=4, max_size=300), st.binary(min_size=4).map(lambda b: b * 99)
)
contents = contents.map(lambda b: b"\0" + b[1:])


@given(contents)
def test_a_checksum_is_added_without_compressing_anew(content: bytes) -> None:
    frame = zstandard.ZstdCompressor().compress(content)  # as JAX writes it
    sealed = b"".join(add_checksum(frame, content[:4], content[4:]))
    assert (sealed[:4], sealed[4], sealed[5:-4]) == (frame[:4], frame[4] | 4, frame[5:])
    assert seal_entry(frame) == sealed
    assert zstandard.decompress(sealed) == content
    assert add_checksum(sealed, content) == (sealed,)
    with pytest.raises(zstandard.ZstdError, match="checksum"):
        zstandard.decompress(sealed[:-1] + bytes([sealed[-1] ^ 1]))


def test_a_sealed_entry_is_returned_and_a_truncated_one_refused(corpus: Path) -> None:
    (path,) = corpus.glob(_SMALL[0])
    frame = path.read_bytes()
    for entry in (seal_entry(frame), zlib.compress(b"\0\0\0\1 an executable")):
        assert seal_entry(entry) is entry
    for length in (5, len(frame) // 2, len(frame) - 1):
        with pytest.raises(CodecError):
            seal_entry(frame[:length])


def test_the_smaller_of_both_frames_is_taken() -> None:
    content = b"".join(b"%d" % n for n in range(5000))
    frame = zstandard.ZstdCompressor(level=1).compress(content)
    assert seal_frame(frame, content, None) == b"".join(add_checksum(frame, content))
    assert len(seal_frame(frame, content, 19)) < len(frame)
    best = seal_frame(frame, content, 19)
    assert seal_frame(best, content, 1) == best


def test_zlib_stays_zlib() -> None:
    content = bytes(5000)
    frame = zlib.compress(content, 1)
    sealed = seal_frame(frame, content, 19)
    assert zlib.decompress(sealed) == content and len(sealed) <= len(frame)
    assert compress_content(content, "zlib", 9)[0] == 0x78


def silent_flips(frame: bytes) -> Iterator[int]:
    """Flip each bit in turn; yield those whose flip gives other content without an error."""
    before = b"".join(decompress_chunks(io.BytesIO(frame), len(frame)))
    damaged = bytearray(frame)
    for bit in range(8 * len(frame)):
        damaged[bit >> 3] ^= 1 << (bit & 7)
        with contextlib.suppress(zstandard.ZstdError, MemoryError):
            # As JAX does it (jax/_src/compilation_cache.py, decompress_executable).
            if zstandard.ZstdDecompressor().decompress(bytes(damaged)) != before:
                yield bit
        damaged[bit >> 3] ^= 1 << (bit & 7)


@pytest.mark.parametrize("pattern", [_SMALL[0], pytest.param(_SMALL[1], marks=pytest.mark.slow)])
def test_no_flip_of_a_sealed_entry_is_silent(corpus: Path, pattern: str) -> None:
    (path,) = corpus.glob(pattern)
    frame = path.read_bytes()
    assert list(silent_flips(seal_frame(frame, zstandard.decompress(frame), 19))) == []
    assert any(silent_flips(frame)), "without the checksum, many are"
