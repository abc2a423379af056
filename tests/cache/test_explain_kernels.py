"""Pallas kernels for a TPU in ``explain``: real entries that are made to hold one."""

from dataclasses import replace
from pathlib import Path

import pytest

from jaxcache.cache.explain.known import KnownCache
from jaxcache.cache.explain.programs import compare_programs
from jaxcache.cache.explain.sides import Compile
from jaxcache.entry.contents import SourceLine
from jaxcache.store import open_store


def kernel_at(corpus: Path, cache: str, place: str, line: int) -> Compile:
    """An entry as a program with a kernel from that place."""
    known = KnownCache(open_store(str(corpus / cache)))
    compile_ = known.complete(known.whole().compiles[0])
    assert compile_.contents
    assert compile_.contents.program
    program = replace(compile_.contents.program, custom_calls={"tpu_custom_call": 1})
    source = (SourceLine(place, line, "body"),)
    return replace(compile_, contents=replace(compile_.contents, program=program, source=source))


@pytest.mark.parametrize(
    ("cache", "place", "line", "meaning"),
    [
        ("0.10.2-cpu-zstd", "/b/kernel.py", 7, "the path of a Pallas kernel's file: JAX before"),
        ("0.10.2-cpu-zstd", "/a/kernel.py", 9, "the path of or the lines in a Pallas kernel's"),
        ("0.10.2-cpu-zstd", "/a/kernel.py", 7, "the path of or the lines in a Pallas kernel's"),
        ("0.12.0.1-cpu-zstd", "/b/kernel.py", 7, "the code of a Pallas kernel"),
    ],
)
def test_a_kernel_is_named(corpus: Path, cache: str, place: str, line: int, meaning: str) -> None:
    left = kernel_at(corpus, cache, "/a/kernel.py", 7)
    found = compare_programs(left, kernel_at(corpus, cache, place, line))
    assert found.meaning.startswith(meaning)
    assert (found.left, found.right) == ("/a/kernel.py:7", f"{place}:{line}")
    assert found.fix


def test_other_programs_are_explained_as_before(corpus: Path) -> None:
    left = kernel_at(corpus, "0.10.2-cpu-zstd", "/a/kernel.py", 7)
    assert left.contents
    assert left.contents.program
    program = replace(left.contents.program, custom_calls={})
    plain = replace(left, contents=replace(left.contents, program=program))
    assert "cannot be told" in compare_programs(plain, plain).meaning
