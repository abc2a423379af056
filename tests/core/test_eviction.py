"""A bound of the local directory: its formula, what it removes, and what documents claim of it."""

import json
import os
import time
import zlib
from math import isclose, sqrt
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from benchmarks.eviction import CAPS, shares
from benchmarks.traces import TRACES
from jaxcache.core.eviction import (
    Candidate,
    choose_for_room,
    estimate_hits,
    eviction_order,
    expected_seconds,
)
from jaxcache.live.evictor import Evictor
from jaxcache.live.process import Counters
from jaxcache.live.settings import resolve

NS = 1_000_000_000
NOW = 2_000_000_000 * NS


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


# What a bound removes loses least: no entry of its class could stay, alone or for another.


HOUR = 3600.0


sizes = st.integers(0, 3000)
seconds = st.floats(0, 4000, allow_nan=False)
#: Within one class: used in the last two days.
ages = st.floats(0, 47 * HOUR)
entries = st.lists(st.tuples(sizes, seconds, ages, st.integers(0, 50)), min_size=1, max_size=30)


def could_stay(
    chosen: "list[tuple[int, float]]", kept: "list[tuple[int, float]]", excess_bytes: int
) -> "list[object]":
    """Each put-back and each swap that would lose less: sizes, and what is lost with each."""
    spare = sum(size for size, _ in chosen) - excess_bytes
    back = [one for one in chosen if one[0] <= spare]
    swaps = [
        (one, other)
        for one in chosen
        for other in kept
        if one[0] - other[0] <= spare and other[1] < one[1]
    ]
    return [*back, *swaps]


@given(entries, st.floats(0.01, 1))
@settings(max_examples=600, deadline=None)
def test_no_put_back_and_no_swap_loses_less(
    rows: "list[tuple[int, float, float, int]]", share: float
) -> None:
    candidates = [
        Candidate(f"jit_{number}", size, NOW - int(age * NS), took, hits)
        for number, (size, took, age, hits) in enumerate(rows)
    ]
    total = sum(c.size_bytes for c in candidates)
    excess_bytes = int(total * share)
    chosen = choose_for_room(candidates, excess_bytes, "cost", NOW)
    assert sum(c.size_bytes for c in chosen) >= excess_bytes

    def weigh(some: "list[Candidate]") -> "list[tuple[int, float]]":
        return [(c.size_bytes, expected_seconds(c, NOW)) for c in some]

    kept = [c for c in candidates if c not in chosen]
    assert could_stay(weigh(chosen), weigh(kept), excess_bytes) == []


def write_entry(directory: Path, name: str, size: int, took: int, used: float) -> Path:
    """Write a whole entry of about a size, that JAX compiled in whole seconds, and used then."""
    path = directory / f"jit_{name}-{len(os.listdir(directory)):064x}-cache"
    path.write_bytes(zlib.compress(took.to_bytes(4, "big") + os.urandom(size), 0))
    os.utime(path, (used, used))
    return path


def evict(directory: Path, max_size: int) -> None:
    """Let the live layer bring a directory to nine tenths of a size."""
    given = resolve({"max-size": max_size})
    Evictor(str(directory), given, Counters(), print).evict()


def remaining(directory: Path) -> "set[str]":
    return {path.name for path in directory.glob("*-cache")}


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    return tmp_path


@given(st.lists(st.tuples(sizes, st.integers(0, 300)), min_size=2, max_size=9), st.floats(0.1, 1))
@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_the_live_layer_saves_nothing_by_a_put_back_or_a_swap(
    alone: Path, rows: "list[tuple[int, int]]", share: float
) -> None:
    directory = alone / f"cache-{len(os.listdir(alone))}"
    directory.mkdir()
    used = time.time() - HOUR
    files = {write_entry(directory, "m", size, took, used): took for size, took in rows}
    of = {path.name: (path.stat().st_size, float(took)) for path, took in files.items()}
    total = sum(size for size, _ in of.values())
    max_size = max(1, int(total * share))
    evict(directory, max_size)
    stayed = remaining(directory)
    gone = [of[name] for name in of if name not in stayed]
    kept = [of[name] for name in stayed]
    excess_bytes = -int(-(total - max_size * 0.9) // 1) if total > max_size else 0
    assert could_stay(gone, kept, excess_bytes) == []


#: Name, bytes, seconds, and how many seconds ago it was used; the first is the dear one.
EXAMPLE = [
    ("dear", 547_000, 43, 2 * HOUR),
    ("middle", 169_000, 10, 20.0),
    *[(f"small{number}", 31_000, 2, 20.0) for number in range(10)],
]


@pytest.fixture
def example(alone: Path) -> Path:
    directory = alone / "cache"
    directory.mkdir()
    for name, size, took, age in EXAMPLE:
        write_entry(directory, name, size, took, time.time() - age)
    return directory


@pytest.mark.parametrize("grace", ["60s", "0s"])
def test_prune_keeps_what_is_dear_and_was_used_two_hours_ago(
    run_cli, example: Path, grace: str
) -> None:
    words = ("prune", "-C", example, "--max-size", "900kB", "--grace", grace, "--yes", "--json")
    done = run_cli(*words)
    assert done.returncode == (0 if grace == "0s" else 3), done.stderr
    assert any(name.startswith("jit_dear-") for name in remaining(example))
    if grace == "0s":  # the least that frees enough
        assert [r["compile_seconds"] for r in json.loads(done.stdout)["removed"]] == [10]


def test_the_live_layer_keeps_what_is_dear_and_was_used_two_hours_ago(example: Path) -> None:
    evict(example, 1_000_000)
    assert any(name.startswith("jit_dear-") for name in remaining(example))


def test_the_compile_of_friday_on_monday() -> None:
    """The example of docs/eviction.md."""
    friday = candidate("friday", 500, 70 * HOUR, compile_seconds=1200.0)
    thursday = candidate("thursday", 500, 4 * DAY, compile_seconds=30.0)
    weekend = [candidate(f"weekend{n}", 100, 20 * HOUR, compile_seconds=1.0) for n in range(5)]
    ancient = candidate("ancient", 500, 15 * DAY, compile_seconds=5000.0)
    everything = [friday, thursday, *weekend, ancient]

    def removed(excess_bytes: int) -> "set[str]":
        return {c.name for c in choose_for_room(everything, excess_bytes, "cost", NOW)}

    assert removed(500) == {"ancient"}
    assert removed(1000) == {"ancient", "thursday"}
    assert removed(1500) == {"ancient", "thursday", "friday"}
    sunday = friday._replace(last_used_ns=NOW - int(20 * HOUR * NS))
    minute = candidate("minute", 500, 60.0, compile_seconds=10.0)
    assert choose_for_room([sunday, minute], 500, "cost", NOW) == [minute]


# What the documentation claims of the cost policy, on the traces of the benchmark.


#: The documented margin by which cost may save less than lru on any trace.
MARGIN = 0.01


@pytest.mark.parametrize(
    "fraction", [0.10, *(pytest.param(f, marks=pytest.mark.slow) for f in CAPS)]
)
def test_cost_closes_half_of_the_gap_and_never_falls_behind(fraction: float) -> None:
    closed = []
    for make in TRACES:
        saved = shares(make(11), fraction)
        assert saved["lru"] <= saved["clairvoyant"] <= 1
        for policy in ("cost", "cost, dates only"):
            assert saved[policy] >= saved["lru"] - MARGIN, make.__name__
        closed.append((saved["cost"] - saved["lru"]) / (saved["clairvoyant"] - saved["lru"]))
    assert sum(closed) / len(closed) >= 0.5
