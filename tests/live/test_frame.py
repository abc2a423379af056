"""An entry on its way to XLA: whole, of a believable size, vouched for, of its key's module."""

import json
import os
import random
import shutil
import time
import zlib
from pathlib import Path

import pytest
import zstandard
from conftest import CORPUS

from jaxcache.live.frame import DamagedEntryError, decode, module_name, open_entry
from live.conftest import PROGRAM, RunLive, entries

BOMB = zstandard.ZstdCompressor(write_checksum=True).compress(bytes(300 << 20))


def corpus_entries() -> list[Path]:
    return sorted(CORPUS.glob("*/*-cache"))


def test_the_module_of_real_entries_is_read() -> None:
    """Of every corpus, but for executables that are compressed once more (GPU constants)."""
    names = {p: module_name(decode(p.read_bytes()).content) for p in corpus_entries()}
    assert len(names) > 20
    assert all(p.name.startswith(f"{name}-") for p, name in names.items() if name)
    assert sum(not name for name in names.values()) <= len(names) // 20


def test_another_module_under_a_key_is_refused() -> None:
    first, second, *_ = corpus_entries()
    open_entry(first.name.removesuffix("-cache"), first.read_bytes(), is_foreign=True)
    with pytest.raises(DamagedEntryError, match="module"):
        open_entry(first.name.removesuffix("-cache"), second.read_bytes(), is_foreign=True)


def test_a_bomb_of_a_tier_is_refused_by_what_it_announces() -> None:
    key = "jit_f-" + "a" * 64
    with pytest.raises(DamagedEntryError, match="content size"):
        open_entry(key, BOMB, is_foreign=True)
    assert len(open_entry(key, BOMB, is_foreign=False).content) == 300 << 20


def plain_cache(run_live: RunLive, tmp_path: Path) -> tuple[Path, Path]:
    """Let plain JAX write entries, without a checksum; the files of ``first`` and ``second``."""
    run_live(JAXCACHE_LIVE="0")
    (first,) = entries(tmp_path / "cache", "first")
    (second,) = entries(tmp_path / "cache", "second")
    return first, second


@pytest.mark.jax
def test_a_sound_entry_under_another_key_never_reaches_xla(
    run_live: RunLive, tmp_path: Path
) -> None:
    first, second = plain_cache(run_live, tmp_path)
    good = run_live(JAXCACHE_LIVE="0").result
    shutil.copy(second, first)
    ran = run_live()
    assert ran.result == good
    assert (ran["rotten"], ran["replaced"]) == (1, 1)


@pytest.mark.jax
def test_what_nobody_has_signed_is_not_decoded(run_live: RunLive, tmp_path: Path) -> None:
    good = run_live(JAXCACHE_LIVE_PORTABLE_KEYS="true")
    (tmp_path / "tier").mkdir()
    for entry in entries(tmp_path / "cache"):
        (tmp_path / "tier" / entry.name).write_bytes(BOMB)
    ran = run_live(
        cache_dir=tmp_path / "other",
        JAXCACHE_LIVE_TIERS=f"{tmp_path / 'tier'}:ro",
        JAXCACHE_LIVE_REQUIRE_SIGNED="true",
        JAXCACHE_LIVE_PORTABLE_KEYS="true",
    )
    assert ran.result == good.result
    assert ran["unsigned"] > 1
    assert ran["rotten_tier"] == 0


def record(cache: Path, entry: Path, digest: str, inode: int) -> None:
    """Write what this machine has recorded of a file into the ledger."""
    status = entry.stat()
    event = {
        "key": entry.name.removesuffix("-cache"),
        "kind": "payload",
        "at_ns": time.time_ns(),
        "payload_sha256": digest,
        "file_mtime_ns": status.st_mtime_ns,
        "file_size_bytes": status.st_size,
        "file_inode": inode,
    }
    ledger = cache / ".jaxcache" / "ledger"
    ledger.mkdir(parents=True, exist_ok=True)
    name = f"{time.time_ns():020d}-{os.urandom(8).hex()}.jsonl"
    (ledger / name).write_text(json.dumps(event) + "\n")


@pytest.mark.jax
def test_an_entry_that_is_not_as_recorded_is_compiled_again(
    run_live: RunLive, tmp_path: Path
) -> None:
    """What was recorded of another file of the name says nothing."""
    first, second = plain_cache(run_live, tmp_path)
    record(tmp_path / "cache", first, "a" * 64, first.stat().st_ino)
    record(tmp_path / "cache", second, "b" * 64, second.stat().st_ino + 1)
    ran = run_live()
    assert (ran["rotten"], ran["replaced"]) == (1, 1)
    assert ran["hits_local"] == len(entries(tmp_path / "cache")) - 1


#: Loads two programs, executes the second, and dies.
DIES = """
import os, signal, sys
x = jax.device_put(jnp.asarray([[0.5, 1.5], [2.5, 3.5]]))
first.lower(x).compile()
second(x).block_until_ready()
layer = sys.modules["jaxcache.live.layer"].LAYER
while layer.first_runs._is_looking: pass
(directory,) = layer.directories.values()
os.kill(os.getpid(), signal.SIGKILL)
"""
DEFINITIONS = PROGRAM.partition("x = jax")[0]


@pytest.mark.jax
def test_a_crash_before_the_first_execution_counts(run_live: RunLive, tmp_path: Path) -> None:
    first, _ = plain_cache(run_live, tmp_path)
    run_live(DEFINITIONS + DIES, check=False)
    ran = run_live()
    assert ran["died_loading"] == 1
    assert f"{first.name.removesuffix('-cache')} is in quarantine" in ran.err
    assert first.exists()


@pytest.mark.jax
def test_an_entry_with_a_checksum_is_not_suspected_after_its_load(
    run_live: RunLive, tmp_path: Path
) -> None:
    run_live()
    run_live(DEFINITIONS + DIES, check=False)
    assert run_live()["died_loading"] == 0


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
