"""Compile options and XLA's flags: what each field becomes."""

import struct

import pytest
import zstandard
from conftest import CORPUS

from entry import forge
from jaxcache.core.wire import Budget, WireError, write_varint
from jaxcache.entry.decode import decode_payload
from jaxcache.entry.options import (
    flag_names,
    flag_values,
    known_defaults,
    nearest_version,
    read_options,
    same_generation,
)

NUMBERS = {name: number for number, name in flag_names().items()}


def fixed(field: int, kind: int, data: bytes) -> bytes:
    return write_varint(field << 3 | kind) + data


def override(name: bytes, value: bytes) -> bytes:
    return forge.message(7, forge.message(1, name), forge.message(2, value))


@pytest.mark.parametrize(
    ("field", "texts"),
    [
        (forge.number(9, 3), ("i3",)),
        (forge.number(9, (1 << 64) - 2), ("i-2",)),
        (fixed(9, 5, struct.pack("<f", 0.5)), ("f0.5",)),
        (fixed(9, 1, struct.pack("<d", 0.1)), ("d0.1",)),
        (forge.message(9, b"b") + forge.message(9, b"a"), ("x61", "x62")),  # in order
    ],
)
def test_flags_keep_their_type(field: bytes, texts: tuple[str, ...]) -> None:
    assert flag_values(memoryview(field)) == {9: texts}


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (forge.number(2, 1), True),
        (forge.number(3, 1), 1),
        (forge.message(1, b"text"), "text"),
        (fixed(4, 1, struct.pack("<d", 2.5)), 2.5),
        (b"", None),
    ],
)
def test_overrides_of_every_type(value: bytes, shown: object) -> None:
    options = memoryview(override(b"xla_some_flag", value))
    found = read_options(options, None, Budget()).compile_options.flags_changed
    assert found == {"xla_some_flag": shown}
    assert type((found or {})["xla_some_flag"]) is type(shown)


def changed(*fields: bytes) -> dict[str, object]:
    """What counts as changed when these fields are put behind a known version's defaults."""
    version, defaults = next(reversed(known_defaults().items()))
    encoded = {
        "i": lambda n, t: forge.number(n, int(t) % (1 << 64)),
        "f": lambda n, t: fixed(n, 5, struct.pack("<f", float(t))),
        "d": lambda n, t: fixed(n, 1, struct.pack("<d", float(t))),
        "x": lambda n, t: forge.message(n, bytes.fromhex(t)),
    }
    debug = b"".join(encoded[t[0]](n, t[1:]) for n, texts in defaults.items() for t in texts)
    found = read_options(None, memoryview(forge.message(14, debug, *fields)), Budget())
    assert found.like_jaxlib == version
    return dict(found.compile_options.flags_changed or {})


def test_what_jax_sets_by_itself_is_no_change_of_the_users() -> None:
    assert changed() == {}
    for name in (
        "xla_detailed_logging",
        "xla_gpu_enable_llvm_module_compilation_parallelism",
        "xla_gpu_experimental_autotune_cache_mode",
        "xla_pjrt_allow_auto_layout_in_hlo",
    ):
        assert changed(forge.number(NUMBERS[name], 3)) == {}, name


def test_what_is_printable_is_text_and_the_rest_hexadecimal() -> None:
    number = NUMBERS["xla_dump_to"]
    assert changed(forge.message(number, b"/tmp/x"))["xla_dump_to"] in ("/tmp/x", ", /tmp/x")
    unused = max(flag_names()) + 1000
    assert changed(forge.message(unused, b"\x01\x02")) == {f"#{unused}": "0x0102"}
    assert changed(forge.message(unused, b"\xff")) == {f"#{unused}": "0xff"}
    assert changed(forge.number(unused, 1), forge.number(unused, 2)) == {f"#{unused}": "1, 2"}


def test_a_kernel_cache_is_noticed_by_its_path() -> None:
    path = next(CORPUS.glob("*kernelcache/jit_mlp*-cache"))
    on = zstandard.decompress(path.read_bytes())[4:]
    assert decode_payload(on, parts="origin").kernel_cache is True
    for payload in (forge.outer(forge.cpu_result(forge.module())), b"no entry"):
        off = decode_payload(payload, parts="origin")
        assert (off.kernel_cache, off.written_in_cache_dir) == (False, None)


def test_replicas_come_from_the_options_first_and_from_the_module_else() -> None:
    options = memoryview(forge.message(3, forge.number(4, 2), forge.number(5, 3)))
    config = memoryview(forge.number(4, 7) + forge.number(5, 8))
    for given, expected in ((options, (2, 3)), (None, (7, 8))):
        found = read_options(given, config, Budget()).compile_options
        assert (found.num_replicas, found.num_partitions) == expected


def test_the_device_assignment_is_turned_to_replica_then_partition_and_has_bounds() -> None:
    def read(rows: int, *columns: bytes) -> tuple[tuple[int, ...], ...] | None:
        parts = (forge.message(3, forge.message(1, column)) for column in columns)
        assignment = forge.message(9, forge.number(1, rows), forge.number(2, len(columns)), *parts)
        found = read_options(memoryview(forge.message(3, assignment)), None, Budget())
        return found.compile_options.device_assignment

    assert read(2, b"\0\1", b"\2\3") == ((0, 2), (1, 3))
    assert read(1 << 16, bytes(1 << 16)) == ((0,),) * (1 << 16)
    for rows, *columns in ((3, b"\0\1", b"\2\3"), (1 << 17, bytes(1 << 17))):
        with pytest.raises(WireError, match="not a matrix"):
            read(rows, *columns)


def test_flags_beyond_a_dozen_are_another_versions_and_not_changes() -> None:
    unused = max(flag_names()) + 1000
    assert len(changed(*(forge.number(unused + n, 1) for n in range(12)))) == 12
    assert changed(*(forge.number(unused + n, 1) for n in range(13))) == {}


def test_one_generation_differs_by_four_flags_at_most() -> None:
    flags = {f"f{n}" for n in range(50)}
    assert same_generation(flags, {*flags, "a", "b", "c", "d"})
    assert not same_generation(flags, {*flags, "a", "b", "c", "d", "e"})
    version, defaults = next(reversed(known_defaults().items()))
    names = frozenset(flag_names().get(n, f"#{n}") for n in defaults)
    more = [f"new_{n}" for n in range(5)]
    assert nearest_version(names | set(more[:4])) == version
    assert nearest_version(names | set(more)) is None


@pytest.mark.parametrize(
    ("flags", "directory"),
    [
        ({310: b"/a/autotune", 306: b"/b/kernels"}, "/a"),
        ({306: b"/b/kernels"}, "/b"),
        ({310: b"", 306: b"/b/kernels"}, "/b"),
        ({310: b"relative"}, None),
        ({}, None),
    ],
)
def test_the_directory_is_told_by_paths(flags: dict[int, bytes], directory: str | None) -> None:
    debug = b"".join(forge.message(n, path) for n, path in flags.items())
    found = read_options(None, memoryview(forge.message(14, debug)), Budget())
    assert found.written_in_cache_dir == directory
