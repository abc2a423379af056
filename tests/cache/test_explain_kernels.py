"""Pallas kernels for a TPU in ``explain``: real entries that are made to hold one."""

from dataclasses import replace
from pathlib import Path

import pytest

from jaxcache.cache.explain.cached_facts import CachedFacts
from jaxcache.cache.explain.programs import compare_programs
from jaxcache.cache.explain.sides import Cause, Compile
from jaxcache.entry.contents import SourceLine
from jaxcache.store import open_store


def kernel_at(corpus: Path, cache: str, place: str, line: int) -> Compile:
    """An entry as a program with a kernel from that place."""
    known = CachedFacts(open_store(str(corpus / cache)))
    compile_ = known.complete(known.whole().compiles[0])
    assert compile_.contents
    assert compile_.contents.program
    program = replace(compile_.contents.program, custom_calls={"tpu_custom_call": 1})
    source = (SourceLine(place, line, "body"),)
    return replace(compile_, contents=replace(compile_.contents, program=program, source=source))


def test_a_kernel_in_another_checkout_is_named(corpus: Path) -> None:
    left = kernel_at(corpus, "0.10.2-cpu-zstd", "/a/kernel.py", 7)
    (found,) = compare_programs(left, kernel_at(corpus, "0.10.2-cpu-zstd", "/b/kernel.py", 7))
    assert found.cause is Cause.SOURCE_LINES
    assert (found.left, found.right) == ("/a/kernel.py:7", "/b/kernel.py:7")
    assert found.fix


@pytest.mark.parametrize(
    ("cache", "place", "line"),
    [
        ("0.10.2-cpu-zstd", "/a/kernel.py", 9),
        ("0.10.2-cpu-zstd", "/a/kernel.py", 7),
        ("0.12.0.1-cpu-zstd", "/b/kernel.py", 7),
    ],
)
def test_of_a_kernel_that_may_be_edited_nothing_is_claimed(
    corpus: Path, cache: str, place: str, line: int
) -> None:
    left = kernel_at(corpus, cache, "/a/kernel.py", 7)
    (found,) = compare_programs(left, kernel_at(corpus, cache, place, line))
    assert (found.cause, found.fix) == (Cause.UNKNOWN, None)
