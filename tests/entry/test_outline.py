"""A program as comparable lines: what each word of a line stands for."""

import struct

import forge
import pytest

from jaxcache.entry.hlo import MAX_LINES, outline
from jaxcache.entry.wire import WireError, write_varint


def instruction(opcode: bytes, *more: bytes, shape: bytes = forge.shape(11, 2)) -> bytes:
    return (
        forge.message(1, b"any.name")
        + forge.message(2, opcode)
        + forge.message(3, shape)
        + b"".join(more)
    )


def lines(*instructions: bytes, extra: bytes = b"") -> list[str]:
    found = outline(memoryview(forge.module(instructions=instructions, extra=extra)))
    return [line.strip() for line in found if line.startswith("  ")] if not extra else found


def fixed(field: int, kind: int, data: bytes) -> bytes:
    return write_varint(field << 3 | kind) + data


def test_an_instruction_is_opcode_type_and_operands() -> None:
    found = outline(
        memoryview(
            forge.module(
                instructions=[
                    instruction(b"parameter", forge.number(35, 7)),
                    instruction(b"constant", forge.number(35, 300), shape=forge.shape(20, 3)),
                    instruction(
                        b"add",
                        forge.message(36, write_varint(7), write_varint(300), write_varint(9)),
                    ),
                    instruction(b"negate", forge.number(36, 7), shape=forge.shape(16)),
                    instruction(b"sine", forge.number(36, 7), shape=forge.shape(18, 1)),
                ]
            )
        )
    )
    assert found == [
        "computation:",
        "  parameter f32[2]",
        "  constant f8e4m3fn[3]",
        "  add f32[2] (parameter, constant, ?)",
        "  negate bf16[] (parameter)",
        "  sine c128[1] (parameter)",
    ]


def test_a_tuple_shows_its_parts_and_what_is_no_shape_a_question_mark() -> None:
    pair = (
        forge.number(2, 13) + forge.message(4, forge.shape(1, 4)) + forge.message(4, forge.shape(4))
    )
    assert lines(instruction(b"tuple", shape=pair)) == ["tuple (pred[4], s32[])"]
    assert lines(instruction(b"tuple", shape=b"\xff\xff")) == ["tuple ?"]


@pytest.mark.parametrize(
    ("literal", "shown"),
    [
        (forge.message(4, write_varint(5)), "= 5"),
        (forge.message(5, write_varint((1 << 64) - 3)), "= -3"),
        (forge.message(8, struct.pack("<f", 1.5)), "= 1.5"),
        (forge.message(9, struct.pack("<d", -0.25)), "= -0.25"),
        (
            forge.message(3, b"ignored") + forge.message(7, write_varint(2**63 - 1)),
            f"= {2**63 - 1}",
        ),
    ],
)
def test_scalars_are_numbers(literal: bytes, shown: str) -> None:
    assert lines(instruction(b"constant", forge.message(8, literal))) == [
        f"constant f32[2] {shown}"
    ]


@pytest.mark.parametrize(
    "literal",
    [forge.message(4, write_varint(5), write_varint(6)), forge.message(8, bytes(8)), b""],
)
def test_arrays_are_digests(literal: bytes) -> None:
    (line,) = lines(instruction(b"constant", forge.message(8, literal)))
    assert line.startswith("constant f32[2] = #") and len(line) == len("constant f32[2] = #") + 8


def test_precision_is_said_and_names_and_metadata_are_not() -> None:
    precise = forge.message(51, forge.message(1, b"\0\1\2\5"), forge.number(2, 3))
    assert lines(instruction(b"dot", precise)) == [
        "dot f32[2] precision=default/high/highest/5/algorithm 3"
    ]
    assert lines(instruction(b"dot", forge.message(51))) == ["dot f32[2] precision=default"]
    silent = [forge.message(n, b"x") for n in (7, 37, 38, 43)]
    assert lines(instruction(b"dot", *silent)) == ["dot f32[2]"]


def test_every_other_field_counts() -> None:
    def told(*more: bytes) -> str:
        return lines(instruction(b"dot", *more))[0]

    variants = {
        told(),
        told(forge.number(60, 1)),
        told(forge.number(60, 2)),
        told(fixed(61, 5, bytes(4))),
        told(fixed(61, 1, bytes(8))),
        told(forge.message(62, b"x")),
    }
    assert len(variants) == 6


def test_aliases_and_shardings_of_the_module_count() -> None:
    found = lines(
        instruction(b"dot"), extra=b"".join(forge.message(n, b"x") for n in (8, 13, 14, 18))
    )
    words = [line.partition(" #")[0] for line in found]
    assert words[-4:] == ["aliases", "result sharding", "parameter shardings", "donors"]
    assert all(len(line.partition(" #")[2]) == 8 for line in found[-4:])
    assert not any("#" in line for line in lines(instruction(b"dot"), extra=forge.message(8)))


def test_a_long_program_is_cut_and_no_program_refused() -> None:
    many = [instruction(b"add")] * (MAX_LINES + 5)
    assert len(outline(memoryview(forge.module(instructions=many)))) == MAX_LINES
    with pytest.raises(WireError):
        outline(memoryview(b"\xff\xff\xff"))


def test_operands_may_lie_apart_and_behind_other_numbers() -> None:
    found = lines(
        instruction(b"parameter", forge.number(35, 7)),
        instruction(b"constant", forge.number(35, 8)),
        instruction(b"add", forge.number(36, 7), forge.number(60, 1), forge.number(36, 8)),
    )
    assert found[2].startswith("add f32[2] (parameter, constant) #")


def test_numbers_of_the_module_are_passed_over() -> None:
    module = forge.number(5, 1) + forge.module(instructions=[instruction(b"dot")])
    assert outline(memoryview(module)) == ["computation:", "  dot f32[2]"]


def test_a_program_of_just_the_limit_is_whole() -> None:
    module = forge.module(instructions=[instruction(b"add")] * (MAX_LINES - 1))
    assert len(outline(memoryview(module))) == MAX_LINES
    longer = forge.module(instructions=[instruction(b"add")] * MAX_LINES)
    assert outline(memoryview(longer)) == outline(memoryview(module))


def test_a_long_opcode_is_cut() -> None:
    (line,) = lines(instruction(b"x" * 300))
    assert line == "x" * 256 + " f32[2]"
