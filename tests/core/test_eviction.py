"""The order in which a bound removes entries, the dates it goes by, and what documents claim."""

from collections.abc import Callable, Sequence
from math import isclose, sqrt

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.eviction import CAPS, shares
from benchmarks.traces import TRACES, Trace, ci_restarts
from jaxcache.core.eviction import (
    Candidate,
    FileDates,
    LastUse,
    LastUses,
    choose_for_room,
    estimate_hits,
    eviction_order,
    expected_seconds,
    find_reads,
    find_writes,
    mean_seconds,
    saved_seconds,
)

MS = 10**6
NS = 10**9
HOUR = 3600
DAY = 86_400
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
def test_hits_are_counted_or_guessed(counted: int, later_seconds: float, hits: int) -> None:
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
    some = [candidate("first", 50, compile_seconds=0.1), *small]
    some.append(candidate("large", 400, compile_seconds=9.0))
    assert eviction_order(some, "cost", NOW)[1].name == "large"
    assert [c.name for c in choose_for_room(some, 90, "cost", NOW)] == ["first", "s0", "s1"]
    # It goes where the others would not be much cheaper.
    assert "large" in [c.name for c in choose_for_room(some, 350, "cost", NOW)]


# What a bound removes loses least: no entry of its class could stay, alone or for another.
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
def test_no_choice_loses_less(rows: "list[tuple[int, float, float, int]]", share: float) -> None:
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
    # Removing the large one leaves room for the old one, which goes all the same.
    small = ancient._replace(size_bytes=10)
    for per_byte in (True, False):
        assert eviction_order([friday, small], "cost", NOW, per_byte=per_byte) == [small, friday]
    assert choose_for_room([friday, small], 20, "cost", NOW) == [small, friday]
    sunday = friday._replace(last_used_ns=NOW - int(20 * HOUR * NS))
    minute = candidate("minute", 500, 60.0, compile_seconds=10.0)
    assert choose_for_room([sunday, minute], 500, "cost", NOW) == [minute]


# What the documentation claims of the cost policy, on the traces of the benchmark.
#: The documented margin by which cost may save less than lru on any trace.
MARGIN = 0.01


@pytest.mark.parametrize(
    ("fraction", "traces"),
    [
        (0.10, [make for make in TRACES if make is not ci_restarts]),  # the longest by far
        *(pytest.param(f, TRACES, marks=pytest.mark.slow) for f in CAPS),
    ],
)
def test_cost_closes_half_of_the_gap_and_never_falls_behind(
    fraction: float, traces: Sequence[Callable[[int], Trace]]
) -> None:
    closed = []
    for make in traces:
        saved = shares(make(11), fraction)
        assert saved["lru"] <= saved["clairvoyant"] <= 1
        for policy in ("cost", "cost, dates only"):
            assert saved[policy] >= saved["lru"] - MARGIN, make.__name__
        closed.append((saved["cost"] - saved["lru"]) / (saved["clairvoyant"] - saved["lru"]))
    assert sum(closed) / len(closed) >= 0.5


# The rule of the last use in docs/eviction.md, and the seconds that an entry saves.
DAY_NS = DAY * NS


def used(**dates: int) -> LastUse:
    """By dates in nanoseconds from now."""
    given = {name: NOW + ns for name, ns in ({"written_ns": -40 * DAY_NS} | dates).items()}
    hit_ns = given.pop("hit_ns", None)
    rule = LastUses(NOW)
    return rule.with_record(rule.of(FileDates(**given)), hit_ns=hit_ns)


@pytest.mark.parametrize(
    ("dates", "from_now_ns", "source"),
    [
        ({}, -40 * DAY_NS, "mtime"),
        ({"read_ns": -3 * DAY_NS}, -3 * DAY_NS, "fs-atime"),
        ({"read_ns": -50 * DAY_NS}, -40 * DAY_NS, "mtime"),
        ({"stamp_ns": -20 * DAY_NS, "read_ns": 0}, 0, "fs-atime"),
        ({"stamp_ns": -20 * DAY_NS, "read_ns": -30 * DAY_NS}, -20 * DAY_NS, "atime-file"),
        ({"stamp_ns": -20 * DAY_NS, "hit_ns": -DAY_NS}, -DAY_NS, "ledger"),
        ({"hit_ns": -2 * DAY_NS, "read_ns": -DAY_NS}, -DAY_NS, "fs-atime"),
        ({"written_ns": -DAY_NS, "hit_ns": -2 * DAY_NS}, -DAY_NS, "mtime"),
        # Of the dates of one use the best source is named.
        ({"hit_ns": 0, "stamp_ns": NS, "read_ns": 59 * NS}, 0, "ledger"),
        ({"stamp_ns": NS, "read_ns": 59 * NS}, NS, "atime-file"),
        ({"hit_ns": 0, "read_ns": 61 * NS}, 61 * NS, "fs-atime"),
        # What was written in the future is as old as its inode.
        ({"written_ns": 9 * DAY_NS, "changed_ns": -3 * DAY_NS}, -3 * DAY_NS, "mtime"),
        ({"written_ns": 9 * DAY_NS, "changed_ns": 9 * DAY_NS}, -NOW, "mtime"),
        ({"written_ns": -NOW - 1, "changed_ns": -DAY_NS}, -DAY_NS, "mtime"),
    ],
)
def test_the_latest_date_counts(dates: dict[str, int], from_now_ns: int, source: str) -> None:
    assert used(**dates) == (NOW + from_now_ns, source)


