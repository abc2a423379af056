"""Protobuf's wire format, one level at a time, without copying.

The envelopes of an executable are walked, and only the small messages inside are parsed by
protobuf: a literal of 300 MB is stepped over, and what a hostile payload can make of memory and
time is bounded here.

Their classes come from ``xla_subset.proto`` when they are first needed, in a pool of their own.
Building them here, and not ahead of time with protoc, keeps them free of the version contract
between generated code and the protobuf runtime, and away from the user's own copies of XLA's
messages. protobuf is imported inside, because most commands never decode anything.
"""

import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from jaxcache.errors import MissingPackageError
from jaxcache.model import ProblemKind

VARINT = 0
FIXED64 = 1
BYTES = 2
FIXED32 = 5
#: Fields that one decode may walk; the largest known entries have some thousands.
MAX_FIELDS = 1_000_000


class WireError(Exception):
    """The bytes are not the message they should be; becomes a finding ``bad-payload``."""

    kind: ProblemKind = "bad-payload"


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


#: Larger messages are read piece by piece (:mod:`jaxcache.entry.wire`): what protobuf makes of a
#: message can take 40 times its bytes.
MAX_MESSAGE_BYTES = 4 << 20
#: Messages of many parts up to this size are parsed at once, larger ones part by part.
WHOLE_BYTES = 256 << 10

_TOKEN = re.compile(r"//[^\n]*|\w+(?:\.\w+)*|\"[^\"]*\"|[{}=;]")
_SCALARS = {
    "double": 1, "int64": 3, "uint64": 4, "fixed64": 6, "bool": 8, "bytes": 12,
}  # fmt: skip  # numbers of google.protobuf.FieldDescriptorProto.Type
_MESSAGE_TYPE = 11
_LABELS = {"optional": 1, "repeated": 3}


def parse(name: str, data: bytes | memoryview) -> Any:
    """Parse one message.

    Args:
        name: a message of ``xla_subset.proto``, nested ones with dots.

    Raises:
        WireError: larger than :data:`MAX_MESSAGE_BYTES`, or not such a message.
    """
    if len(data) > MAX_MESSAGE_BYTES:
        raise WireError(f"{name} of {len(data)} bytes is larger than any compiler writes")
    parse_whole, decode_error = _parser(name)
    try:
        return parse_whole(bytes(data))
    except decode_error as error:
        raise WireError(f"{name} does not parse") from error


@cache
def _parser(name: str) -> Any:
    """What parses a message, and the error that it raises."""
    parse_whole = message_class(name).FromString
    from google.protobuf.message import DecodeError

    return parse_whole, DecodeError


def prepare() -> None:
    """Import protobuf and build the classes, while the bytes to parse are awaited."""
    with suppress(MissingPackageError):
        message_class("HloModule")


@cache
def message_class(name: str) -> Any:
    """The class of one message of ``xla_subset.proto``."""
    try:
        from google.protobuf import message_factory
    except ImportError as error:
        raise MissingPackageError("protobuf") from error
    pool, package = _pool()
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}"))


@cache
def _pool() -> tuple[Any, str]:
    from google.protobuf import descriptor_pb2, descriptor_pool

    path = Path(__file__).with_name("xla_subset.proto")
    file = descriptor_pb2.FileDescriptorProto(name=path.name, syntax="proto2")
    tokens = [t for t in _TOKEN.findall(path.read_text("ascii")) if not t.startswith("//")]
    _read_file(file, tokens)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return pool, file.package


def _read_file(file: Any, tokens: list[str]) -> None:
    """Read the few forms of the language that the file uses."""
    scopes: list[Any] = []
    at = 0
    while at < len(tokens):
        word = tokens[at]
        if word == "syntax":
            at += 4
        elif word == "package":
            file.package = tokens[at + 1]
            at += 3
        elif word == "message":
            inside = scopes[-1].nested_type if scopes else file.message_type
            scopes.append(inside.add(name=tokens[at + 1]))
            at += 3
        elif word == "}":
            scopes.pop()
            at += 1
        else:  # LABEL TYPE NAME = NUMBER ;
            label, kind, name, _, number = tokens[at : at + 5]
            field = scopes[-1].field.add(name=name, number=int(number), label=_LABELS[label])
            if kind in _SCALARS:
                field.type = _SCALARS[kind]
            else:
                field.type = _MESSAGE_TYPE
                field.type_name = kind
            at += 6
