"""From a payload to the compiler's result: IFRT's prefix, Riegeli, ExecutableAndOptionsProto.

docs/entry-format.md describes the generations and how they differ.

XLA writes Riegeli/records files into GPU and TPU entries (JAX 0.10.2 and later). A file is cut into
blocks of 64 KiB counted from its start, each with a header of 24 bytes; what remains is a sequence
of chunks. Only signature chunks and "simple" chunks occur, uncompressed or compressed with snappy.

HighwayHash-64 guards every chunk. Written from the paper "Fast keyed hash/pseudo-random function
using SIMD multiply and permute" (Alakuijala, Cox, Wassenberg, 2016) and its portable description.
"""

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from jaxcache.core import wire
from jaxcache.core.wire import Budget, Field, MissingDecoderError, WireError
from jaxcache.entry.messages import parse
from jaxcache.model import Platform
from jaxcache.units import format_install

_M64 = 0xFFFF_FFFF_FFFF_FFFF
_M32 = 0xFFFF_FFFF
_INIT0 = (0xDBE6D5D5FE4CCE2F, 0xA4093822299F31D0, 0x13198A2E03707344, 0x243F6A8885A308D3)
_INIT1 = (0x3BD39E10CB0EF593, 0xC0ACF169B5F18A8C, 0xBE5466CF34E90C6C, 0x452821E638D01377)

_WORDS = struct.Struct("<4Q")
#: Shuffles the bytes of each two words so that the multiplier's good bits reach everywhere.
_ZIPPER = bytes(
    pair + at for pair in (0, 16) for at in (3, 12, 2, 5, 14, 1, 15, 0, 11, 4, 10, 13, 9, 6, 8, 7)
)
_PADDING = bytes(256 - _WORDS.size)
_State = tuple[list[int], list[int], list[int], list[int]]


def highwayhash64(key: tuple[int, int, int, int], data: bytes | memoryview) -> int:
    """Hash ``data`` under a key of four 64-bit words.

    Under 10 MB/s: callers bound how much they hash.
    """
    state = _start(key)
    whole = len(data) - len(data) % 32
    for packet in _WORDS.iter_unpack(data[:whole]):
        _update(state, packet)
    if len(data) > whole:
        _update_remainder(state, bytes(data[whole:]))
    for _ in range(4):
        v0 = state[0]
        swapped = tuple((v0[i] >> 32) | (v0[i] << 32 & _M64) for i in (2, 3, 0, 1))
        _update(state, swapped)
    v0, v1, mul0, mul1 = state
    return (v0[0] + v1[0] + mul0[0] + mul1[0]) & _M64


def _start(key: tuple[int, int, int, int]) -> _State:
    return (
        [i ^ k for i, k in zip(_INIT0, key, strict=True)],
        [i ^ ((k >> 32) | (k << 32 & _M64)) for i, k in zip(_INIT1, key, strict=True)],
        list(_INIT0),
        list(_INIT1),
    )


def _update(state: _State, lanes: tuple[int, ...]) -> None:
    v0, v1, mul0, mul1 = state
    for i in (0, 1, 2, 3):
        a = v1[i] = (v1[i] + mul0[i] + lanes[i]) & _M64
        b = v0[i]
        mul0[i] ^= (a & _M32) * (b >> 32)
        b = v0[i] = (b + mul1[i]) & _M64
        mul1[i] ^= (b & _M32) * (a >> 32)
    for to, by in ((v0, v1), (v1, v0)):
        merged = _WORDS.unpack(_ZIPPER.translate(_WORDS.pack(*by) + _PADDING))
        to[:] = [(word + other) & _M64 for word, other in zip(to, merged, strict=True)]


def _update_remainder(state: _State, tail: bytes) -> None:
    size = len(tail)
    v0 = state[0]
    v1 = state[1]
    for i in range(4):
        v0[i] = (v0[i] + (size << 32) + size) & _M64
        low = v1[i] & _M32
        high = v1[i] >> 32
        v1[i] = _rotate32(low, size) | _rotate32(high, size) << 32
    whole = size & ~3
    last = size & 3
    packet = bytearray(32)
    packet[:whole] = tail[:whole]
    if size & 16:
        packet[28:32] = tail[size - 4 :]
    elif last:
        last_bytes = tail[whole:]
        packet[16:19] = bytes((last_bytes[0], last_bytes[last >> 1], last_bytes[last - 1]))
    _update(state, _WORDS.unpack(packet))


