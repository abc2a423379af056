"""The formula of docs/eviction.md, number by number."""

from math import isclose, sqrt

import pytest

from jaxcache.core.eviction import (
    Candidate,
    choose_for_room,
    estimate_hits,
    eviction_order,
    expected_seconds,
)

NS = 1_000_000_000
NOW = 1_000_000 * NS


def candidate(name: str = "a", size: int = 100, age: float = 0, **more: object) -> Candidate:
    return Candidate(name, size, NOW - int(age * NS), **{"compile_seconds": 2.0, **more})


@pytest.mark.parametrize(
    ("one", "seconds"),
    [
        (candidate(), 2.0 / sqrt(600)),
        (candidate(hits=3), 2 * 2.0 / sqrt(600)),
        (candidate(hits=1), sqrt(2) * 2.0 / sqrt(600)),
        (candidate(age=1800), 2.0 / sqrt(2400)),
        (candidate(age=-50), 2.0 / sqrt(600)),
        (candidate(size=0), 2.0 / sqrt(600)),
    ],
)
def test_value(one: Candidate, seconds: float) -> None:
    assert isclose(expected_seconds(one, NOW), seconds)


@pytest.mark.parametrize(
    ("counted", "later_seconds", "hits"),
    [(0, 0, 0), (0, 60, 0), (0, 60.001, 3), (2, 61, 3), (5, 61, 5), (2, 0, 2)],
)
def test_hits_are_counted_or_guessed_from_dates(
    counted: int, later_seconds: float, hits: int
) -> None:
    assert estimate_hits(counted, NOW, NOW + int(later_seconds * NS)) == hits


def test_a_large_entry_of_now_outlives_a_small_one_of_yesterday() -> None:
    young, old = candidate("young", 100, 0), candidate("old", 20, 86_400)
    assert [c.name for c in eviction_order([young, old], "cost", NOW)] == ["old", "young"]
    tiny = candidate("tiny", 8, 86_400)
    assert [c.name for c in eviction_order([young, tiny], "cost", NOW)] == ["young", "tiny"]


def test_where_entries_are_scarce_size_does_not_count() -> None:
    large, small = candidate("large", 1000, compile_seconds=3.0), candidate("small", 10)
    assert eviction_order([large, small], "cost", NOW)[0].name == "large"
    assert eviction_order([large, small], "cost", NOW, per_byte=False)[0].name == "small"


def test_equal_ones_go_by_age_then_name() -> None:
    some = [candidate("b"), candidate("a"), candidate("c", 100, 5)]
    assert [c.name for c in eviction_order(some, "lru", NOW)] == ["c", "a", "b"]
    worthless = [c._replace(compile_seconds=0.0) for c in some]
    assert [c.name for c in eviction_order(worthless, "cost", NOW)] == ["c", "a", "b"]


def test_just_enough_goes_and_what_fits_comes_back() -> None:
    some = [candidate(n, size, age) for n, size, age in (("a", 10, 9), ("b", 20, 8), ("c", 90, 7))]
    assert choose_for_room(some, 0, "lru", NOW) == []
    assert [c.name for c in choose_for_room(some, 10, "lru", NOW)] == ["a"]
    assert [c.name for c in choose_for_room(some, 11, "lru", NOW)] == ["a", "b"]
    assert [c.name for c in choose_for_room(some, 999, "lru", NOW)] == ["a", "b", "c"]
    cheap = [c._replace(compile_seconds=s) for c, s in zip(some, (0, 1, 900), strict=True)]
    order = [c.name for c in eviction_order(cheap, "cost", NOW)]
    assert order == ["a", "b", "c"]
    assert [c.name for c in choose_for_room(cheap, 100, "cost", NOW)] == ["a", "c"]
    assert [c.name for c in choose_for_room(cheap, 110, "cost", NOW)] == ["b", "c"]


def test_a_large_entry_stays_where_small_ones_suffice() -> None:
    small = [candidate(f"s{n}", 20, compile_seconds=0.5) for n in range(20)]
    large = candidate("large", 400, compile_seconds=9.0)
    first = candidate("first", 50, compile_seconds=0.1)
    some = [large, *small, first]
    assert eviction_order(some, "cost", NOW)[1].name == "large"
    names = [c.name for c in choose_for_room(some, 90, "cost", NOW)]
    assert names == ["first", "s0", "s1"]
    # It goes where the others would not be much cheaper, or were used more recently.
    assert "large" in [c.name for c in choose_for_room(some, 350, "cost", NOW)]
    old = [first, large._replace(last_used_ns=NOW - 3 * DAY * NS), *small]
    assert [c.name for c in choose_for_room(old, 90, "cost", NOW)] == ["large"]


DAY = 86_400


@pytest.mark.parametrize("days", [(15, 7), (3, 1)])
def test_what_was_used_lately_outlives_dearer_entries_that_were_not(days: tuple[int, int]) -> None:
    dear = candidate("dear", 10, days[0] * DAY, compile_seconds=9000.0, hits=900)
    cheap = candidate("cheap", 900, days[1] * DAY, compile_seconds=0.1)
    assert [c.name for c in eviction_order([cheap, dear], "cost", NOW)] == ["dear", "cheap"]
    assert [c.name for c in eviction_order([cheap, dear], "cost", NOW, per_byte=False)] == [
        "dear",
        "cheap",
    ]
    # Removing the large one leaves room for the old one, which goes all the same.
    assert [c.name for c in choose_for_room([cheap, dear], 20, "cost", NOW)] == ["dear", "cheap"]
