"""Graphs of torch: an inert machine reads what pickle writes, and runs nothing."""

import json
import lzma
import os
import pickle
import pickletools
import struct
from collections import Counter, OrderedDict
from pathlib import Path
from typing import Any

import pytest
from conftest import CORPUS, RunCli
from hypothesis import given, settings
from hypothesis import strategies as st

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
from layouts.torch_files import Trap, graphs

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


@settings(max_examples=50)
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
    (record,) = found.root
    expected = (("posix.mkdir",), Global("posix", "mkdir"), (str(trap),))
    assert (found.globals, record.callee, record.arguments) == expected
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
    found = read_pickle(b"\x80\x04(]\x94" + doubling + b"l.")
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
        (b"\x80\x05" + b"N0" * 60_000 + b"N.", "more than 110000 operations"),
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
        read_pickle(data, max_operations=110_000)


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


# What TORCH_CACHING_PRECOMPILE keeps of a function.


KEY = "5" * 64


@pytest.fixture(scope="session")
def precompiled() -> bytes:
    """A real one, of torch 2.15; see ``PROVENANCE.md`` there."""
    return lzma.decompress((CORPUS.parent / "torch" / "precompiled.xz").read_bytes())


def put(cache: Path, data: bytes) -> Path:
    path = cache / "dynamo" / KEY / "entry"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    os.utime(path, (1e9, 1e9))
    return path


def problems(run_cli: RunCli, cache: Path) -> set[tuple[str, str]]:
    done = run_cli("verify", "-C", cache, "--json")
    found = json.loads(done.stdout)["problems"]
    assert done.returncode == bool(found)
    return {(p["file"], p["kind"]) for p in found}


def with_guards(data: bytes, guards: bytes) -> bytes:
    """The same with other guards, a pickle inside, of the same length or less."""
    tables = [t for t in walk(read_pickle(data).root) if isinstance(t, PickledTable)]
    (old,) = (t.get("guards_state") for t in tables if t.get("guards_state") is not None)
    pairs, odd = divmod(len(old) - len(guards), 2)
    return data.replace(old, guards[:-1] + b"\x94" * odd + b"N0" * pairs + b".", 1)


def test_a_real_one_is_an_entry_with_its_function_that_travels_and_goes(
    run_cli: RunCli, torch_cache: Path, precompiled: bytes, tmp_path: Path
) -> None:
    path = put(torch_cache, precompiled)
    assert problems(run_cli, torch_cache) == set()
    (entry,) = (e for e in graphs(run_cli, torch_cache) if e["module"] == "dynamo")
    facts = (entry["key"], entry["function"], entry["size_bytes"])
    assert facts == (f"dynamo-{KEY}", "scale", len(precompiled))
    graph = decode_graph(precompiled, "dynamo")
    assert len(graph.references) == 1
    assert "torch._dynamo.guards.GuardsState" in graph.globals
    assert "PrecompileCacheEntry" in run_cli("show", "-C", torch_cache, KEY).stdout
    bundle, there = tmp_path / "all.jxb", tmp_path / "there"
    assert run_cli("export", "-C", torch_cache, bundle).returncode == 0
    assert run_cli("import", bundle, "-C", there).returncode == 0
    assert (there / path.relative_to(torch_cache)).read_bytes() == precompiled
    for words in (("rm", KEY), ("prune", "--max-size", "1kB", "--grace", "0s")):
        put(torch_cache, precompiled)
        assert run_cli(*words, "-C", torch_cache, "-y").returncode == 0
        assert not path.exists()


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b"", "empty"),
        (b"\x80\x04", "truncated"),
        (pickle.dumps({"a": 1}, 4), "wrong-class"),
        (pickle.dumps(Trap("trap"), 4), "foreign-globals"),
    ],
)
def test_a_damaged_or_hostile_one_is_named_and_goes_to_quarantine(
    run_cli: RunCli, torch_cache: Path, data: bytes, kind: str
) -> None:
    path = put(torch_cache, data)
    assert (str(path.relative_to(torch_cache)), kind) in problems(run_cli, torch_cache)
    for words in (("ls",), ("show", KEY), ("stats",), ("verify", "--fix")):
        run_cli(*words, "-C", torch_cache)
    assert not path.exists()
    assert not Path("trap").exists() and not (torch_cache / "trap").exists()


def test_a_command_among_guards(run_cli: RunCli, torch_cache: Path, precompiled: bytes) -> None:
    """Classes of the program may be there."""
    sound = with_guards(precompiled, b"\x80\x04c__main__\nModel\n)\x81.")
    path = put(torch_cache, sound)
    assert problems(run_cli, torch_cache) == set()
    assert "__main__.Model" in decode_graph(sound, "dynamo").globals
    put(torch_cache, with_guards(precompiled, pickle.dumps(Trap("trap"), 4)))
    found = problems(run_cli, torch_cache)
    assert found == {(str(path.relative_to(torch_cache)), "foreign-globals")}


def test_the_operations_of_all_guards_are_bounded_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jaxcache.layouts.torch.pickled.MAX_OPERATIONS", 1_000)
    guards = b"\x80\x04" + b"N0" * 300 + b"N."
    one = b"}X\x0c\0\0\0guards_stateB" + len(guards).to_bytes(4, "little") + guards + b"s"
    data = b"\x80\x04ctorch._dynamo.package\nPrecompileCacheEntry\n)\x81}X\x01\0\0\0a](%besb."
    decode_graph(data % one, "dynamo")
    with pytest.raises(PickleError, match="more than"):
        decode_graph(data % (one + one), "dynamo")