def _rotate32(value: int, count: int) -> int:
    count &= 31
    return (value << count | value >> (32 - count)) & _M32 if count else value


MAGIC = bytes.fromhex("83af70d10d884a3f")
_BLOCK_BYTES = 1 << 16
_BLOCK_HEADER_BYTES = 24
_CHUNK_HEADER_BYTES = 40
_KEY = (0x2F696C6567656952, 0x0A7364726F636572, 0x2F696C6567656952, 0x0A7364726F636572)
#: The most that snappy can make of a byte: a copy of 64 bytes takes three.
_MAX_SNAPPY_RATIO = 22
#: Hashing in Python takes 0.2 s per MiB; larger streams are read with their headers checked only.
MAX_HASHED_BYTES = 8 << 20
#: Each costs the hash of its header, some 0.2 ms. XLA's have 4, and at most one per MiB of records.
_MAX_CHUNKS = 10_000

#: A message in pieces: runs of fields to be merged, and single fields that override.
Piece = memoryview | Field


@dataclass(frozen=True, slots=True)
class SplitMessage:
    """One protobuf message, as XLA splits it over the records of a Riegeli file."""

    type_name: str
    pieces: tuple[Piece, ...]
    compression: str
    """``none`` or ``snappy``."""


def read_split_message(data: memoryview, budget: Budget, *, check: bool = True) -> SplitMessage:
    """Put a split message together (``xla/util/split_proto``).

    Args:
        check: also check the hash of each chunk's data.

    Raises:
        WireError: damaged, or of a form that XLA has not been seen to write.
    """
    reader = _Reader(data, check)
    records = list(reader.records(budget))
    if not records:
        raise WireError("a Riegeli file without records")
    manifest = parse("SplitProtoManifest", records[0])
    if len(manifest.records) != len(records) - 1:
        raise WireError(
            f"its manifest names {len(manifest.records)} records, and {len(records) - 1} follow"
        )
    pieces: list[Piece] = []
    for record_spec, record in zip(manifest.records, records[1:], strict=True):
        if not record_spec.HasField("override"):
            pieces.append(record)
        elif len(record_spec.override.path) == 1:
            number = record_spec.override.path[0].field_number
            pieces.append(Field(number, wire.BYTES, record))
        else:
            raise WireError("a record overrides a nested field")
    type_name = manifest.type.decode("ascii", "replace")
    return SplitMessage(type_name, tuple(pieces), reader.compression)


