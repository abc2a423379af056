"""Protobuf's wire format at its limits, files of records, and types as people write them."""

import pytest

from entry import forge
from jaxcache.core.wire import (
    Budget,
    Field,
    WireError,
    first_bytes,
    read_varint,
    walk,
    write_field,
    write_varint,
)
from jaxcache.entry.contents import ArrayType, array_types, parse_short_type
from jaxcache.entry.envelope import read_split_message
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


def test_a_program_has_a_number_of_arrays_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jaxcache.entry.contents.MAX_ARRAYS", 200)
    pair = parse("Shape", forge.number(2, 13) + forge.message(4, forge.shape(11)) * 2)
    assert len(array_types([pair] * 100)) == 200
    with pytest.raises(WireError, match="more arrays"):
        array_types([pair] * 101)


def test_element_types_are_named_by_their_number() -> None:
    def name(number: int) -> str:
        return array_types([parse("Shape", forge.shape(number))])[0].dtype

    # Some of PrimitiveType in xla/xla_data.proto, the first and the last among them.
    known = {1: "bool", 5: "int64", 14: "opaque", 22: "uint4", 28: "float8_e4m3", 34: "buffer"}
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


# Riegeli files that are not as XLA writes them: which reason is given.


START = forge.riegeli([])
#: A manifest with a record that overrides a field within a field.
NESTED = forge.message(1, b"t") + forge.message(
    2, forge.message(3, forge.message(1, forge.number(1, 3)) * 2, forge.number(2, 1))
)


def read(data: bytes, *, check: bool = True, budget: int = 1000) -> None:
    read_split_message(memoryview(data), Budget(budget), check=check)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "without records"),
        (START, "without records"),
        (START[:20], "cut off in a block header"),
        (START[:40], "cut off"),
        (START + forge.chunk(b""), "an empty chunk"),
        (START + forge.chunk(b"\0\x01\x01x", kind=b"z"), "chunk of type b'z'"),
        (START + forge.chunk(b"b\x01\x01x"), "compressed with b'b'"),
        (START + forge.chunk(b"\0\x05\x01x"), "sizes run past its end"),
        (START + forge.chunk(b"\0\x01\x01x", records=2), "announces 2 records in 1 bytes"),
        (START + forge.chunk(b"\0\x01\x02x"), "runs past its chunk"),
        (START + forge.chunk(b"\0\x01\x00x"), "more than its records"),
        (START + forge.chunk(b"\0\x02\x01\x01x"), "more than its records"),
        (START + forge.chunk(b"\0\x01\x01x")[:-1], "announces 4 bytes"),
        (forge.riegeli(forge.split(b"t", [b""])[:1]), "names 1 records, and 0 follow"),
        (forge.riegeli([*forge.split(b"t", [b""]), b""]), "names 1 records, and 2 follow"),
        (forge.riegeli([NESTED, b"x"]), "nested field"),
    ],
)
def test_what_is_wrong_with_a_file_of_records_is_said(data: bytes, reason: str) -> None:
    with pytest.raises(WireError, match=reason):
        read(data)


def test_hashes_of_data_are_checked_where_that_is_asked_for() -> None:
    data = bytearray(forge.riegeli(forge.split(b"t", [forge.message(9, b"data")])))
    data[-1] ^= 1
    with pytest.raises(WireError, match="hash of its data"):
        read(bytes(data))
    read(bytes(data), check=False)
    data[24 + 40 + 8] ^= 1  # in the header of the first chunk with records
    with pytest.raises(WireError, match="header at byte 64"):
        read(bytes(data), check=False)


def test_records_count_against_the_budget() -> None:
    data = forge.riegeli(forge.split(b"t", [b"", b""]), per_chunk=3)
    read(data, budget=3)
    with pytest.raises(WireError, match="more records"):
        read(data, budget=2)


def test_a_file_of_tiny_chunks_without_records_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """A megabyte of such zeros-and-hashes, which compresses to nothing, took minutes."""
    monkeypatch.setattr("jaxcache.entry.envelope._MAX_CHUNKS", 20, raising=False)
    empty = forge.chunk(b"", kind=b"s", records=0, decoded=0)
    read(forge.riegeli(forge.split(b"t", [b"", b""])))
    with pytest.raises(WireError, match="more chunks"):
        read(START + empty * 20)


def test_pieces_come_in_order() -> None:
    records = forge.split(b"some.Type", [forge.message(1, b"a"), b""], [(7, b"own")])
    split = read_split_message(memoryview(forge.riegeli(records)), Budget())
    assert (split.type_name, split.compression) == ("some.Type", "none")
    assert [p if isinstance(p, Field) else bytes(p) for p in split.pieces] == [
        Field(7, 2, memoryview(b"own")),
        forge.message(1, b"a"),
        b"",
    ]
    packed = read_split_message(memoryview(forge.riegeli(records, snappy=True)), Budget())
    assert packed.compression == "snappy"


def test_snappy_may_not_announce_more_than_it_can_hold() -> None:
    records = forge.split(b"t", [bytes(5000)])
    read(forge.riegeli(records, snappy=True))
    with pytest.raises(WireError, match="snappy announces 100000 bytes"):
        read(forge.riegeli(records, snappy=True, lie=100_000))
    with pytest.raises(WireError, match=r"damaged|holds"):
        read(forge.riegeli(records, snappy=True, lie=20))
