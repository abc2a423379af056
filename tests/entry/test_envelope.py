"""Riegeli files that are not as XLA writes them: which reason is given."""

import forge
import pytest

from jaxcache.core.wire import Budget, Field, WireError
from jaxcache.entry.envelope import read_split_message

START = forge.riegeli([])


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
    ],
)
def test_what_is_wrong_is_said(data: bytes, reason: str) -> None:
    with pytest.raises(WireError, match=reason):
        read(data)


def test_a_record_that_overrides_a_nested_field_is_refused() -> None:
    path = forge.message(1, forge.number(1, 3)) * 2
    manifest = forge.message(1, b"t") + forge.message(2, forge.message(3, path, forge.number(2, 1)))
    with pytest.raises(WireError, match="nested field"):
        read(forge.riegeli([manifest, b"x"]))


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
