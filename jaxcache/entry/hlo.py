"""Read an HLO module: signature, counts, source lines; and its lines, which can be compared.

Names and ids change from compile to compile; what an instruction does not. Field numbers are
those of ``HloModuleProto``, ``HloComputationProto``, ``HloInstructionProto`` and ``LiteralProto``
(xla/service/hlo.proto, xla/xla_data.proto), the same in every release from JAX 0.4.30 to 0.12.
"""

import hashlib
import struct
from collections import Counter
from collections.abc import Iterator
from typing import Any

from jaxcache.entry import wire
from jaxcache.entry.contents import MAX_ARRAYS, Program, SourceLine, array_types, short_type
from jaxcache.entry.wire import WHOLE_BYTES, Budget, WireError, parse

#: A larger instruction holds a literal; only its small fields are read.
_INSTRUCTION_BYTES = 64 << 10
#: Far more than the largest programs that people compile.
_MAX_INSTRUCTIONS = 2_000_000
_MAX_SOURCE_LINES = 1000
_MAX_NAME_BYTES = 4096


class ModuleReader:
    """Counts over one ``HloModuleProto``.

    Args:
        counts: whether to read arrays, and to count opcodes, custom calls and source lines.

    Raises:
        WireError: the bytes are none.
    """

    def __init__(self, module: memoryview, budget: Budget, *, counts: bool = True) -> None:
        self._budget = budget
        self._counts = counts
        self._opcodes: Counter[bytes] = Counter()
        self._custom_calls: Counter[bytes] = Counter()
        self._frame_ids: Counter[int] = Counter()
        self._lines: Counter[tuple[bytes, int]] = Counter()
        self._frames: Any = None
        self._instructions = self._computations = 0
        whole = len(module) <= WHOLE_BYTES
        name, shape = (self._read_whole if whole else self._read_parts)(module)
        if shape is None or not self._computations:
            raise WireError("no HLO module where one should be")
        # An array takes a byte or more: a smaller message cannot have too many, and is not read.
        is_read = counts or shape.ByteSize() > MAX_ARRAYS
        self.program = Program(
            module=_text(name),
            parameters=array_types(shape.parameters if is_read else ()),
            results=array_types((shape.result,) if is_read else ()),
            instructions=self._instructions,
            computations=self._computations,
            opcodes=_ranked(self._opcodes),
            custom_calls=_ranked(self._custom_calls),
        )
        self.source = tuple(self._source_lines())

    def _read_whole(self, data: memoryview) -> tuple[bytes, Any]:
        module = parse("HloModule", data)
        for computation in module.computations:
            self._computations += 1
            self._count(computation.instructions)
        self._frames = module.stack_frame_index
        return module.name, module.program_shape if module.HasField("program_shape") else None

    def _read_parts(self, data: memoryview) -> tuple[bytes, Any]:
        name = b""
        shape: Any = None
        for number, wire_type, value in wire.walk(data, self._budget):
            if wire_type != wire.BYTES or not isinstance(value, memoryview):
                continue
            if number == 1:
                name = bytes(value[:_MAX_NAME_BYTES])
            elif number == 3:
                self._computations += 1
                self._read_computation(value)
            elif number == 4:
                shape = parse("ProgramShape", value)
            elif number == 17:
                self._frames = parse("StackFrameIndex", value)
        return name, shape

    def _read_computation(self, data: memoryview) -> None:
        if len(data) <= WHOLE_BYTES:
            self._count(parse("Computation", data).instructions)
            return
        for number, _, value in wire.walk(data, self._budget):
            if number == 2 and isinstance(value, memoryview):
                if len(value) > _INSTRUCTION_BYTES:
                    value = memoryview(_without_large_fields(value, self._budget))
                self._count((parse("Instruction", value),))

    def _count(self, instructions: Any) -> None:
        self._instructions += len(instructions)
        if self._instructions > _MAX_INSTRUCTIONS:
            raise WireError("more instructions than any compiler writes")
        if not self._counts:
            return
        opcodes = self._opcodes
        frame_ids = self._frame_ids
        for instruction in instructions:
            opcodes[instruction.opcode] += 1
            if instruction.HasField("metadata"):
                metadata = instruction.metadata
                if metadata.stack_frame_id:
                    frame_ids[metadata.stack_frame_id] += 1
                elif metadata.source_file:
                    self._lines[metadata.source_file, metadata.source_line] += 1
            if instruction.custom_call_target:
                self._custom_calls[instruction.custom_call_target] += 1

    def _source_lines(self) -> Iterator[SourceLine]:
        """The distinct lines, those that most instructions came from first."""
        counts: Counter[SourceLine] = Counter()
        for frame_id, count in self._frame_ids.items():
            if line := self._resolve(frame_id):
                counts[line] += count
        for (file, number), count in self._lines.items():
            counts[SourceLine(_text(file), number, None)] += count
        ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0].file, item[0].line))
        return (line for line, _ in ranked[:_MAX_SOURCE_LINES])

    def _resolve(self, frame_id: int) -> SourceLine | None:
        """The innermost frame outside installed packages, or the innermost of all."""
        innermost = None
        for _ in range(100):  # a chain of parents may be a circle
            frame = _at(self._frames and self._frames.stack_frames, frame_id)
            place = (
                _at(self._frames and self._frames.file_locations, frame.file_location_id)
                if frame
                else None
            )
            file = place and _at(self._frames.file_names, place.file_name_id)
            if frame is None or place is None or file is None:
                break
            function = _at(self._frames.function_names, place.function_name_id)
            line = SourceLine(_text(file), place.line, function and _text(function))
            if "/site-packages/" not in line.file and "/dist-packages/" not in line.file:
                return line
            innermost = innermost or line
            frame_id = frame.parent_frame_id
        return innermost


def _at(items: Any, one_based: int) -> Any:
    return items[one_based - 1] if items and 0 < one_based <= len(items) else None


def _without_large_fields(data: memoryview, budget: Budget) -> bytes:
    return b"".join(
        wire.write_field(field)
        for field in wire.walk(data, budget)
        if isinstance(field.value, int) or len(field.value) <= _MAX_NAME_BYTES
    )


def _ranked(counter: Counter[bytes]) -> dict[str, int]:
    ranked = sorted(counter.items(), key=lambda item: (-item[1], item[0]))
    return {_text(name): count for name, count in ranked}


def _text(data: bytes) -> str:
    return data[:_MAX_NAME_BYTES].decode("utf-8", "backslashreplace")


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
                if _field_text(instruction, _OPCODE) == "parameter":
                    place = next((f.value for f in instruction if f.number == _PARAMETER), 0)
                    names[place if isinstance(place, int) else 0] = _op_name(instruction, budget)
    ordered = tuple(names.get(n, "") for n in range(len(names)))
    return ordered if all(ordered) else ()


def _op_name(instruction: list[wire.Field], budget: Budget) -> str:
    for field in instruction:
        if field.number == _METADATA and isinstance(field.value, memoryview):
            return _field_text(list(wire.walk(field.value, budget)), _OP_NAME)
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
            opcodes[number] = _field_text(fields, _OPCODE)
    yield "computation:"
    for fields in instructions:
        yield "  " + _instruction(fields, opcodes, budget)


def _instruction(fields: list[wire.Field], opcodes: dict[int, str], budget: Budget) -> str:
    opcode = _field_text(fields, _OPCODE)
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


def _field_text(fields: list[wire.Field], number: int) -> str:
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
