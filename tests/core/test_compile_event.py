"""Phases of a start: nested ones and those of several threads count each instant once."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxcache.core.compile_event import Timeline


@pytest.mark.parametrize(
    ("began_at", "spans", "seconds"),
    [
        (0.0, [("trace", float(depth), 10.0) for depth in range(5, 0, -1)], {"trace": 9.0}),
        (
            0.0,
            [("key", 2.0, 3.0), ("load", 3.0, 5.0), ("trace", 1.0, 6.0)],
            {"key": 1.0, "load": 2.0, "trace": 2.0},
        ),
        (0.0, [("compile", 0.0, 4.0), ("compile", 1.0, 6.0)], {"compile": 6.0}),
        (0.0, [("compile", 0.0, 4.0), ("trace", 3.0, 6.0)], {"compile": 4.0, "trace": 2.0}),
        (2.0, [("compile", 1.0, 4.0), ("load", 0.0, 1.0)], {"compile": 2.0}),
    ],
    ids=["nested", "inside another", "two threads", "phases of threads", "before the block"],
)
def test_an_instant_belongs_to_one_phase(
    began_at: float, spans: list[tuple[str, float, float]], seconds: dict[str, float]
) -> None:
    timeline = Timeline(began_at)
    for span in spans:
        timeline.add(*span)
    assert timeline.seconds() == seconds


@given(
    st.lists(st.tuples(st.sampled_from(["trace", "lower"]), st.integers(0, 60), st.integers(0, 60)))
)
def test_the_phases_cover_what_any_span_covers(spans: list[tuple[str, int, int]]) -> None:
    covered = {second for _, start, end in spans for second in range(start, end)}
    timeline = Timeline()
    for span in spans:
        timeline.add(*span)
    assert sum(timeline.seconds().values()) == pytest.approx(len(covered))
    kept = timeline.spans
    assert all(one[1] < two[0] or one[2] != two[2] for one, two in pairwise(kept)), "they touch"
    ends = [edge for start, end, _ in kept for edge in (start, end)]
    assert ends == sorted(ends)
