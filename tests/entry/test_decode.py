"""Decoding real entries of every generation, forged ones, damaged ones and hostile ones."""

import io
import json
import os
import sys
from dataclasses import astuple
from pathlib import Path
from typing import Any

import pytest
import zstandard
from bundling import payload_of
from conftest import CORPUS, clean_environment
from hypothesis import given, settings
from hypothesis import strategies as st
from processes import sh

from entry import forge
from jaxcache.core.names import parse_key
from jaxcache.core.wire import Field, write_varint
from jaxcache.entry.contents import ArrayType, Contents, Device, Program, SourceLine, signature
from jaxcache.entry.decode import decode_payload, read_contents
from jaxcache.entry.envelope import tell_platform
from jaxcache.entry.names import split_name
from jaxcache.entry.summary import summarize_contents

#: What every entry of the corpus decodes to; JAXCACHE_UPDATE_GOLDEN=1 writes it anew.
GOLDEN = Path(__file__).parents[1] / "data" / "decoded.json"
ENTRIES = sorted(CORPUS.glob("*/*-cache"))


def decode_file(path: Path, module: str) -> Contents:
    with open(path, "rb") as file:
        return read_contents(file, path.stat().st_size, module)


def facts(contents: Contents) -> dict[str, Any]:
    """The gist of an entry, for the golden file."""
    program, device, options = contents.program, contents.device, contents.compile_options
    assert program is not None
    return {
        "signature": signature(program.parameters, program.results),
        "instructions": program.instructions,
        "computations": program.computations,
        "opcodes": program.opcodes,
        "custom_calls": program.custom_calls,
        "source": [f"{s.file}:{s.line} {s.function}" for s in contents.source],
        "memory": astuple(contents.memory),
        "device": [
            *(device.platform, device.target, device.name, device.toolkit, device.cudnn),
            device.cpu_triple,
            None if device.cpu_features is None else len(device.cpu_features),
        ],
        "options": [options.num_replicas, options.num_partitions, options.device_assignment],
        "flags_changed": options.flags_changed,
        "format": [contents.format.ifrt_version, contents.format.abi, contents.format.container],
        "written_in_cache_dir": contents.written_in_cache_dir,
    }


def test_what_real_entries_decode_to_has_not_changed() -> None:
    found = {}
    for path in ENTRIES:
        key = parse_key(split_name(path.name)[1] or "")
        assert key
        contents = decode_file(path, key.module)
        assert contents.problems == (), path
        assert contents.program and contents.program.module == key.module
        found[f"{path.parent.name}/{path.name}"] = facts(contents)
        other = decode_file(path, "jit_other")
        assert [kind for kind, _ in other.problems] == ["module-mismatch"]
        assert other.program == contents.program
    if os.environ.get("JAXCACHE_UPDATE_GOLDEN"):
        GOLDEN.write_text(json.dumps(found, indent=1) + "\n")
    assert json.loads(json.dumps(found)) == json.loads(GOLDEN.read_text())


@pytest.mark.parametrize("snappy", [False, True])
@pytest.mark.parametrize("per_chunk", [1, 3])
def test_a_tpu_executable(snappy: bool, per_chunk: int) -> None:
    records = forge.split(
        b"xla.TpuExecutableProto",
        [
            forge.message(1, b"not decoded"),
            forge.message(2, forge.message(1, forge.module(b"jit_t"))),
            forge.message(4, forge.message(3, forge.number(4, 2), forge.number(5, 4))),
            forge.message(9, bytes(70_000)),  # reaches over a block header
            forge.message(5, b"not decoded either"),
        ],
    )
    payload = forge.ifrt(forge.riegeli(records, snappy=snappy, per_chunk=per_chunk))
    contents = decode_payload(payload, "jit_t")
    assert contents.problems == ()
    assert contents.device.platform == "tpu"
    assert contents.program and contents.program.instructions == 1
    assert contents.memory.argument_bytes is None and contents.memory.total_bytes is None
    chosen = contents.compile_options
    assert (chosen.num_replicas, chosen.num_partitions) == (2, 4)


