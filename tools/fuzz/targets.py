"""What is fuzzed: for each reader of foreign bytes one function, and bytes to start from.

A target takes any bytes and returns: damage is a finding or an error of that reader's own kind,
which the target expects. Anything else that is raised, and any broken ``assert``, is a mistake of
ours. ``fuzz.py`` drives them, ``seeds.py`` writes their starting points, and the tests run both
over each target once, with the inputs that once broke it (``tests/data/fuzz``).
"""

import hashlib
import io
import json
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import cramjam
import zstandard

from jaxcache.cache.bundle.format import (
    BundleError,
    decode_manifest,
    encode_manifest,
    pack_header,
    pack_manifest,
    read_bundle,
)
from jaxcache.cache.bundle.reader import verify_bundle
from jaxcache.cache.ledger.segments import LEDGER_DIR, Ledger
from jaxcache.cache.verify.check import MAX_NAME_BYTES
from jaxcache.core import wire
from jaxcache.entry import envelope
from jaxcache.entry.decode import decode_payload, read_contents
from jaxcache.entry.summary import read_summary
from jaxcache.model import FileInfo
from tools.fuzz.others import recipe_seeds, run_recipe, run_torch, torch_seeds

_CORPUS = Path(__file__).parents[2] / "tests" / "data" / "corpus"
_NO_DIGEST = "0" * 64


class Target(NamedTuple):
    """One reader."""

    run: Callable[[bytes], None]
    seeds: Callable[[], Iterator[bytes]]


def run_entry(data: bytes) -> None:
    """Everything that reads an entry; the first byte chooses what the rest is taken for."""
    kind, rest = data[:1], data[1:]
    if kind == b"\x01":
        read_contents(io.BytesIO(rest), len(rest), "jit_f")
    elif kind == b"\x03":
        read_summary(io.BytesIO(rest), len(rest), None)
    else:
        # Hashes would hide what lies behind them from the fuzzer: half of the runs do not check.
        decode_payload(rest, "jit_f", check=kind == b"\x04")


def entry_seeds() -> Iterator[bytes]:
    """Real payloads and entries."""
    for data, payload in _entries():
        if len(payload) < 32_000:
            yield b"\x00" + payload
            yield b"\x04" + payload
        if len(data) < 8_000:
            yield b"\x01" + data
            yield b"\x03" + data


class _AnyHash(int):
    """A hash that every stored one is equal to: the fuzzer cannot compute right ones."""

    __hash__ = int.__hash__

    def __eq__(self, other: object) -> bool:
        return True

    def __ne__(self, other: object) -> bool:
        return False


def run_riegeli(data: bytes) -> None:
    """Riegeli files with their hashes taken for right."""
    real, envelope._hash = envelope._hash, lambda _: _AnyHash()
    try:
        message = envelope.read_split_message(memoryview(data), wire.Budget(100_000))
    except wire.WireError:
        return
    finally:
        envelope._hash = real
    assert sum(len(p) for p in message.pieces if isinstance(p, memoryview)) <= 22 * len(data)


def riegeli_seeds() -> Iterator[bytes]:
    """What lies inside real GPU entries."""
    for _, payload in _entries():
        start = payload.find(envelope.MAGIC)
        if start >= 0 and len(payload) < 64_000:
            yield payload[start:]


def run_snappy(data: bytes) -> None:
    """Snappy streams as Riegeli holds them: damaged, or of exactly the size announced."""
    try:
        out = envelope._unsnappy(memoryview(data))
    except wire.WireError:
        out = None
    size = None if out is None else wire.read_varint(memoryview(data), 0)[0]
    assert out is None or len(out) == size
    raw = bytes(cramjam.snappy.compress_raw(data))
    assert envelope._unsnappy(memoryview(wire.write_varint(len(data)) + raw)) == data


def snappy_seeds() -> Iterator[bytes]:
    """Compressed pieces of real payloads."""
    for _, payload in _entries():
        piece = payload[:4000]
        yield wire.write_varint(len(piece)) + bytes(cramjam.snappy.compress_raw(piece))


def run_bundle(data: bytes) -> None:
    """Bundles; the first byte says whether the rest is one, or a manifest with its stream.

    In the second case the digests around both are made right, which a fuzzer could not guess: the
    manifest ends at the first NUL byte, the stream follows.
    """
    kind, rest = data[:1], data[1:]
    if kind == b"\x01":
        raw, _, stream = rest.partition(b"\0")
        raw = raw.replace(_NO_DIGEST.encode(), hashlib.sha256(stream).hexdigest().encode(), 1)
        try:
            packed = pack_manifest(raw)
        except BundleError:
            return
        rest = pack_header(packed, len(stream), 0) + packed + stream
    try:
        bundle = read_bundle(io.BytesIO(rest), "bundle")
    except BundleError:
        return
    manifest = bundle.manifest
    assert decode_manifest(encode_manifest(manifest)) == manifest
    for item in manifest.items:
        assert item.file == os.path.basename(item.file)
        assert item.file.isprintable() and len(item.file.encode()) <= MAX_NAME_BYTES
        assert not item.file.startswith(".")
    for file in manifest.files:
        assert os.path.normpath(file.name) == file.name and not file.name.startswith(("/", "."))
    try:
        verify_bundle(bundle)
    except BundleError:
        return


