"""What a bound removes loses least: no entry of its class could stay, alone or for another."""

import json
import os
import time
import zlib
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jaxcache.core.eviction import Candidate, choose_for_room, expected_seconds
from jaxcache.live.evictor import Evictor
from jaxcache.live.process import Counters
from jaxcache.live.settings import resolve

NS = 10**9
HOUR = 3600.0
NOW_NS = 2_000_000_000 * NS
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
        Candidate(f"jit_{number}", size, NOW_NS - int(age * NS), took, hits)
        for number, (size, took, age, hits) in enumerate(rows)
    ]
    total = sum(c.size_bytes for c in candidates)
    excess_bytes = int(total * share)
    chosen = choose_for_room(candidates, excess_bytes, "cost", NOW_NS)
    assert sum(c.size_bytes for c in chosen) >= excess_bytes

    def weigh(some: "list[Candidate]") -> "list[tuple[int, float]]":
        return [(c.size_bytes, expected_seconds(c, NOW_NS)) for c in some]

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


DAY = 24 * HOUR


def test_the_compile_of_friday_on_monday() -> None:
    """The example of docs/eviction.md."""

    def entry(name: str, size: int, took: float, age: float) -> Candidate:
        return Candidate(name, size, NOW_NS - int(age * NS), took)

    friday = entry("friday", 500, 1200.0, 70 * HOUR)
    thursday = entry("thursday", 500, 30.0, 4 * DAY)
    weekend = [entry(f"weekend{n}", 100, 1.0, 20 * HOUR) for n in range(5)]
    ancient = entry("ancient", 500, 5000.0, 15 * DAY)
    everything = [friday, thursday, *weekend, ancient]

    def removed(excess_bytes: int) -> "set[str]":
        return {c.name for c in choose_for_room(everything, excess_bytes, "cost", NOW_NS)}

    assert removed(500) == {"ancient"}
    assert removed(1000) == {"ancient", "thursday"}
    assert removed(1500) == {"ancient", "thursday", "friday"}
    sunday = friday._replace(last_used_ns=NOW_NS - int(20 * HOUR * NS))
    minute = entry("minute", 500, 10.0, 60.0)
    assert choose_for_room([sunday, minute], 500, "cost", NOW_NS) == [minute]