@pytest.mark.parametrize(
    ("generation", "variant", "name"),
    [
        (1, b"", "TPU v2"),
        (4, b"", "TPU v5"),
        (4, b"lite", "TPU v5 lite"),
        (5, b"", "TPU v6 lite"),
        (99, b"", None),
    ],
)
def test_the_abi_names_the_tpu(generation: int, variant: bytes, name: str | None) -> None:
    hlo = forge.message(2, forge.message(1, forge.module()))
    file = forge.riegeli(forge.split(b"xla.TpuExecutableProto", [hlo]))
    target = forge.number(1, generation) + forge.message(2, variant)
    contents = decode_payload(forge.ifrt(file, (b"xla::TpuXlaExecutableAbiVersion", target)))
    assert contents.problems == ()
    assert contents.device.name == contents.device.target == name


@pytest.mark.parametrize("says_so", [True, False])  # 0.6.2 and later, and before
def test_a_donated_argument_is_aliased(says_so: bool) -> None:
    def buffer(size: int, *flags: int) -> bytes:
        return forge.message(3, forge.number(2, size), *(forge.number(f, 1) for f in flags))

    donated = buffer(100, 5, 7, *([13] if says_so else []))
    buffers = [donated, buffer(10, 5), buffer(1000, 7), buffer(7), buffer(3, 12), buffer(1, 3)]
    buffers.append(buffer((1 << 64) - 5))  # less than nothing is none
    result = forge.message(1, forge.message(1, forge.module())) + forge.message(2, *buffers)
    memory = decode_payload(forge.outer(result + forge.number(5, 2))).memory
    assert (memory.argument_bytes, memory.output_bytes, memory.alias_bytes) == (110, 1100, 100)
    assert (memory.temp_bytes, memory.constant_bytes, memory.total_bytes) == (7, 3, 1120)


@pytest.mark.parametrize(
    ("fields", "platform"),
    [
        ([Field(5, 0, 1)], "cpu"),
        ([Field(4, 2, memoryview(b"\x7fELF" + bytes(14) + b"\xbe\0"))], "gpu"),
        ([Field(4, 2, memoryview(b"\x7fELF" + bytes(14) + b"\x3e\0"))], "cpu"),
        ([Field(3, 2, memoryview(b"\x7fELF" + bytes(14) + b"\xbe\0"))], "unknown"),
        ([Field(3, 2, memoryview(b".version 8.0\n.target sm_90"))], "gpu"),
        ([Field(8, 2, memoryview(b"x"))], "cpu"),
        ([Field(9, 2, memoryview(b"x"))], "cpu"),
        ([Field(6, 0, 1)], "unknown"),
        ([Field(5, 2, memoryview(b"x"))], "unknown"),
        ([Field(9, 2, memoryview(b"x")), Field(3, 2, memoryview(b".version 8"))], "unknown"),
        ([], "unknown"),
    ],
)
def test_magic_numbers_tell_a_cpu_from_a_gpu(fields: list[Field], platform: str) -> None:
    assert tell_platform(fields) == platform


def test_names_beside_a_large_literal_are_read_up_to_4096_bytes() -> None:
    def target(size: int) -> dict[str, int]:
        literal = forge.message(8, bytes(300_000))
        call = forge.message(2, b"custom-call") + forge.message(28, b"t" * size) + literal
        module = forge.module(instructions=[call])
        program = decode_payload(forge.outer(forge.cpu_result(module))).program
        assert program is not None and program.opcodes == {"custom-call": 1}
        return program.custom_calls

    assert target(4096) == {"t" * 4096: 1}
    assert target(4097) == {}


def test_a_signature_beyond_400_characters_is_cut_in_the_middle() -> None:
    def shown(words: int, digits: int) -> str:
        parameters = (*[ArrayType("float32", (22,))] * words, ArrayType("int8", (10**digits,)))
        program = Program("jit_f", parameters, (ArrayType("int8", (3,)),), 1, 1, {}, {})
        return summarize_contents(Contents(program=program)).signature or ""

    whole = shown(42, 9)
    assert len(whole) == 400 and "…" not in whole
    cut = shown(42, 10)
    assert cut.startswith("f32[22], f32[22], ") and cut.endswith("… → s8[3]")
    assert len(cut) < 260


def cuda(letter: int) -> bytes:
    """A capability, and code for it."""
    capability = forge.number(1, 9) + forge.number(2, 0) + forge.number(3, letter)
    return forge.message(6, forge.message(1, capability)) + forge.message(3, b".version 8.0")


ROCM = forge.message(6, forge.message(2, forge.message(1, b"gfx942")))
ROCM += forge.message(4, b"\x7fELF" + bytes(14) + b"\xe0\0")