def bundle_seeds() -> Iterator[bytes]:
    """One small bundle whole, and as a manifest with its stream; manifests that must not pass."""
    payloads = [b"one payload", b"another payload", b"{}"]
    digests = [hashlib.sha256(p).hexdigest() for p in payloads]
    entry = {
        "key": f"jit_f-{digests[0]}",
        "codec": "zstd",
        "compile_seconds": 3,
        "size_bytes": 9,
        "payload_bytes": 11,
        "payload_sha256": digests[0],
        "created_ns": 10**18,
        "origin": 0,
        "ledger": [{"key": f"jit_f-{digests[0]}", "kind": "hit", "at_ns": 1, "count": 2}],
    }
    older = {
        **entry,
        "key": digests[1],
        "legacy": True,
        "codec": "zlib",
        "payload_bytes": 15,
        "payload_sha256": digests[1],
        "atime_ns": 10**18,
        "ledger": [],
    }
    file = {"name": "xla_gpu_kernel_cache_file", "size_bytes": 2, "sha256": digests[2]}
    document = {
        "format": 1,
        "since": "",
        "stream": {"sha256": _NO_DIGEST, "content_bytes": 28},
        "origins": [{"platform": "cpu", "ifrt_version": 3, "cpu_features": ["+avx"]}],
        "entries": [entry, older],
        "files": [{**file, "created_ns": 10**18}],
    }
    stream = zstandard.ZstdCompressor(write_checksum=True).compress(b"".join(payloads))
    raw = json.dumps(document).encode()
    yield b"\x01" + raw + b"\0" + stream
    yield b"\x01" + raw.replace(b"jit_f-", b"../f-") + b"\0" + stream
    right = raw.replace(_NO_DIGEST.encode(), hashlib.sha256(stream).hexdigest().encode())
    packed = pack_manifest(right)
    yield b"\x00" + pack_header(packed, len(stream), 0) + packed + stream


class _Segments:
    """As much of a store as :class:`Ledger` reads: its segments."""

    remote = True

    def __init__(self, segments: Sequence[bytes]) -> None:
        self._files = {
            f"{LEDGER_DIR}/{number:020d}-{'c' if number % 2 else ''}00.jsonl": data
            for number, data in enumerate(segments)
        }

    def list(self, _prefix: str) -> Iterator[FileInfo]:
        """As of a store."""
        for name, data in self._files.items():
            yield FileInfo(name, "file", len(data), 0, 0, 1, 0, 0)

    def read_many(self, names: Sequence[str], *, limit: int) -> Iterator[bytes]:
        """As of a store."""
        return (self._files[name][:limit] for name in names)


def run_ledger(data: bytes) -> None:
    """Ledgers of several segments, between NUL bytes; and that writing one anew keeps it."""
    ledger = Ledger.load(_Segments(data.split(b"\0")))
    known = {key: ledger.record(key) for key in ledger}
    lines = b"\n".join(json.dumps(e.to_json()).encode() for e in ledger.events())
    again = Ledger.load(_Segments([lines]))
    assert not again.damaged
    assert {key: repr(again.record(key)) for key in again} == {k: repr(v) for k, v in known.items()}


def ledger_seeds() -> Iterator[bytes]:
    """Every kind of event, a compaction with its parts, and lines that are none."""
    names = [f"{number:020d}-{'c' if number % 2 else ''}00.jsonl" for number in range(4)]
    facts = {
        "payload_sha256": _NO_DIGEST,
        "file_mtime_ns": 5,
        "compile_seconds": 2.5,
        "components": {"XLA flags": "0"},
        "jax_version": "0.12.0",
        "count": 3,
    }
    kinds = ("payload", "compile", "hit", "sealed", "pin", "unpin", "other")
    events = [{"key": "k", "kind": kind, "at_ns": at, **facts} for at, kind in enumerate(kinds)]
    lines = b"\n".join(json.dumps(event).encode() for event in events)
    header = {"kind": "segment", "replaces": names[:1], "parts": names[1:2]}
    yield lines
    yield lines + b"\0" + json.dumps(header).encode() + b"\n" + lines + b"\0" + lines
    yield b'{"key": 1}\n[]\nnull\n{"key": "k", "kind": "hit", "at_ns": -1}\n' + lines


def _entries() -> Iterator[tuple[bytes, bytes]]:
    """(file, payload) of every real entry that is small enough to start from."""
    for path in sorted(_CORPUS.glob("*-zstd/*-cache")):
        data = path.read_bytes()
        yield data, zstandard.ZstdDecompressor().decompress(data)[4:]


TARGETS: dict[str, Target] = {
    "entry": Target(run_entry, entry_seeds),
    "riegeli": Target(run_riegeli, riegeli_seeds),
    "snappy": Target(run_snappy, snappy_seeds),
    "bundle": Target(run_bundle, bundle_seeds),
    "ledger": Target(run_ledger, ledger_seeds),
    "recipe": Target(run_recipe, recipe_seeds),
    "torch": Target(run_torch, torch_seeds),
}
