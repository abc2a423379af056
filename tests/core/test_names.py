"""Names in a cache directory, and the header of a frame."""

import pytest
import zstandard

from jaxcache.core.names import (
    FRAME_HEADER_MAX_BYTES,
    ZSTD_MAGIC,
    is_cache_name,
    is_key,
    live_directory,
    quarantine_directory,
    read_frame_header,
    spool_name,
)

HASH = "0123456789abcdef" * 4


@pytest.mark.parametrize("window", [0, 7, 0x5B, 0x97])
def test_the_header_of_a_frame_is_read_as_zstd_reads_it(window: int) -> None:
    """Of every descriptor: sizes, windows, dictionaries and checksums."""
    for descriptor in range(256):
        frame = ZSTD_MAGIC + bytes([descriptor, window, *range(1, 13)])
        if descriptor & 8:  # reserved
            assert read_frame_header(frame) is None
            continue
        told = zstandard.get_frame_parameters(frame)
        is_announced = told.content_size != zstandard.CONTENTSIZE_UNKNOWN
        header = read_frame_header(frame)
        assert header == (
            zstandard.frame_header_size(frame),
            told.content_size if is_announced else None,
            told.window_size,
            told.has_checksum,
        )
        assert header.size_bytes <= FRAME_HEADER_MAX_BYTES
        assert all(read_frame_header(frame[:n]) is None for n in range(header.size_bytes))
        assert read_frame_header(b"x" + frame[1:]) is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (HASH, True),
        (f"jit_f-{HASH}", True),
        (f"jit_a-b (c)-{HASH}", True),
        (f"a-{HASH}", True),
        (f"{'x' * 184}-{HASH}", True),
        (f"{'x' * 185}-{HASH}", False),
        (f"{'é' * 93}-{HASH}", False),
        (f"-{HASH}", False),
        (f"a{HASH}", False),
        (HASH[1:], False),
        (f"jit_f-{HASH.upper()}", False),
        (f"a/b-{HASH}", False),
        (f"a\0b-{HASH}", False),
        (f"a\nb-{HASH}", False),
        ("", False),
    ],
)
def test_a_key_can_name_a_file(text: str, expected: bool) -> None:
    assert is_key(text) is expected


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ([f"jit_f-{HASH}", f"jit_f-{HASH}-cache", f"jit_f-{HASH}-atime", f"{HASH}-cache"], True),
        ([".lockfile", ".jaxcache", "CACHEDIR.TAG", "_temp_x", ".jaxcache-tmp-x"], True),
        (["xla_gpu_kernel_cache_file", "xla_gpu_per_fusion_autotune_cache_dir"], True),
        (["README.md", "x-cache", "-cache", ".jaxcache-x", "a_temp_x", ""], False),
    ],
)
def test_names_of_a_cache_are_told_from_others(names: list[str], expected: bool) -> None:
    assert [is_cache_name(name) for name in names] == [expected] * len(names)


def test_each_move_to_quarantine_has_a_directory_of_its_own() -> None:
    assert quarantine_directory(10**18 + 1) == ".jaxcache/quarantine/20010909T014640Z-000000001"


def test_a_url_has_one_directory_in_every_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/home/me/.cache")
    directory = live_directory("s3://team/jax")
    assert directory == "/home/me/.cache/jaxcache/live/8ad62228076e2ec4"
    assert live_directory("s3://team/jax/") == directory != live_directory("s3://team/jaz")
    assert spool_name("s3://team/jax") == "8ad62228076e"
