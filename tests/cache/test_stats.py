"""Sums over a cache: by time since last use, and of what compiling took."""

from pathlib import Path

import pytest
from made_caches import HOUR, JAX, NOW, key, put

from jaxcache.cache.listing import ReadCache, group_entries
from jaxcache.cache.stats import count_cache
from jaxcache.model import Depth
from jaxcache.store.local import LocalStore


def read_cache(cache: Path) -> ReadCache:
    return ReadCache(LocalStore(cache), JAX, NOW)


def test_a_use_is_in_the_first_class_that_it_fits(tmp_path: Path) -> None:
    for number, days in enumerate((1 / 24, 1, 7, 30, 90)):
        for half, hours in enumerate((days * 24 - 0.5, days * 24)):
            put(tmp_path, key(2 * number + half), used_ago=hours * HOUR, made_ago=3000 * HOUR)
    numbers = {name: sums.entries for name, sums in count_cache(read_cache(tmp_path)).by_age}
    assert numbers == {"1h": 1, "1d": 2, "7d": 2, "30d": 2, "90d": 2, "older": 1}


@pytest.mark.parametrize(
    ("seconds", "total", "text"),
    [
        ([], "0 s", "0 entries, 0 B, 0 s of compiling"),
        ([0], "<1 s", "1 entry, 100 B, under 1 s of compiling"),
        ([0, 0], "<1 s each", "2 entries, 200 B, under 1 s of compiling per entry"),
        ([3, 5], "8.0 s", "2 entries, 200 B, 8.0 s of compiling"),
        ([0, 5], "5.0 s", "2 entries, 200 B, at least 5.0 s of compiling"),
    ],
)
def test_compile_times_are_summed_up(
    tmp_path: Path, seconds: list[int], total: str, text: str
) -> None:
    """Headers hold whole seconds, rounded down."""
    for number, each in enumerate(seconds):
        put(tmp_path, key(number), seconds=each)
        size_bytes = (tmp_path / f"{key(number)}-cache").stat().st_size
        text = text.replace("100 B", f"{size_bytes} B").replace("200 B", f"{2 * size_bytes} B")
    summary = count_cache(read_cache(tmp_path)).total
    assert (summary.compile_total, str(summary)) == (total, text)


@pytest.mark.parametrize(
    ("sort", "order"), [("size", "bca"), ("size:asc", "acb"), ("compile", "cba"), ("used", "abc")]
)
def test_groups_are_sorted_by_their_sums(tmp_path: Path, sort: str, order: str) -> None:
    for number, (module, size, seconds) in enumerate(
        [("a", 100, 1), ("b", 900, 1), ("b", 900, 1), ("c", 1000, 9)]
    ):
        put(tmp_path, key(number, module), size=size, seconds=seconds, used_ago=(number + 1) * HOUR)
    entries = read_cache(tmp_path).scan(Depth.OPENED).entries
    assert "".join(group.name for group in group_entries(entries, "module", sort)) == order