@pytest.mark.parametrize("date", ["read_ns", "stamp_ns", "hit_ns"])
def test_a_date_of_the_future_says_nothing(date: str) -> None:
    assert used(**{date: 2 * DAY_NS}) == (NOW - 40 * DAY_NS, "mtime")
    assert used(**{date: 3600 * NS})[0] == NOW + 3600 * NS


def dates_of(*parts: tuple[int, int, int]) -> list[int]:
    """Ascending dates from parts of (first, number, distance)."""
    return sorted(first + n * step for first, number, step in parts for n in range(number))


NIGHT = NOW - DAY_NS // 2
BACKUP = (NIGHT, 40, MS // 10)
READS = {
    "a backup": ([BACKUP], True),
    "later uses": ([BACKUP, (NIGHT + DAY_NS // 4, 7, 30 * MS)], True),
    # which ``relatime`` keeps
    "uses of the day before": ([BACKUP, (NIGHT - DAY_NS // 2, 7, 30 * MS)], True),
    "a file that was left out": ([BACKUP, (NIGHT - 2 * DAY_NS, 1, 1)], False),
    "too few files": ([(NIGHT, 4, MS // 10)], False),
    "a program that loads fast": ([(NIGHT, 40, 5 * MS)], False),
    "a program that loads slowly": ([(NIGHT, 40, 20 * MS)], False),
    "no file": ([], False),
}


@pytest.mark.parametrize(("reads", "is_sweep"), READS.values(), ids=READS)
def test_a_backup_is_told_from_programs(reads: list[tuple[int, int, int]], is_sweep: bool) -> None:
    sweeps = find_reads((NOW - 40 * DAY_NS, read_ns) for read_ns in dates_of(*reads))
    assert bool(sweeps) is is_sweep
    assert (NIGHT in sweeps) is is_sweep
    assert (NIGHT - MS) not in sweeps


def test_files_that_were_written_at_once_were_not_read() -> None:
    assert not find_reads((at_ns, at_ns) for at_ns in dates_of(BACKUP))
    unread = [(NIGHT - 9 * DAY_NS, NIGHT - 9 * DAY_NS)]
    assert not find_reads([*unread, *((0, read_ns) for read_ns in dates_of(BACKUP))])


def test_a_copied_file_was_used_when_the_copied_records_say() -> None:
    rule = LastUses(NOW, writes=find_writes(dates_of(BACKUP)))
    then_ns = NOW - 40 * DAY_NS
    assert rule.of(FileDates(NIGHT, stamp_ns=then_ns)) == (then_ns, "atime-file")
    copy = rule.of(FileDates(NIGHT))
    assert copy == (NIGHT, "mtime")
    assert rule.with_record(copy, hit_ns=None, compiled_ns=then_ns) == (then_ns, "mtime")
    hit_ns = NOW - 9 * DAY_NS
    assert rule.with_record(copy, hit_ns=hit_ns, compiled_ns=then_ns) == (hit_ns, "ledger")


def test_one_older_file_shows_that_the_others_were_not_copied() -> None:
    writes = find_writes(dates_of(BACKUP, (NIGHT - DAY_NS // 9, 1, 1)))
    rule = LastUses(NOW, writes=writes)
    written = rule.of(FileDates(NIGHT))
    assert rule.with_record(written, hit_ns=None, compiled_ns=NOW - 40 * DAY_NS) == written


def test_an_unmeasured_compile_took_as_long_as_the_measured_ones_of_its_header() -> None:
    means = mean_seconds([0.03, 0.09, 2.5])
    assert saved_seconds(0.7, 0.0, means) == 0.7
    assert saved_seconds(None, 0.0, means) == pytest.approx(0.06)
    assert saved_seconds(None, 2.0, means) == 2.5
    assert saved_seconds(None, 3.0, means) == 3.5
    assert saved_seconds(None, None, {}) == 0.5