@pytest.mark.parametrize(
    ("code", "capability", "target"),
    [
        *((cuda(2), "9.0a", "sm_90a"), (cuda(3), "9.0f", "sm_90f"), (ROCM, "gfx942", "gfx942")),
        *((cuda(0), "9.0", "sm_90"), (cuda(7), "9.0", "sm_90")),
    ],
)
def test_a_gpu_has_a_capability(code: bytes, capability: str, target: str) -> None:
    hlo = forge.message(1, forge.message(1, forge.module()))
    device = decode_payload(forge.outer(hlo + code)).device
    assert (device, device.target) == (Device("gpu", compute_capability=capability), target)


@pytest.mark.parametrize("beside", [0, 300_000], ids=["parsed whole", "read in parts"])
def test_source_lines_are_ranked_and_installed_packages_stepped_over(beside: int) -> None:
    flax, other = "/usr/lib/site-packages/flax/core.py", "/usr/dist-packages/x.py"

    def frames(*parents: int) -> bytes:
        files = [b"/home/me/train.py", flax.encode(), other.encode()]
        return forge.message(
            17,
            *(forge.message(1, f) for f in files),
            forge.message(2, b"step"),
            *(
                forge.message(3, forge.number(1, n), forge.number(2, 1), forge.number(3, 10 * n))
                for n in (1, 2, 3)
            ),
            *(
                forge.message(4, forge.number(1, n), forge.number(2, parent))
                for n, parent in enumerate(parents, 1)
            ),
        )

    def source(*ids: int, parents: tuple[int, ...]) -> list[tuple[str, int, str | None]]:
        instructions = [
            forge.message(2, b"add") + forge.message(7, forge.number(15, n)) for n in ids
        ]
        unknown = forge.message(99, bytes(beside))
        module = forge.module(instructions=instructions, extra=frames(*parents) + unknown)
        found = decode_payload(forge.outer(forge.cpu_result(module))).source
        return [(s.file, s.line, s.function) for s in found]

    mine = ("/home/me/train.py", 10, "step")
    assert source(1, 2, 2, parents=(0, 1, 2)) == [mine]
    assert source(3, parents=(0, 1, 2)) == [mine]
    assert source(3, parents=(0, 0, 2)) == [(other, 30, "step")]  # the innermost of all
    assert source(2, parents=(0, 3, 2)) == [(flax, 20, "step")]  # a circle
    assert source(1, 2, 2, parents=(0, 0, 0)) == [(flax, 20, "step"), mine]
    assert source(1, 2, parents=(0, 0, 0)) == [mine, (flax, 20, "step")]
    assert source(4, 9, parents=(0, 0, 0)) == []


def test_metadata_without_frames_names_its_line() -> None:
    def add(line: int) -> bytes:
        place = forge.message(3, b"/a.py") + forge.number(4, line)
        return forge.message(2, b"add") + forge.message(7, place)

    module = forge.module(instructions=[add(5), add(7), add(7), forge.message(2, b"mul")])
    contents = decode_payload(forge.outer(forge.cpu_result(module)))
    assert contents.source == (SourceLine("/a.py", 7, None), SourceLine("/a.py", 5, None))
    assert contents.program and list(contents.program.opcodes.items()) == [("add", 3), ("mul", 1)]


def test_an_abi_is_told_as_text() -> None:
    gpu = forge.message(1, b"CUDA") + forge.message(
        3, forge.message(1, b"12.8"), forge.message(3, b"2")
    )
    payload = forge.outer(forge.cpu_result(forge.module()))

    def told(kind: bytes, target: bytes) -> tuple[int | None, str | None]:
        found = decode_payload(forge.ifrt(payload, (kind, target)))
        assert found.problems == ()
        return found.format.ifrt_version, found.format.abi

    name = "xla::GpuXlaExecutableAbiVersion"
    assert told(name.encode(), gpu) == (3, f"{name} CUDA 12.8 CUB 2")
    assert told(b"xla::Cpu", b"") == (3, "xla::Cpu")
    assert decode_payload(forge.ifrt(payload)).format.ifrt_version == 3
    assert decode_payload(payload).format.ifrt_version is None


# Damaged, foreign and hostile payloads end in findings, within bounded memory.


