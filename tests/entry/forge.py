"""Makes payloads that no compiler wrote: protobuf fields, Riegeli files, whole entries."""

import io
from collections.abc import Sequence

import cramjam

from jaxcache.core.wire import write_varint
from jaxcache.entry.envelope import highwayhash64

KEY = tuple(
    int.from_bytes(b"Riegeli/records\nRiegeli/records\n"[i : i + 8], "little")
    for i in range(0, 32, 8)
)


def number(field: int, value: int) -> bytes:
    return write_varint(field << 3) + write_varint(value)


def message(field: int, *parts: bytes) -> bytes:
    body = b"".join(parts)
    return write_varint(field << 3 | 2) + write_varint(len(body)) + body


def shape(element_type: int, *dims: int) -> bytes:
    return number(2, element_type) + message(3, *map(write_varint, dims))


def module(name: bytes = b"jit_f", instructions: Sequence[bytes] = (), extra: bytes = b"") -> bytes:
    """An HloModuleProto of one computation, ``f32[2] → f32[2]``."""
    body = instructions or [message(2, b"parameter") + message(3, shape(11, 2))]
    return b"".join(
        (
            message(1, name),
            message(3, message(1, b"main"), *(message(2, i) for i in body)),
            message(4, message(1, shape(11, 2)), message(2, shape(11, 2))),
            extra,
        )
    )


def cpu_result(hlo: bytes, *more: bytes) -> bytes:
    """What the CPU compiler hands over: the module, an empty buffer assignment, its kind."""
    return message(1, message(1, hlo)) + message(2) + number(5, 2) + b"".join(more)


def outer(executable: bytes, options: bytes = b"") -> bytes:
    """ExecutableAndOptionsProto."""
    return message(1, executable) + message(2, options)


def ifrt(payload: bytes, abi: tuple[bytes, bytes] | None = None) -> bytes:
    """IFRT's length-prefixed metadata in front of a payload; ``abi`` is type name and target."""
    meta = number(1, 3) + message(2, b"pjrt_ifrt")
    if abi:
        meta += message(9, message(3, message(1, abi[0]), message(2, message(2, abi[1]))))
    return write_varint(len(meta)) + meta + payload


def riegeli(
    records: Sequence[bytes], *, snappy: bool = False, per_chunk: int = 1, lie: int | None = None
) -> bytes:
    """A Riegeli file; ``lie`` replaces the size that snappy announces."""
    out = io.BytesIO()
    _write(out, chunk(b"", b"s", 0, 0))
    for i in range(0, len(records), per_chunk):
        some = records[i : i + per_chunk]
        sizes = b"".join(write_varint(len(r)) for r in some) if any(some) else bytes(len(some))
        values = b"".join(some)
        if snappy:
            sizes, values = _snappy(sizes, None), _snappy(values, lie)
        body = (b"s" if snappy else b"\0") + write_varint(len(sizes)) + sizes + values
        _write(out, chunk(body, b"r", len(some), sum(map(len, some))))
    return out.getvalue()


def split(
    type_name: bytes, merged: Sequence[bytes], overrides: Sequence[tuple[int, bytes]] = ()
) -> list[bytes]:
    """The records of a split message: its manifest, overriding fields, merged pieces."""
    manifest = message(1, type_name)
    manifest += b"".join(
        message(2, message(3, message(1, number(1, n)), number(2, 1))) for n, _ in overrides
    )
    manifest += b"".join(message(2, message(2)) for _ in merged)
    return [manifest, *(data for _, data in overrides), *merged]


def _snappy(data: bytes, lie: int | None) -> bytes:
    raw = bytes(cramjam.snappy.compress_raw(data))
    if lie is not None:
        raw = write_varint(lie) + raw[len(write_varint(len(data))) :]
    return write_varint(len(data) if lie is None else lie) + raw


def _hash(data: bytes) -> bytes:
    return highwayhash64(KEY, data).to_bytes(8, "little")


def chunk(body: bytes, kind: bytes = b"r", records: int = 1, decoded: int = 1) -> bytes:
    """One chunk of a Riegeli file, with hashes that hold."""
    header = len(body).to_bytes(8, "little") + _hash(body) + kind
    header += records.to_bytes(7, "little") + decoded.to_bytes(8, "little")
    return _hash(header) + header + body


def _write(out: io.BytesIO, data: bytes) -> None:
    """Write a chunk, with a header at the start of each block."""
    while data:
        if out.tell() % 65536 == 0:
            block = (0).to_bytes(8, "little") + (64).to_bytes(8, "little")
            out.write(_hash(block) + block)
        room = 65536 - out.tell() % 65536
        out.write(data[:room])
        data = data[room:]
