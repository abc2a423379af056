"""Sealed frames: the same content, and no single-bit flip yields another one silently."""

import contextlib
import io
import zlib
from pathlib import Path

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from jaxcache.entry.codec import (
    CodecError,
    add_checksum,
    compress_content,
    decompress_chunks,
    decompress_whole,
    seal_entry,
    seal_frame,
)

#: The smallest entry of a CPU and of a GPU.
_SMALL = ["0.10.2-cpu-zstd/jit__fun-*-cache", "0.10.2-cuda13-h200-kernelcache/jit_sharded_sum-*"]

contents = st.one_of(
    st.binary(min_size=4, max_size=300), st.binary(min_size=4).map(lambda b: b * 99)
)
contents = contents.map(lambda b: b"\0" + b[1:])


def as_jax_writes(content: bytes) -> bytes:
    return zstandard.ZstdCompressor().compress(content)


@given(contents, st.integers(1, 22))
def test_the_content_stays(content: bytes, level: int) -> None:
    frame = as_jax_writes(content)
    sealed = seal_frame(frame, content, level)
    assert zstandard.decompress(sealed) == content
    assert zstandard.get_frame_parameters(sealed).has_checksum
    assert len(sealed) <= len(frame) + 4
    assert decompress_whole(sealed, limit=len(content)) == content


@given(contents)
def test_a_checksum_is_added_without_compressing_anew(content: bytes) -> None:
    frame = as_jax_writes(content)
    sealed = b"".join(add_checksum(frame, content[:4], content[4:]))
    assert sealed[5:-4] == frame[5:]
    assert zstandard.decompress(sealed) == content
    assert add_checksum(sealed, content) == (sealed,)
    wrong = sealed[:-1] + bytes([sealed[-1] ^ 1])
    with pytest.raises(zstandard.ZstdError, match="checksum"):
        zstandard.decompress(wrong)


def test_every_entry_of_the_corpus_is_sealed_with_its_own_blocks(corpus: Path) -> None:
    frames = [p.read_bytes() for p in sorted(corpus.glob("*/*-cache")) if p.is_file()]
    unsealed = [f for f in frames if f[:1] == b"\x28" and not f[4] & 4]
    assert unsealed
    for frame in unsealed:
        sealed = seal_entry(frame)
        assert (sealed[:4], sealed[4], sealed[5:-4]) == (frame[:4], frame[4] | 4, frame[5:])
        # JAX decompresses like this, which checks the checksum.
        assert zstandard.ZstdDecompressor().decompress(sealed) == zstandard.decompress(frame)
        assert decompress_whole(sealed, limit=1 << 30)


def test_what_detects_corruption_already_is_returned_as_it_is(corpus: Path) -> None:
    (path,) = corpus.glob(_SMALL[0])
    sealed = seal_entry(path.read_bytes())
    stream = zlib.compress(b"\0\0\0\1 an executable")
    assert seal_entry(sealed) is sealed
    assert seal_entry(stream) is stream


def test_a_truncated_entry_is_not_sealed(corpus: Path) -> None:
    (path,) = corpus.glob(_SMALL[0])
    frame = path.read_bytes()
    for length in (5, len(frame) // 2, len(frame) - 1):
        with pytest.raises(CodecError):
            seal_entry(frame[:length])


def test_the_smaller_of_both_frames_is_taken() -> None:
    content = b"".join(b"%d" % n for n in range(5000))
    frame = zstandard.ZstdCompressor(level=1).compress(content)
    kept = seal_frame(frame, content, None)
    assert kept == b"".join(add_checksum(frame, content))
    assert len(seal_frame(frame, content, 19)) < len(frame)
    best = seal_frame(frame, content, 19)
    assert seal_frame(best, content, 1) == best


def test_zlib_stays_zlib() -> None:
    content = bytes(5000)
    frame = zlib.compress(content, 1)
    sealed = seal_frame(frame, content, 19)
    assert zlib.decompress(sealed) == content and len(sealed) <= len(frame)
    assert compress_content(content, "zlib", 9)[0] == 0x78


def silent_flips(frame: bytes) -> int:
    """Flip every bit once; how many flips give other content without an error."""
    before = b"".join(decompress_chunks(io.BytesIO(frame), len(frame)))
    silent = 0
    damaged = bytearray(frame)
    for bit in range(8 * len(frame)):
        damaged[bit >> 3] ^= 1 << (bit & 7)
        with contextlib.suppress(zstandard.ZstdError, MemoryError):
            # As JAX does it (jax/_src/compilation_cache.py, decompress_executable).
            silent += zstandard.ZstdDecompressor().decompress(bytes(damaged)) != before
        damaged[bit >> 3] ^= 1 << (bit & 7)
    return silent


@pytest.mark.parametrize("pattern", _SMALL)
def test_no_flip_of_a_sealed_entry_is_silent(corpus: Path, pattern: str) -> None:
    (path,) = corpus.glob(pattern)
    frame = path.read_bytes()
    content = zstandard.decompress(frame)
    assert silent_flips(seal_frame(frame, content, 19)) == 0


def test_flips_of_an_unsealed_entry_are_silent_so_the_test_above_can_fail(corpus: Path) -> None:
    (path,) = corpus.glob(_SMALL[0])
    assert silent_flips(path.read_bytes()[:]) > 1000