SAMPLES = [
    "0.4.38-cpu-zstd/jit_sharded_sum*-cache",
    "0.8.3-cpu-zstd/jit_loss*",
    "0.12.0.1-cpu-zstd/jit_loss*",
    "0.8.3-cuda13-h200-zstd/jit_dtypes*",
    "0.10.2-cuda13-h200-kernelcache/jit_dtypes*",
    "0.12.0.1-cuda13-h200-zstd/jit_dtypes*",
]


PAYLOADS = [payload_of(next(CORPUS.glob(s))) for s in SAMPLES]


@pytest.mark.parametrize("payload", PAYLOADS, ids=SAMPLES)
def test_every_cut_is_a_finding(payload: bytes) -> None:
    whole = decode_payload(payload, check=False)
    for end in range(0, len(payload), max(1, len(payload) // 150)):
        cut = decode_payload(payload[:end], check=False)
        assert cut.problems and cut != whole
        assert (
            decode_payload(payload[:end], check=False, parts="structure").problems == cut.problems
        )


@pytest.mark.parametrize("payload", PAYLOADS[1:3], ids=SAMPLES[1:3])
def test_a_check_finds_what_decoding_finds(payload: bytes) -> None:
    parts = set()
    for at in range(0, len(payload), 5):
        damaged = bytearray(payload)
        damaged[at] = 7  # no wire type of protobuf
        problems = decode_payload(damaged, "jit_loss").problems
        assert decode_payload(damaged, "jit_loss", parts="structure").problems == problems
        parts |= {detail.partition(":")[0] for _, detail in problems}
    assert parts >= {"the HLO module", "the target", "the buffer assignment", "the compile options"}


@given(st.sampled_from(PAYLOADS), st.data())
@settings(max_examples=100)
def test_flipped_bits_never_raise(payload: bytes, data: st.DataObject) -> None:
    damaged = bytearray(payload)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(payload) * 8 - 1))
        damaged[at // 8] ^= 1 << at % 8
    decoded = decode_payload(damaged, "jit_x")
    assert decode_payload(damaged, "jit_x", parts="structure").problems == decoded.problems


@given(st.data())
@settings(max_examples=60)
def test_riegeli_hashes_catch_every_flipped_bit(data: st.DataObject) -> None:
    payload = data.draw(st.sampled_from(PAYLOADS[4:]))
    start = payload.index(bytes.fromhex("83af70d10d884a3f"))
    inner = payload.index(b"xla.gpu.GpuExecutableProto")  # what is hashed for certain
    at = data.draw(st.integers((start + 8) * 8, inner * 8))
    damaged = bytearray(payload)
    damaged[at // 8] ^= 1 << at % 8
    assert decode_payload(damaged).problems


@given(st.binary(max_size=3000))
@settings(max_examples=150)
def test_foreign_bytes_are_a_finding(data: bytes) -> None:
    assert decode_payload(data).problems
    assert decode_payload(forge.ifrt(data)).problems


@given(
    st.recursive(
        st.binary(max_size=20),
        lambda inner: st.lists(st.tuples(st.integers(1, 20), inner), max_size=6).map(
            lambda fields: b"".join(forge.message(n, v) for n, v in fields)
        ),
        max_leaves=40,
    )
)
@settings(max_examples=150)
def test_well_formed_nonsense_never_raises(data: bytes) -> None:
    decode_payload(data)
    decode_payload(forge.outer(data, data))
    decode_payload(forge.outer(forge.cpu_result(data, data), data))
    decode_payload(forge.outer(forge.cpu_result(forge.module(extra=data), data), data))
    decode_payload(forge.riegeli([data]))
    decode_payload(forge.riegeli(forge.split(b"xla.TpuExecutableProto", [data]), snappy=True))


def nested_shape(depth: int) -> bytes:
    shape = forge.shape(11, 2)
    for _ in range(depth):
        shape = forge.number(2, 13) + forge.message(4, shape)
    return shape


def parameter(*shape: bytes) -> bytes:
    """A program with a parameter of that shape."""
    signature = forge.message(4, forge.message(1, *shape))
    return forge.outer(forge.cpu_result(forge.module(extra=signature)))


def in_records(data: bytes) -> bytes:
    return forge.riegeli(forge.split(b"t", [data]))


HOSTILE = {
    "a gigabyte announced in ten bytes": b"\n" + write_varint(1 << 30) + b"1234",
    "a length of 2^63": b"\n" + write_varint(1 << 63),
    "a number without an end": b"\n" + b"\xff" * 50,
    "ten million fields": forge.outer(b"\x08\x00" * 3_000_000),
    "a million empty instructions": forge.outer(
        forge.cpu_result(forge.message(3, b"\x12\x00" * 3_000_000))
    ),
    "a million empty computations": forge.outer(forge.cpu_result(b"\x1a\x00" * 1_100_000)),
    "shapes nested a thousand deep": parameter(nested_shape(1000)),
    "a signature of a million arrays": forge.outer(
        forge.cpu_result(forge.message(4, b"\x0a\x00" * 3_000_000))
    ),
    "a parameter of a million arrays": parameter(forge.number(2, 13), b"\x22\x00" * 1_900_000),
    "a million buffers": forge.outer(
        forge.cpu_result(forge.module()) + forge.message(2, b"\x1a\x00" * 3_000_000)
    ),
    "an assignment of 2^40 replicas": forge.outer(
        forge.cpu_result(forge.module()),
        forge.message(3, forge.message(9, forge.number(1, 1 << 40) + forge.number(2, 1))),
    ),
    "snappy that announces a gigabyte": forge.riegeli([b"x" * 100], snappy=True, lie=1 << 30),
    "records of a foreign manifest": forge.riegeli([b"\n\x03foo", b"bar"]),
    "a million records": forge.riegeli([b""] * 1_000_000, per_chunk=1_000_000),
    "riegeli inside riegeli inside riegeli": in_records(
        forge.outer(in_records(forge.outer(forge.riegeli([b"x"]))))
    ),
}


#: Decodes payloads, each with little more memory than the process has before.
DECODING = """
import pathlib, resource, sys
from jaxcache.entry.decode import decode_payload
import jaxcache.entry.messages as messages
messages.message_class("Shape")
import cramjam
for path in map(pathlib.Path, sys.argv[1:]):
    data = path.read_bytes()
    pages = int(pathlib.Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + (256 << 20) + 8 * len(data)
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
    assert decode_payload(data).problems, path.name
    print(path.name)
"""


@pytest.mark.parametrize("million", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_hostile_payloads_end_in_a_finding_within_bounded_memory(
    tmp_path: Path, million: bool
) -> None:
    chosen = [name for name in HOSTILE if name.startswith("a million") == million]
    for name in chosen:
        (tmp_path / name).write_bytes(HOSTILE[name])
    paths = [tmp_path / name for name in chosen]
    done = sh([sys.executable, "-c", DECODING, *paths], env=clean_environment(tmp_path))
    assert done.returncode == 0, done.stderr[-1500:]
    assert done.stdout.splitlines() == chosen


#: Decodes an entry, and prints the bytes by which that has grown the process at its largest.
GROWTH = """
import os, pathlib, resource, sys
from jaxcache.entry.decode import read_contents
import jaxcache.entry.messages as messages
messages.message_class("Shape")
pathlib.Path("/proc/self/clear_refs").write_text("5")
statm = pathlib.Path("/proc/self/statm").read_text()
before = int(statm.split()[1]) * resource.getpagesize()
with open(sys.argv[1], "rb") as file:
    found = read_contents(file, os.path.getsize(sys.argv[1]), "jit_big")
assert not found.problems, found
assert found.program.opcodes == {"constant": 1}, found
status = pathlib.Path("/proc/self/status").read_text().splitlines()
print(int(next(l for l in status if l.startswith("VmHWM")).split()[1]) * 1024 - before)
"""


def test_large_constants_are_stepped_over(tmp_path: Path) -> None:
    """Peak memory stays within 2.2 times a payload that is nearly all literal."""
    size = 48 << 20
    literal = forge.message(8, forge.message(8, os.urandom(1 << 20) * 48))
    module = forge.module(b"jit_big", [forge.message(2, b"constant") + literal])
    payload = forge.outer(forge.cpu_result(module))
    (tmp_path / "entry").write_bytes(zstandard.compress(bytes(4) + payload))
    command = [sys.executable, "-c", GROWTH, tmp_path / "entry"]
    assert int(sh(command, env=clean_environment(tmp_path), check=True).stdout) < 2.2 * size


def test_a_compression_bomb_is_a_finding() -> None:
    bomb = zstandard.compress(bytes(300 << 20))
    found = read_contents(io.BytesIO(bomb), len(bomb))
    assert [kind for kind, _ in found.problems] == ["bad-payload"]
