"""File names of every generation of JAX."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxcache.core.names import Key, parse_key, same_module, unescape_mlir
from jaxcache.entry.names import FileKind, split_name
from jaxcache.units import printable

HASH = "0c9a031d71bb1c7d0cd9e67372ee1cf0db197479357a4e3120fa22a1210cfacc"


@pytest.mark.parametrize(
    ("name", "kind", "key"),
    [
        (f"jit_f-{HASH}-cache", FileKind.ENTRY, Key("jit_f", HASH)),
        (f"jit_f-{HASH}-atime", FileKind.ATIME, Key("jit_f", HASH)),
        (f"jit_f-{HASH}", FileKind.LEGACY_ENTRY, Key("jit_f", HASH)),
        (HASH, FileKind.LEGACY_ENTRY, Key("", HASH)),
        (f"jit_a-b (c)-{HASH}-cache", FileKind.ENTRY, Key("jit_a-b (c)", HASH)),
        (".lockfile", FileKind.LOCKFILE, None),
        (f"_temp_jit_f-{HASH}", FileKind.TEMP, None),
        (".jaxcache-tmp-12-ab", FileKind.TEMP, None),
        ("xla_gpu_kernel_cache_file", FileKind.KERNEL_CACHE, None),
        ("xla_gpu_per_fusion_autotune_cache_dir", FileKind.AUTOTUNE, None),
        ("xla_gpu_per_fusion_autotune_cache_dir/tmp/x", FileKind.AUTOTUNE, None),
        (".jaxcache", FileKind.OWN, None),
        ("README.md", FileKind.STRAY, None),
        (f"jit_f-{HASH[:-1]}-cache", FileKind.STRAY, None),
        (f"jit_f-{HASH.upper()}-cache", FileKind.STRAY, None),
        (f"jit_f-{HASH}-cache.gstmp", FileKind.STRAY, None),
        ("-cache", FileKind.STRAY, None),
        (f"-{HASH}-cache", FileKind.STRAY, None),
    ],
)
def test_what_a_name_is(name: str, kind: FileKind, key: Key | None) -> None:
    assert split_name(name) == (kind, str(key) if key else None)
    assert key is None or parse_key(str(key)) == key


@given(st.text(min_size=1), st.binary(min_size=32, max_size=32).map(bytes.hex))
def test_a_key_reads_back_as_it_prints(module: str, digest: str) -> None:
    assert parse_key(str(Key(module, digest))) == Key(module, digest)


@given(st.text())
def test_any_name_is_told_without_an_error(name: str) -> None:
    split_name(name)


@given(st.binary())
def test_a_printable_name_cannot_act_on_a_terminal(data: bytes) -> None:
    shown = printable(data.decode("utf-8", "surrogateescape"))
    assert shown.isprintable()
    shown.encode("utf-8")


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("jit_é", "jit_é"),
        ("\x1b[2J", "\\x1b[2J"),
        ("\x7f\x9f", "\\x7f\\x9f"),
        ("\u2028", "\\u2028"),
        ("\u0100\u0085", "\u0100\\x85"),
        (b"\x80\xff".decode("utf-8", "surrogateescape"), "\\x80\\xff"),
        ("\udc7f\udd00", "\\udc7f\\udd00"),
    ],
)
def test_what_does_not_print_is_escaped(name: str, shown: str) -> None:
    assert printable(name) == shown


@pytest.mark.parametrize(
    ("inside", "named", "same"),
    [
        ("jit_f", "jit_f", True),
        ("jit_<lambda>", "jit__lambda_", True),
        ("a.b-c", "a.b-c", True),
        ("jit_f", "jit_g", False),
        ("jit_f", "jit_f_", False),
        ("jit f", "jit_f", True),
        # Of one name: XLA's spelling, MLIR's and the file's.
        ("jit___t_step", "jit_Δt_step", True),
        (r"jit_\CE\94t_step", "jit_Δt_step", True),
        ("jit_______", "jit_损失", True),
        ("jit_a_b", "jit_a→b", True),
        ("jit___t_step", "jit_Δt_stop", False),
    ],
)
def test_names_are_compared_as_jax_writes_them(inside: str, named: str, same: bool) -> None:
    assert same_module(inside, named) is same


def test_the_escapes_of_mlir() -> None:
    assert unescape_mlir(r"jit_\CE\94 \22x\22 \\CE \0A") == 'jit_Δ "x" \\CE \n'
    assert unescape_mlir("Δ\\FF") == "Δ\ufffd"