class _Reader:
    def __init__(self, data: memoryview, check: bool) -> None:
        self._data = data
        self._at = 0
        self._hashable = MAX_HASHED_BYTES if check else 0
        self.compression = "none"

    def records(self, budget: Budget) -> Iterator[memoryview]:
        """Yield the records of every chunk."""
        chunks = 0
        while self._at < len(self._data):
            chunks += 1
            if chunks > _MAX_CHUNKS:
                raise WireError("more chunks than any compiler writes")
            start = self._at
            header = bytes(self._take(_CHUNK_HEADER_BYTES))
            if _hash(header[8:]) != int.from_bytes(header[:8], "little"):
                raise WireError(f"chunk header at byte {start}: its hash does not match")
            size = int.from_bytes(header[8:16], "little")
            if size > len(self._data) - self._at:
                raise WireError(f"chunk at byte {start} announces {size} bytes")
            body = self._take(size)
            if size <= self._hashable:
                self._hashable -= size
                if _hash(body) != int.from_bytes(header[16:24], "little"):
                    raise WireError(f"chunk at byte {start}: the hash of its data does not match")
            count = int.from_bytes(header[25:32], "little")
            kind = header[24:25]
            if kind == b"r":
                yield from self._simple(body, count, budget)
            elif kind != b"s":
                raise WireError(f"chunk of type {kind!r}")
            self._at = max(self._at, start + count)
            if 0 < self._at % _BLOCK_BYTES < _BLOCK_HEADER_BYTES:
                self._at += _BLOCK_HEADER_BYTES - self._at % _BLOCK_BYTES

    def _take(self, size: int) -> memoryview:
        """The next ``size`` bytes without the block headers among them."""
        parts: list[memoryview] = []
        while size:
            if self._at % _BLOCK_BYTES == 0:
                self._check_block_header()
                self._at += _BLOCK_HEADER_BYTES
            step = min(size, _BLOCK_BYTES - self._at % _BLOCK_BYTES)
            part = self._data[self._at : self._at + step]
            if len(part) < step:
                raise WireError("the Riegeli file is cut off")
            parts.append(part)
            self._at += step
            size -= step
        return parts[0] if len(parts) == 1 else memoryview(b"".join(parts))

    def _check_block_header(self) -> None:
        header = bytes(self._data[self._at : self._at + _BLOCK_HEADER_BYTES])
        if len(header) < _BLOCK_HEADER_BYTES:
            raise WireError("the Riegeli file is cut off in a block header")
        if _hash(header[8:]) != int.from_bytes(header[:8], "little"):
            raise WireError(f"block header at byte {self._at}: its hash does not match")

    def _simple(self, body: memoryview, count: int, budget: Budget) -> Iterator[memoryview]:
        """The records of a simple chunk: sizes, then values."""
        if not body:
            raise WireError("an empty chunk")
        compression = body[0]
        sizes_size, at = wire.read_varint(body, 1)
        if sizes_size > len(body) - at:
            raise WireError("a chunk's sizes run past its end")
        sizes = body[at : at + sizes_size]
        values = body[at + sizes_size :]
        if compression == ord("s"):
            self.compression = "snappy"
            sizes = _unsnappy(sizes)
            values = _unsnappy(values)
        elif compression:
            raise WireError(f"chunk compressed with {bytes([compression])!r}")
        if count > len(sizes):
            raise WireError(f"a chunk announces {count} records in {len(sizes)} bytes of sizes")
        at = end = 0
        for _ in range(count):
            budget.left -= 1
            if budget.left < 0:
                raise WireError("more records than any compiler writes")
            size, at = wire.read_varint(sizes, at)
            if size > len(values) - end:
                raise WireError("a record runs past its chunk")
            yield values[end : end + size]
            end += size
        if at != len(sizes) or end != len(values):
            raise WireError("a chunk holds more than its records")


def _hash(data: bytes | memoryview) -> int:
    return highwayhash64(_KEY, data)


def _unsnappy(data: memoryview) -> memoryview:
    """Decompress a varint of the size and a raw snappy stream, whose own first varint is equal."""
    try:
        import cramjam
    except ImportError as error:
        raise MissingDecoderError(
            f"parts of it are compressed with snappy; to read them: {format_install('gpu')}"
        ) from error
    size, at = wire.read_varint(data, 0)
    raw = data[at:]
    if size > _MAX_SNAPPY_RATIO * len(raw) or wire.read_varint(raw, 0)[0] != size:
        raise WireError(f"snappy announces {size} bytes in {len(raw)}")
    try:  # it refuses a stream of another size than the stream announces
        return memoryview(bytes(cramjam.snappy.decompress_raw(bytes(raw))))
    except cramjam.DecompressionError as error:
        raise WireError("snappy data is damaged") from error


#: Field 2 of IFRT's metadata, which every prefix holds near its start.
_IFRT_MARK = b"\x12\x09pjrt_ifrt"
_IFRT_MARK_WITHIN = 64
_PTX_MARK = b".version "
_PTX_MARK_WITHIN = 4096
_ELF_MAGIC = b"\x7fELF"
#: ELF ``e_machine``: EM_CUDA, EM_AMDGPU.
_GPU_MACHINES = (190, 224)
_TPU_TYPE = "xla.TpuExecutableProto"
_GPU_TYPE = "xla.gpu.GpuExecutableProto"


