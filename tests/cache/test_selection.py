"""Choosing entries by key and by field, and their order."""

from pathlib import Path
from typing import Any

import pytest
from made_caches import HOUR, JAX, NOW, key, put

from jaxcache.cache.listing import ReadCache, list_cache
from jaxcache.cache.selection import fits_key
from jaxcache.errors import JaxcacheError, UsageError
from jaxcache.model import Depth
from jaxcache.options import ListOptions
from jaxcache.store.local import LocalStore


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """Entries 1 to 3: each is larger, dearer, older and less used than the one before.

    The first block of the third is beyond what is read of a head.
    """
    for number, (size, seconds) in enumerate([(100, 1), (1000, 7), (300_000, 300)], 1):
        ages = {"used_ago": number * HOUR, "made_ago": number * 24 * HOUR}
        put(tmp_path, key(number, f"jit_{'abc'[number - 1]}"), size=size, seconds=seconds, **ages)
    return tmp_path


def listed(cache: Path, *keys: str, **options: Any) -> str:
    """The numbers of the entries that are listed."""
    read = ReadCache(LocalStore(cache), JAX, NOW)
    found = list_cache(read, ListOptions(keys=keys, **options), depth=Depth.OPENED)
    return "".join(entry.key[-1] for entry in found.entries)


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("compile=7", "2"),
        ("compile == 7s", "2"),
        ("compile!=7", "13"),
        ("compile>7", "3"),
        ("compile>=7", "23"),
        ("compile<7", "1"),
        ("compile<=7", "12"),
        ("compile>1m", "3"),
        ("payload<=976B", "12"),
        ("age>=2d", "23"),
        ("age<2d", "1"),
        ("unused<=2h", "12"),
        ("unused>2h", "3"),
        ("used-from=atime-file", "123"),
        ("codec!=zlib", "123"),
        ("sealed=true", ""),
        ("module=jit_[ab]", "12"),
        ("key=*-*2", "2"),
        ("hash=*3", "3"),
        ("target!=sm_90a", ""),
        ("problem=*", "123"),
    ],
)
def test_a_filter_chooses_by_a_field(cache: Path, text: str, numbers: str) -> None:
    """An entry whose field is unknown fits no filter on it."""
    assert listed(cache, filters=(text,), sort="key") == numbers


@pytest.mark.parametrize(
    ("sort", "numbers"),
    [
        *((field, "321") for field in ("size", "payload", "compile", "key:desc")),
        *((field, "123") for field in ("key", "created", "used", "platform", "size:asc")),
    ],
)
def test_each_field_has_a_natural_order(cache: Path, sort: str, numbers: str) -> None:
    assert listed(cache, sort=sort) == numbers


def test_a_key_names_one_entry_and_a_glob_or_a_module_all(cache: Path) -> None:
    put(cache, key(4, "jit_a"))
    put(cache, key(5, "jit_a_2"))
    for keys, numbers in (
        ((), "14523"),
        (("jit_a",), "14"),
        (("jit_[bc]*", "jit_a*1"), "123"),
        ((f"{0:063x}2",), "2"),
        ((key(3, "jit_c")[:-1],), "3"),
        (("jit_c-0…3",), "3"),
    ):
        assert listed(cache, *keys, sort="key") == numbers
    for text, code, words in (
        ("jit_", "ambiguous-key", "matches 5 entries: jit_a-000000000000, jit_a-"),
        ("jit_…", "ambiguous-key", ", …"),
        ("jit_a-…0", "ambiguous-key", "matches 2 entries: jit_a-000000000000, jit_a-000000000000"),
        ("jit_aa", "no-match", "did you mean 'jit_a'?"),
        ("xyz", "no-match", "jaxcache ls -q prints every key"),
        ("", "no-match", "no entry matches ''"),
    ):
        with pytest.raises(JaxcacheError) as caught:
            listed(cache, text)
        assert (caught.value.code, words in str(caught.value)) == (code, True)
    with pytest.raises(UsageError, match="cannot sort by"):
        listed(cache, sort="size:up")


@pytest.mark.parametrize(
    ("text", "fits"),
    [
        ("jit_a", True),
        ("jit_?", True),
        ("jit_a-0*1", True),
        ("000", True),
        ("jit_b", False),
        ("1", False),
        ("", False),
    ],
)
def test_a_key_of_no_entry_may_be_meant(text: str, fits: bool) -> None:
    assert fits_key(key(1, "jit_a"), text) == fits
