"""An optimized program as lines that can be compared: one per instruction, without its names.

Names and ids change from compile to compile; what an instruction does not. Field numbers are
those of ``HloModuleProto``, ``HloComputationProto``, ``HloInstructionProto`` and ``LiteralProto``
(xla/service/hlo.proto, xla/xla_data.proto), the same in every release from JAX 0.4.30 to 0.12.
"""

import hashlib
import struct
from collections.abc import Iterator

from jaxcache.entry import wire
from jaxcache.entry.contents import array_types, short_type
from jaxcache.entry.schema import parse
from jaxcache.entry.wire import Budget, WireError

_NAME = 1
_OPCODE = 2
_SHAPE = 3
_METADATA = 7
_LITERAL = 8
_ID = 35
_OPERANDS = 36
_PREDECESSORS = 37
_CALLED = 38
_BACKEND = 43
_PRECISION = 51
_PARAMETER = 9
_OP_NAME = 2
_ENTRY_ID = 6
_COMPUTATION_ID = 5
#: Fields that do not affect what is computed, or are shown by themselves.
_LEFT_OUT = frozenset({
    _NAME, _OPCODE, _SHAPE, _METADATA, _LITERAL, _ID, _OPERANDS, _PREDECESSORS, _CALLED,
    _BACKEND, _PRECISION,
})  # fmt: skip
_MODULE_FIELDS = {8: "aliases", 13: "result sharding", 14: "parameter shardings", 18: "donors"}
#: Scalars of literals: field number to the packed value's format.
_SCALARS = {4: "v", 5: "v", 6: "v", 7: "v", 8: "<f", 9: "<d"}
MAX_LINES = 20_000


def outline(module: memoryview) -> list[str]:
    """The lines of a module, at most :data:`MAX_LINES` of them.

    Args:
        module: an ``HloModuleProto``.

    Raises:
        WireError: the bytes are none.
    """
    budget = Budget()
    lines: list[str] = []
    for number, wire_type, value in wire.walk(module, budget):
        if wire_type != wire.BYTES or not isinstance(value, memoryview):
            continue
        if number in _MODULE_FIELDS and len(value):
            lines.append(f"{_MODULE_FIELDS[number]} #{_digest(value)}")
        elif number == 3:
            lines.extend(_computation(value, budget))
            if len(lines) > MAX_LINES:
                return lines[:MAX_LINES]
    return lines


def parameter_names(module: memoryview) -> tuple[str, ...]:
    """Names of the arguments, such as ``params[0]['w']``; empty where one has none.

    JAX gives them to the parameters of the entry computation, as the ``op_name`` of their metadata.

    Args:
        module: an ``HloModuleProto``.

    Raises:
        WireError: the bytes are none.
    """
    budget = Budget()
    fields = list(wire.walk(module, budget))
    entry = [f.value for f in fields if f.number == _ENTRY_ID]
    names: dict[int, str] = {}
    for field in fields:
        if field.number != 3 or not isinstance(field.value, memoryview):
            continue
        computation = list(wire.walk(field.value, budget))
        if [f.value for f in computation if f.number == _COMPUTATION_ID] != entry:
            continue
        for member in computation:
            if member.number == 2 and isinstance(member.value, memoryview):
                instruction = list(wire.walk(member.value, budget))
                if _text(instruction, _OPCODE) == "parameter":
                    place = next((f.value for f in instruction if f.number == _PARAMETER), 0)
                    names[place if isinstance(place, int) else 0] = _op_name(instruction, budget)
    ordered = tuple(names.get(n, "") for n in range(len(names)))
    return ordered if all(ordered) else ()


def _op_name(instruction: list[wire.Field], budget: Budget) -> str:
    for field in instruction:
        if field.number == _METADATA and isinstance(field.value, memoryview):
            return _text(list(wire.walk(field.value, budget)), _OP_NAME)
    return ""


def _computation(data: memoryview, budget: Budget) -> Iterator[str]:
    instructions = [
        list(wire.walk(f.value, budget))
        for f in wire.walk(data, budget)
        if f.number == 2 and isinstance(f.value, memoryview)
    ]
    opcodes: dict[int, str] = {}
    for fields in instructions:
        number = next((f.value for f in fields if f.number == _ID), None)
        if isinstance(number, int):
            opcodes[number] = _text(fields, _OPCODE)
    yield "computation:"
    for fields in instructions:
        yield "  " + _instruction(fields, opcodes, budget)


def _instruction(fields: list[wire.Field], opcodes: dict[int, str], budget: Budget) -> str:
    opcode = _text(fields, _OPCODE)
    shape = next((f.value for f in fields if f.number == _SHAPE), None)
    words = [opcode, _type(shape) if isinstance(shape, memoryview) else ""]
    operands = [opcodes.get(n, "?") for n in _numbers(fields, _OPERANDS)]
    if operands:
        words.append(f"({', '.join(operands)})")
    for field in fields:
        if field.number == _LITERAL and isinstance(field.value, memoryview):
            words.append(f"= {_literal(field.value, budget)}")
        elif field.number == _PRECISION and isinstance(field.value, memoryview):
            words.append(f"precision={_precision(field.value, budget)}")
    other_fields = b"".join(wire.write_field(f) for f in fields if f.number not in _LEFT_OUT)
    if other_fields:
        words.append(f"#{_digest(other_fields)}")
    return " ".join(w for w in words if w)


def _type(shape: memoryview) -> str:
    try:
        types = [short_type(a) for a in array_types((parse("Shape", shape),))]
    except WireError:
        return "?"
    return types[0] if len(types) == 1 else f"({', '.join(types)})"


def _text(fields: list[wire.Field], number: int) -> str:
    for field in fields:
        if field.number == number and isinstance(field.value, memoryview):
            return bytes(field.value[:256]).decode("utf-8", "backslashreplace")
    return ""


def _numbers(fields: list[wire.Field], number: int) -> Iterator[int]:
    """Values of a repeated integer, packed or not."""
    for field in fields:
        if field.number != number:
            continue
        if isinstance(field.value, int):
            yield field.value
            continue
        at = 0
        while at < len(field.value):
            value, at = wire.read_varint(field.value, at)
            yield value


def _literal(data: memoryview, budget: Budget) -> str:
    """A scalar as a number; anything larger as its digest."""
    for number, _, value in wire.walk(data, budget):
        form = _SCALARS.get(number)
        if form is None or not isinstance(value, memoryview):
            continue
        if form == "v":
            first, end = wire.read_varint(value, 0)
            if end == len(value):
                return str(first - (1 << 64) if first >> 63 else first)
        elif len(value) == struct.calcsize(form):
            return f"{struct.unpack(form, value)[0]:.9g}"
    return f"#{_digest(data)}"


def _precision(data: memoryview, budget: Budget) -> str:
    """``PrecisionConfig``: 1 operand_precision (0 default, 1 high, 2 highest), 2 algorithm."""
    fields = list(wire.walk(data, budget))
    names = {0: "default", 1: "high", 2: "highest"}
    words = [names.get(n, str(n)) for n in _numbers(fields, 1)]
    words += [f"algorithm {n}" for n in _numbers(fields, 2)]
    return "/".join(words) or "default"


def _digest(data: bytes | memoryview) -> str:
    return hashlib.sha256(data).hexdigest()[:8]