@dataclass(frozen=True, slots=True)
class Envelope:
    """An opened payload: what the compiler handed over, and what came with it."""

    platform: Platform
    ifrt: memoryview | None
    executable: tuple[Field, ...]
    """The top fields of the CPU, GPU or TPU result, in order."""
    options: memoryview | None
    """CompileOptionsProto."""
    container: str
    """The layers from the outside in, such as ``ifrt+riegeli+riegeli(snappy)``."""


def open_envelope(payload: memoryview, budget: Budget, *, check: bool = True) -> Envelope:
    """Open a payload as far as the compiler's own result, and determine its platform.

    Args:
        check: also check the hashes of Riegeli chunks.

    Raises:
        WireError: damaged, or of no known generation.
    """
    layers: list[str] = []
    ifrt, outer = _split_ifrt(payload)
    if ifrt is not None:
        layers.append("ifrt")
    fields: Iterable[Field]
    if outer[:8] == MAGIC:
        split = read_split_message(outer, budget, check=check)
        layers.append(_layer(split))
        if split.type_name == _TPU_TYPE:
            return _tpu(split, ifrt, layers, budget)
        fields = fields_of(split.pieces, budget)
    else:
        layers.append("proto")
        fields = wire.walk(outer, budget)
    messages = dict(wire.bytes_fields(fields))
    if (executable := messages.get(1)) is None:
        raise WireError("no executable in it")
    if executable[:8] == MAGIC:
        split = read_split_message(executable, budget, check=check)
        layers.append(_layer(split))
        parts = tuple(fields_of(split.pieces, budget))
        platform: Platform = "gpu" if split.type_name == _GPU_TYPE else tell_platform(parts)
    else:
        parts = tuple(wire.walk(executable, budget))
        platform = tell_platform(parts)
    return Envelope(platform, ifrt, parts, messages.get(2), "+".join(layers))


def fields_of(pieces: Iterable[Piece], budget: Budget) -> Iterator[Field]:
    """Yield the fields of a message in pieces, in order."""
    for piece in pieces:
        if isinstance(piece, Field):
            yield piece
        else:
            yield from wire.walk(piece, budget)


def tell_platform(fields: Iterable[Field]) -> Platform:
    """Tell a CPU result from a GPU result, whose fields 1 to 6 share their numbers.

    By wire types and magic numbers alone: both parse as either.
    """
    votes: set[Platform] = set()
    for number, wire_type, value in fields:
        if number == 5 and wire_type == wire.VARINT:
            return "cpu"
        if not isinstance(value, memoryview):
            continue
        if number == 4 and value[:4] == _ELF_MAGIC:
            votes.add("gpu" if int.from_bytes(value[18:20], "little") in _GPU_MACHINES else "cpu")
        elif number == 3 and _PTX_MARK in bytes(value[:_PTX_MARK_WITHIN]):
            votes.add("gpu")
        elif number in (8, 9):
            votes.add("cpu")
    return votes.pop() if len(votes) == 1 else "unknown"


def _split_ifrt(payload: memoryview) -> tuple[memoryview | None, memoryview]:
    """Cut off the length-prefixed metadata that JAX 0.9.2 and later put in front."""
    size, at = wire.read_varint(payload, 0)
    meta = payload[at : at + size]
    if len(meta) == size and _IFRT_MARK in bytes(meta[:_IFRT_MARK_WITHIN]):
        return meta, payload[at + size :]
    return None, payload


def _tpu(
    split: SplitMessage, ifrt: memoryview | None, layers: list[str], budget: Budget
) -> Envelope:
    """A TPU result holds module and options itself: put the module where the others have it."""
    parts: list[Field] = []
    options: memoryview | None = None
    for field in fields_of(split.pieces, budget):
        if field.number == 2:
            parts.append(field._replace(number=1))
        elif field.number == 4 and isinstance(field.value, memoryview):
            options = field.value
    return Envelope("tpu", ifrt, tuple(parts), options, "+".join(layers))


def _layer(split: SplitMessage) -> str:
    return "riegeli" if split.compression == "none" else f"riegeli({split.compression})"
