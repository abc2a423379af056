"""Classes of the messages that XLA writes, and their parser.

They come from ``xla_subset.proto`` when they are first needed, in a pool of their own. Building
them here, and not ahead of time with protoc, keeps them free of the version contract between
generated code and the protobuf runtime, and away from the user's own copies of XLA's messages.
protobuf is imported inside, because most commands never decode anything.
"""

import re
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from jaxcache.core.wire import WireError
from jaxcache.errors import MissingPackageError

#: Larger messages are read piece by piece (:mod:`jaxcache.core.wire`): what protobuf makes of a
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
