"""The inert machine: reads what pickle writes, runs nothing, and cannot be exhausted."""

import pickle
import pickletools
import struct
from collections import Counter, OrderedDict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch_files import Trap

from jaxcache.layouts.torch.graph import decode_graph
from jaxcache.layouts.torch.pickled import (
    Global,
    PickledRecord,
    PickledSet,
    PickledTable,
    PickleError,
    read_pickle,
    walk,
)

SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary()
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text(), inner)
        | st.frozensets(st.integers())
    ),
    max_leaves=30,
)


def plain(value: Any) -> Any:
    """An inert value as what it stands for."""
    if isinstance(value, PickledTable):
        return {plain(k): plain(v) for k, v in value.items}
    if isinstance(value, PickledSet):
        return frozenset(map(plain, value.items))
    if isinstance(value, list | tuple):
        return type(value)(map(plain, value))
    if isinstance(value, PickledRecord):  # protocols below 4 build sets by a call
        assert str(value.callee) in ("builtins.frozenset", "__builtin__.frozenset")
        return frozenset(plain(value.arguments[0]))
    return value


@given(VALUES, st.integers(3, 5))
def test_what_pickle_wrote_is_read(value: Any, protocol: int) -> None:
    assert plain(read_pickle(pickle.dumps(value, protocol)).root) == value


@given(st.binary(max_size=300))
def test_any_bytes_are_a_pickle_or_an_error(data: bytes) -> None:
    try:
        read_pickle(data)
    except PickleError as error:
        assert error.detail


@given(st.data())
def test_a_damaged_pickle_is_read_or_an_error(data: st.DataObject) -> None:
    whole = pickle.dumps({"a": [OrderedDict(x=1), Counter("ab")], "b": (1, 2.0, "c")}, 4)
    broken = bytearray(whole)
    for _ in range(data.draw(st.integers(1, 4))):
        broken[data.draw(st.integers(0, len(broken) - 1))] = data.draw(st.integers(0, 255))
    try:
        list(walk(read_pickle(bytes(broken[: data.draw(st.integers(0, len(whole)))])).root))
    except PickleError as error:
        assert error.detail


@pytest.mark.parametrize("protocol", range(6))
def test_a_hostile_pickle_is_listed_and_never_run(tmp_path: Path, protocol: int) -> None:
    trap = tmp_path / "trap"
    data = pickle.dumps([Trap(trap)], protocol)
    found = read_pickle(data)
    assert not trap.exists()
    assert found.globals == ("posix.mkdir",)
    (record,) = found.root
    assert record.callee == Global("posix", "mkdir")
    assert record.arguments == (str(trap),)
    pickle.loads(data)  # the trap is real
    assert trap.exists()


@pytest.mark.parametrize(
    "data",
    [
        b"cposix\nsystem\n(S'touch trap'\ntR.",  # GLOBAL, REDUCE
        b"(S'touch trap'\niposix\nsystem\n.",  # INST
        b"(cposix\nsystem\nS'touch trap'\no.",  # OBJ
        b"\x80\x02cposix\nsystem\n(S'touch trap'\nt\x81.",  # NEWOBJ
        b"\x80\x04\x8c\x05posix\x8c\x06system\x93\x8c\x0atouch trap\x85}\x92.",  # NEWOBJ_EX
    ],
)
def test_every_way_to_call_is_a_record(data: bytes) -> None:
    found = read_pickle(data)
    assert found.globals == ("posix.system",)
    assert isinstance(found.root, PickledRecord)
    assert "touch trap" in list(walk(found.root))


def test_state_is_kept_and_never_set() -> None:
    data = b"\x80\x02cbuiltins\nobject\n)\x81}X\x01\x00\x00\x00aK\x01sb."
    assert read_pickle(data).root.get("a") == 1
    slots = b"\x80\x02cbuiltins\nobject\n)\x81N}X\x01\x00\x00\x00aK\x01s\x86b."
    assert read_pickle(slots).root.get("a") == 1


def test_references_to_the_memo_cost_nothing() -> None:
    """Each list holds the one before it twice: 2^60 leaves in 200 bytes."""
    doubling = b"".join(b"](h%ch%ce\x94" % (n, n) for n in range(60))
    body = b"\x80\x04(]\x94" + doubling + b"l."
    found = read_pickle(body)
    assert sum(1 for _ in walk(found.root)) < 200


def test_a_call_of_what_is_no_name_is_not_printed() -> None:
    """Each tuple holds the one before it twice, and the last is "called": as text, 2^20 zeros."""
    doubling = b"".join(b"\x94h%c\x86" % n for n in range(20))
    graph = decode_graph(b"\x80\x04K\x00" + doubling + b")R.", "fxgraph")
    assert len(graph.root) < 100


def test_a_list_within_itself_ends() -> None:
    loop: list[Any] = []
    loop.append(loop)
    found = read_pickle(pickle.dumps(loop))
    assert found.root[0] is found.root
    assert len(list(walk(found.root))) == 1


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"\x80\x04" + b"(" * 100_000 + b".", "nested deeper"),
        (b"\x80\x04" + b"]" * 300 + b"a" * 299 + b".", "nested deeper"),
        (b"\x80\x04N" + b"\x85" * 1_000 + b".", "nested deeper"),
        (b"\x80\x04\x8d" + struct.pack("<Q", 1 << 62) + b"abc.", "2305|4611|expected|exceeds"),
        (b"\x80\x04X" + struct.pack("<I", (1 << 32) - 1) + b"abc.", "expected"),
        (b"\x80\x04\x8e" + struct.pack("<Q", (1 << 64) - 1) + b".", "expected|exceeds|maxsize"),
        (b"\x80\x02\x8b" + struct.pack("<i", (1 << 31) - 1) + b"1.", "enough data|expected"),
        (b"\x80\x02\x8b" + struct.pack("<i", -5) + b".", "negative|byte count"),
        (b"I" + b"9" * 50_000 + b"\n.", "limit"),
        (b"\x80\x05" + b"N0" * 600_000 + b"N.", "more than 1000000 operations"),
        (b"\x80\x05\x97.", "NEXT_BUFFER"),
        (b"h\x05.", "unknown memo index"),
        (b"}NNu.", "MARK missing"),
        (b"(N}(Nu.", "MARK missing|without a value|leaves"),
        (b"R.", "stack"),
        (b"NNR", "exhausted"),
        (b"NN.", "leaves"),
        (b"N.more", "4 bytes after"),
        (b"", "exhausted"),
        (b"\xff", "opcode"),
    ],
)
def test_what_is_no_honest_pickle_is_one_error(data: bytes, why: str) -> None:
    with pytest.raises(PickleError, match=why):
        read_pickle(data)


def test_size_is_bounded_before_anything_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jaxcache.layouts.torch.pickled.MAX_BYTES", 10)
    with pytest.raises(PickleError, match="more than the 10"):
        read_pickle(b"N" * 11)


def test_every_operation_of_pickle_is_known_or_refused() -> None:
    """A new opcode in a newer Python must not be taken for anything."""
    from jaxcache.layouts.torch import pickled

    known = {*pickled._HANDLERS, *pickled._LITERALS, *pickled._CONSTANTS}
    names = {op.name for op in pickletools.opcodes}
    assert names - known == {"NEXT_BUFFER", "READONLY_BUFFER"}
    assert known <= names
