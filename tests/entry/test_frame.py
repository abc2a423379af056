"""Sealed frames: the same content, and no single-bit flip yields another one silently."""

import contextlib
import io
import zlib
from pathlib import Path

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from jaxcache.entry.codec import check_content, decompress_chunks
from jaxcache.entry.frame import add_checksum, compress_content, seal_frame

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
    check_content(io.BytesIO(sealed), len(sealed))


@given(contents)
def test_a_checksum_is_added_without_compressing_anew(content: bytes) -> None:
    frame = as_jax_writes(content)
    sealed = add_checksum(frame, content)
    assert sealed[5:-4] == frame[5:]
    assert zstandard.decompress(sealed) == content
    assert add_checksum(sealed, content) == sealed
    wrong = sealed[:-1] + bytes([sealed[-1] ^ 1])
    with pytest.raises(zstandard.ZstdError, match="checksum"):
        zstandard.decompress(wrong)


def test_the_smaller_of_both_frames_is_taken() -> None:
    content = b"".join(b"%d" % n for n in range(5000))
    frame = zstandard.ZstdCompressor(level=1).compress(content)
    kept = seal_frame(frame, content, None)
    assert kept == add_checksum(frame, content)
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


#: The smallest entry of a CPU and of a GPU.
_SMALL = ["0.10.2-cpu-zstd/jit__fun-*-cache", "0.10.2-cuda13-h200-kernelcache/jit_sharded_sum-*"]


@pytest.mark.parametrize("pattern", _SMALL)
def test_no_flip_of_a_sealed_entry_is_silent(corpus: Path, pattern: str) -> None:
    (path,) = corpus.glob(pattern)
    frame = path.read_bytes()
    content = zstandard.decompress(frame)
    assert silent_flips(seal_frame(frame, content, 19)) == 0


def test_flips_of_an_unsealed_entry_are_silent_so_the_test_above_can_fail(corpus: Path) -> None:
    (path,) = corpus.glob(_SMALL[0])
    assert silent_flips(path.read_bytes()[:]) > 1000
