"""Protobuf's wire format at its limits, and types as people write them."""

import forge
import pytest

from jaxcache.core.wire import (
    Budget,
    WireError,
    first_bytes,
    read_varint,
    walk,
    write_field,
    write_varint,
)
from jaxcache.entry.contents import ArrayType, array_types, parse_short_type
from jaxcache.entry.messages import MAX_MESSAGE_BYTES, parse


@pytest.mark.parametrize("value", [0, 1, 127, 128, 300, (1 << 63) + 1, (1 << 64) - 1])
def test_numbers_read_as_they_were_written(value: int) -> None:
    data = write_varint(value)
    assert read_varint(memoryview(b"x" + data + b"x"), 1) == (value, 1 + len(data))
    assert len(data) == max(1, -(-value.bit_length() // 7))


def test_a_number_has_ten_bytes_at_most() -> None:
    assert read_varint(memoryview(b"\xff" * 9 + b"\x01"), 0) == ((1 << 64) - 1, 10)
    assert read_varint(memoryview(b"\xff" * 9 + b"\x7f"), 0) == ((1 << 64) - 1, 10)
    for data in (b"\xff" * 10 + b"\x01", b"\xff" * 3, b""):
        with pytest.raises(WireError, match="past the end"):
            read_varint(memoryview(data), 0)


def test_fields_are_written_as_they_were_read() -> None:
    fixed = write_varint(3 << 3 | 1) + bytes(range(8)) + write_varint(4 << 3 | 5) + b"abcd"
    data = forge.number(1, 300) + forge.message(2000, b"text") + fixed
    assert b"".join(map(write_field, walk(memoryview(data), Budget()))) == data


def test_a_budget_is_for_all_walks_together() -> None:
    data, budget = memoryview(forge.number(1, 1) * 3), Budget(5)
    assert len(list(walk(data, budget))) == 3
    with pytest.raises(WireError, match="more fields"):
        list(walk(data, budget))
    assert len(list(walk(data, Budget(3)))) == 3


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"\x00\x01", "a field without a number"),
        (b"\x0b", r"the executable's protobuf is damaged \(field 1\)"),
        (b"\x09" + bytes(7), "field 1 runs past"),
        (b"\x0d" + bytes(3), "field 1 runs past"),
        (b"\x0a\x03ab", "announces 3 bytes where 2"),
    ],
)
def test_what_is_no_message_is_refused(data: bytes, reason: str) -> None:
    with pytest.raises(WireError, match=reason):
        list(walk(memoryview(data), Budget()))


@pytest.mark.parametrize("data", [b"\x09" + bytes(8), b"\x0d" + bytes(4), b"\x0a\x02ab"])
def test_a_field_may_end_where_the_message_does(data: bytes) -> None:
    assert len(list(walk(memoryview(data), Budget()))) == 1


def test_the_first_bytes_of_a_number_are_found() -> None:
    data = memoryview(forge.number(2, 7) + forge.message(2, b"a") + forge.message(2, b"b"))
    assert first_bytes(data, 2, Budget()) == b"a"
    assert first_bytes(data, 3, Budget()) is None


def test_messages_have_a_size_at_most() -> None:
    most = forge.message(9, bytes(MAX_MESSAGE_BYTES - 5))  # 1 byte of tag and 4 of length
    assert len(most) == MAX_MESSAGE_BYTES
    assert parse("Shape", most).element_type == 0
    with pytest.raises(WireError, match="larger than any"):
        parse("Shape", most + b"\x10")


def test_a_program_has_a_number_of_arrays_at_most() -> None:
    pair = parse("Shape", forge.number(2, 13) + forge.message(4, forge.shape(11)) * 2)
    assert len(array_types([pair] * 100_000)) == 200_000
    with pytest.raises(WireError, match="more arrays"):
        array_types([pair] * 100_001)


def test_element_types_are_named_by_their_number() -> None:
    def name(number: int) -> str:
        return array_types([parse("Shape", forge.shape(number))])[0].dtype

    # Some of PrimitiveType in xla/xla_data.proto, the first and the last among them.
    known = {
        1: "bool",
        5: "int64",
        9: "uint64",
        12: "float64",
        14: "opaque",
        15: "complex64",
        17: "token",
        18: "complex128",
        22: "uint4",
        28: "float8_e4m3",
        31: "uint1",
        34: "buffer",
    }
    assert {n: name(n) for n in known} == known
    assert (name(0), name(35)) == ("type0", "type35")


@pytest.mark.parametrize(
    ("text", "array"),
    [
        ("f32[8,16]", ArrayType("float32", (8, 16))),
        (" i32[] ", ArrayType("int32", ())),
        ("s32[ 3 , 4 ]", ArrayType("int32", (3, 4))),
        ("bool[4]", ArrayType("bool", (4,))),
        ("pred[4]", ArrayType("bool", (4,))),
        ("bf16[1]", ArrayType("bfloat16", (1,))),
        ("c128[2]", ArrayType("complex128", (2,))),
        ("u4[2]", ArrayType("uint4", (2,))),
        ("float8_e4m3fn[2]", ArrayType("float8_e4m3fn", (2,))),
        ("f8e4m3fn[2]", ArrayType("float8_e4m3fn", (2,))),
        ("f32[" + ",".join("1" * 64) + "]", ArrayType("float32", (1,) * 64)),
        ("f32[" + ",".join("1" * 65) + "]", None),
        ("f32[" + "9" * 18 + "]", ArrayType("float32", (10**18 - 1,))),
        ("f32[" + "9" * 19 + "]", None),
        ("token[]", None),
        ("tuple[2]", None),
        ("f33[2]", None),
        ("f32", None),
        ("f32[2", None),
    ],
)
def test_types_are_read_in_every_notation(text: str, array: ArrayType | None) -> None:
    assert parse_short_type(text) == array
