"""Read what XLA wrote of an HLO module: signature, counts, source lines, arguments.

Field numbers are those of ``HloModuleProto``, ``HloComputationProto``, ``HloInstructionProto`` and
``OpMetadata`` (xla/service/hlo.proto, xla/xla_data.proto), the same in every release from JAX
0.4.30 to 0.12.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from jaxcache.core import wire
from jaxcache.core.wire import Budget, WireError
from jaxcache.entry.contents import MAX_ARRAYS, Program, SourceLine, array_types
from jaxcache.entry.messages import WHOLE_BYTES, parse

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
        for number, value in wire.bytes_fields(wire.walk(data, self._budget)):
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
        for value in wire.select(wire.walk(data, self._budget), 2):
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


#: Fields of HloModuleProto, HloComputationProto, HloInstructionProto and OpMetadata, by number.
_ENTRY_ID = 6
_COMPUTATION_ID = 5
_OPCODE = 2
_METADATA = 7
_PARAMETER = 9
_OP_NAME = 2


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
    for data in wire.select(fields, 3):
        computation = list(wire.walk(data, budget))
        if [f.value for f in computation if f.number == _COMPUTATION_ID] != entry:
            continue
        for member in wire.select(computation, 2):
            instruction = list(wire.walk(member, budget))
            if _field_text(instruction, _OPCODE) == "parameter":
                place = next((f.value for f in instruction if f.number == _PARAMETER), 0)
                metadata = next(wire.select(instruction, _METADATA), memoryview(b""))
                name = _field_text(wire.walk(metadata, budget), _OP_NAME)
                names[place if isinstance(place, int) else 0] = name
    ordered = tuple(names.get(n, "") for n in range(len(names)))
    return ordered if all(ordered) else ()


def _field_text(fields: Iterable[wire.Field], number: int) -> str:
    data = next(wire.select(fields, number), memoryview(b""))
    return bytes(data[:256]).decode("utf-8", "backslashreplace")
