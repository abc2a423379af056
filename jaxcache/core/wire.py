"""Protobuf's wire format, one level at a time, without copying.

The envelopes of an executable are walked, and only the small messages inside are parsed by
protobuf: a literal of 300 MB is stepped over, and what a hostile payload can make of memory and
time is bounded here.
"""

from collections.abc import Iterable, Iterator
from typing import Literal, NamedTuple

VARINT = 0
FIXED64 = 1
BYTES = 2
FIXED32 = 5
#: Fields that one decode may walk; the largest known entries have some thousands.
MAX_FIELDS = 1_000_000


class WireError(Exception):
    """The bytes are not the message they should be; becomes a finding ``bad-payload``."""

    kind: Literal["bad-payload", "unreadable"] = "bad-payload"


class MissingDecoderError(WireError):
    """What decompresses the bytes is not installed, and they may be sound."""

    kind = "unreadable"


def damaged(where: str) -> WireError:
    """Make the error that a message is damaged, and where."""
    return WireError(f"the executable's protobuf is damaged ({where})")


class Field(NamedTuple):
    """One field of a message."""

    number: int
    wire_type: int
    value: int | memoryview
    """A number for varints, else the bytes."""


class Budget:
    """The number of fields that may still be walked, shared by all walks over one payload."""

    __slots__ = ("left",)

    def __init__(self, fields: int = MAX_FIELDS) -> None:
        self.left = fields


def read_varint(data: memoryview, at: int) -> tuple[int, int]:
    """Read a varint at ``at``; return it and the position after it.

    Raises:
        WireError: it ends too early or is longer than 64 bits allow.
    """
    value = shift = 0
    for byte in data[at : at + 10]:
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFF_FFFF_FFFF_FFFF, at
        shift += 7
    raise damaged("a number runs past the end")


def walk(data: memoryview, budget: Budget) -> Iterator[Field]:
    """Yield the fields of one message in order.

    Raises:
        WireError: not a message, or the budget is spent.
    """
    at = 0
    end = len(data)
    while at < end:
        budget.left -= 1
        if budget.left < 0:
            raise damaged("more fields than any compiler writes")
        tag = data[at]
        at += 1
        if tag > 0x7F:
            tag, at = read_varint(data, at - 1)
        number = tag >> 3
        wire_type = tag & 7
        if not number:
            raise damaged("a field without a number")
        value: int | memoryview
        if wire_type in (VARINT, BYTES):
            value = data[at] if at < end else 0x80
            at += 1
            if value > 0x7F:
                value, at = read_varint(data, at - 1)
            if wire_type == BYTES:
                length = value
                if length > end - at:
                    message = f"{length} bytes where {end - at} are left"
                    raise damaged(f"field {number} announces {message}")
                value = data[at : at + length]
                at += length
        elif wire_type in (FIXED64, FIXED32):
            width = 8 if wire_type == FIXED64 else 4
            if width > end - at:
                raise damaged(f"field {number} runs past the end")
            value = data[at : at + width]
            at += width
        else:
            raise damaged(f"field {number}")
        yield Field(number, wire_type, value)


def select(fields: Iterable[Field], number: int) -> Iterator[memoryview]:
    """Yield the bytes of each field with a number."""
    return (f.value for f in fields if f.number == number and isinstance(f.value, memoryview))


def bytes_fields(fields: Iterable[Field]) -> Iterator[tuple[int, memoryview]]:
    """Yield number and bytes of each field that has bytes of any length."""
    for number, wire_type, value in fields:
        if wire_type == BYTES and isinstance(value, memoryview):
            yield number, value


def first_bytes(data: memoryview, number: int, budget: Budget) -> memoryview | None:
    """Return the bytes of the first field with a number; None where there is none."""
    return next(select(walk(data, budget), number), None)


def write_varint(value: int) -> bytes:
    """Write a varint."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def write_field(field: Field) -> bytes:
    """Write a field as it was read."""
    tag = write_varint(field.number << 3 | field.wire_type)
    if isinstance(field.value, int):
        return tag + write_varint(field.value)
    if field.wire_type == BYTES:
        return tag + write_varint(len(field.value)) + field.value
    return tag + field.value
