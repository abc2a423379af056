"""Damaged, foreign and hostile payloads end in findings, within bounded memory."""

import sys
from pathlib import Path

import forge
import pytest
import zstandard
from bundling import payload_of
from conftest import CORPUS, clean_environment
from hypothesis import given, settings
from hypothesis import strategies as st
from processes import sh

from jaxcache.core.wire import write_varint
from jaxcache.entry.decode import decode_payload

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
    for at in range(0, len(payload), 3):
        damaged = bytearray(payload)
        damaged[at] = 7  # no wire type of protobuf
        problems = decode_payload(damaged, "jit_loss").problems
        assert decode_payload(damaged, "jit_loss", parts="structure").problems == problems
        parts |= {detail.partition(":")[0] for _, detail in problems}
    assert parts >= {"the HLO module", "the target", "the buffer assignment", "the compile options"}


@given(st.sampled_from(PAYLOADS), st.data())
@settings(max_examples=200)
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
@settings(max_examples=300)
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
@settings(max_examples=300)
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


HOSTILE = {
    "a gigabyte announced in ten bytes": b"\n" + write_varint(1 << 30) + b"1234",
    "a length of 2^63": b"\n" + write_varint(1 << 63),
    "a number without an end": b"\n" + b"\xff" * 50,
    "ten million fields": forge.outer(b"\x08\x00" * 3_000_000),
    "a million empty instructions": forge.outer(
        forge.cpu_result(forge.message(3, b"\x12\x00" * 3_000_000))
    ),
    "a million empty computations": forge.outer(forge.cpu_result(b"\x1a\x00" * 1_100_000)),
    "shapes nested a thousand deep": forge.outer(
        forge.cpu_result(forge.module(extra=forge.message(4, forge.message(1, nested_shape(1000)))))
    ),
    "a signature of a million arrays": forge.outer(
        forge.cpu_result(forge.message(4, b"\x0a\x00" * 3_000_000))
    ),
    "a parameter of a million arrays": forge.outer(
        forge.cpu_result(
            forge.module(
                extra=forge.message(
                    4, forge.message(1, forge.number(2, 13), b"\x22\x00" * 1_900_000)
                )
            )
        )
    ),
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
    "riegeli inside riegeli inside riegeli": forge.riegeli(
        forge.split(
            b"t",
            [forge.outer(forge.riegeli(forge.split(b"t", [forge.outer(forge.riegeli([b"x"]))])))],
        )
    ),
}


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[pytest.mark.slow] * n.startswith("a million")) for n in HOSTILE],
)
def test_hostile_payloads_end_in_a_finding_within_bounded_memory(name: str, tmp_path: Path) -> None:
    path = tmp_path / "payload"
    path.write_bytes(HOSTILE[name])
    script = (
        "import resource, sys\n"
        "from jaxcache.entry.decode import decode_payload\n"
        "import jaxcache.entry.messages as s; s.message_class('Shape'); import cramjam\n"
        "import pathlib\n"
        "data = pathlib.Path(sys.argv[1]).read_bytes()\n"
        "pages = int(pathlib.Path('/proc/self/statm').read_text().split()[0])\n"
        "used = pages * resource.getpagesize()\n"
        "cap = used + (256 << 20) + 8 * len(data)\n"
        "resource.setrlimit(resource.RLIMIT_AS, (cap, cap))\n"
        "found = decode_payload(data)\n"
        "assert found.problems, found\n"
    )
    done = sh([sys.executable, "-c", script, path], env=clean_environment(tmp_path), timeout=60)
    assert done.returncode == 0, done.stderr[-1500:]


def test_large_constants_are_stepped_over(tmp_path: Path) -> None:
    """Peak memory stays within 2.2 times a payload that is nearly all literal."""
    script = (
        "import os, resource, sys\n"
        "sys.path.insert(0, sys.argv[2])\n"
        "import forge\n"
        "from jaxcache.entry.decode import read_contents\n"
        "size = 48 << 20\n"
        "with open(sys.argv[1], 'wb') as f:\n"
        "    literal = forge.message(8, forge.message(8, os.urandom(1 << 20) * 48))\n"
        "    hlo = forge.module(b'jit_big', [forge.message(2, b'constant') + literal])\n"
        "    del literal\n"
        "    f.write(forge.entry(forge.outer(forge.cpu_result(hlo))))\n"
        "if os.fork() == 0:\n"
        "    os.execv(sys.executable, [sys.executable, '-c', sys.argv[3], sys.argv[1]])\n"
        "sys.exit(os.wait()[1] >> 8)\n"
    )
    reader = (
        "import os, resource, sys\n"
        "from jaxcache.entry.decode import read_contents\n"
        "import jaxcache.entry.messages as s; s.message_class('Shape')\n"
        "with open('/proc/self/clear_refs', 'w') as f: f.write('5')\n"
        "import pathlib\n"
        "statm = pathlib.Path('/proc/self/statm').read_text()\n"
        "before = int(statm.split()[1]) * resource.getpagesize()\n"
        "with open(sys.argv[1], 'rb') as f:\n"
        "    found = read_contents(f, os.path.getsize(sys.argv[1]), 'jit_big')\n"
        "assert not found.problems, found\n"
        "assert found.program.opcodes == {'constant': 1}, found\n"
        "status = pathlib.Path('/proc/self/status').read_text().splitlines()\n"
        "hwm = next(l for l in status if l.startswith('VmHWM'))\n"
        "grown = int(hwm.split()[1]) * 1024 - before\n"
        "assert grown < 2.2 * (48 << 20), grown\n"
    )
    done = sh(
        [sys.executable, "-c", script, tmp_path / "entry", Path(__file__).parent, reader],
        env=clean_environment(tmp_path),
    )
    assert done.returncode == 0, done.stderr[-1500:]


def test_a_compression_bomb_is_a_finding(tmp_path: Path) -> None:
    from jaxcache.entry.decode import read_contents

    bomb = tmp_path / "bomb"
    with open(bomb, "wb") as file, zstandard.ZstdCompressor(level=3).stream_writer(file) as out:
        for _ in range(300):
            out.write(bytes(1 << 20))
    with open(bomb, "rb") as file:
        found = read_contents(file, bomb.stat().st_size)
    assert [kind for kind, _ in found.problems] == ["bad-payload"]
